package etcd

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/holdfast-go/holdfast/check/servers"
	"github.com/holdfast-go/holdfast/driver"
)

// slow delays a transaction that makes an entry, and the end of the stream of watches.
type slow struct {
	mu            sync.Mutex
	before, after *stop           // stop the next such transaction before its send, and before its answer returns
	end           <-chan struct{} // the end of a stream is reported when this is closed; nil for at once
	made          int             // the watches that the store has handled the making of
	revision      int64           // the newest one that the stream has reported
	deleted       map[string]bool
}

// stop stops one call.
type stop struct{ reached, through chan struct{} }

func newStop() *stop { return &stop{make(chan struct{}), make(chan struct{})} }

func (s *slow) wait(which **stop) {
	s.mu.Lock()
	at := *which
	*which = nil
	s.mu.Unlock()
	if at != nil {
		close(at.reached)
		<-at.through
	}
}

func (s *slow) unary(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	if txn, is := req.(*etcdserverpb.TxnRequest); !is || !puts(txn) {
		return invoke(ctx, method, req, reply, cc, opts...)
	}
	s.wait(&s.before)
	err := invoke(ctx, method, req, reply, cc, opts...)
	s.wait(&s.after)
	return err
}

func (s *slow) stream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	c, err := streamer(ctx, desc, cc, method, opts...)
	if err != nil || !strings.HasSuffix(method, "/Watch") {
		return c, err
	}
	return &slowWatch{ClientStream: c, slow: s}, nil
}

type slowWatch struct {
	grpc.ClientStream
	slow *slow
	last *etcdserverpb.WatchResponse // the store has handled it when it receives the next one
}

func (w *slowWatch) RecvMsg(msg any) error {
	s := w.slow
	s.mu.Lock()
	if w.last != nil {
		for _, e := range w.last.Events {
			s.deleted[string(e.Kv.Key)] = s.deleted[string(e.Kv.Key)] || e.Type == mvccpb.DELETE
		}
		if w.last.Created {
			s.made++
		}
		s.revision = max(s.revision, w.last.GetHeader().GetRevision())
	}
	s.mu.Unlock()
	err := w.ClientStream.RecvMsg(msg)
	w.last, _ = msg.(*etcdserverpb.WatchResponse)
	s.mu.Lock()
	end := s.end
	s.mu.Unlock()
	if err != nil && end != nil {
		<-end
	}
	return err
}

func (s *slow) handled(f func() bool) func() bool {
	return func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return f()
	}
}

// TestRestoreWhileWatchIsKept: a server is replaced by one that was restored from an older copy. There the
// lock of a client stands, which an operator has deleted meanwhile on the replaced server. Another client
// has a watch of the name from the replaced server, which has reported that deletion. Its waiter is not
// granted the lock beside the holder, and is granted it after the holder's release.
func TestRestoreWhileWatchIsKept(t *testing.T) {
	for what, test := range map[string]struct {
		old, noticed bool // the entry is in the copy; the client has noticed the end of its watch
	}{
		"an entry of the copy, and the watch is made again": {old: true, noticed: true},
		"a new entry, and the watch is made again":          {noticed: true},
		"a new entry, and the watch has ended unnoticed":    {},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			c := start(t, servers.EtcdConfig{})
			s := &slow{deleted: map[string]bool{}}
			holderTo, err := servers.NewProxy(c.members[0].Client)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(holderTo.Close)
			holder := over(t, c.direct(t, func(cfg *clientv3.Config) { cfg.Endpoints = []string{holderTo.Address()} }))
			lib := c.direct(t, unary(s.unary), func(cfg *clientv3.Config) {
				cfg.Endpoints = []string{c.proxies[0].Address()}
				cfg.DialOptions = append(cfg.DialOptions, grpc.WithChainStreamInterceptor(s.stream))
			})
			waiter, client := over(t, lib), c.direct(t)

			held := must(t, holder, request("held", "n", 1, time.Hour))
			key := keyOf(t, client, "n")
			ctx, cancel := context.WithCancel(t.Context())
			warm := request("warm", "n", 1, time.Hour)
			warm.Wait = true
			warmed := make(chan struct{})
			go func() {
				defer close(warmed)
				_, _ = waiter.Acquire(ctx, warm)
			}()
			receive(t, "the first waiter", warm.From.(*requester).queued)
			c.watched(t, 5)
			eventually(t, "no client writes any more", func() bool {
				resp, err := client.Get(t.Context(), sentinels, clientv3.WithPrefix())
				return err == nil && len(resp.Kvs) == 2
			})

			// The next waiter shares the watch of the first one.
			var next <-chan result
			at := newStop()
			submitNext := func(which **stop) {
				s.mu.Lock()
				*which = at
				s.mu.Unlock()
				next = submit(t, waiter, request("next", "n", 1, time.Hour))
				receive(t, "the next waiter", at.reached)
			}
			if test.old {
				submitNext(&s.after)
			}
			data := filepath.Join(t.TempDir(), "m0", "data")
			if err := c.members[0].Backup(data); err != nil {
				t.Fatal(err)
			}
			restored, err := servers.StartEtcd(t.Context(), servers.EtcdConfig{Program: need(t, "etcd"), Dir: filepath.Dir(filepath.Dir(data)), NoSync: true})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(restored[0].End)
			if err := holderTo.Redirect(restored[0].Client); err != nil {
				t.Fatal(err)
			}
			raise := func() (rev int64) { // the revision is far above that of the copy
				for i := range 20 {
					resp, err := client.Put(t.Context(), "raise", fmt.Sprint(i))
					if err != nil {
						t.Fatal(err)
					}
					rev = resp.Header.Revision
				}
				return rev
			}
			if !test.old && !test.noticed {
				rev := raise()
				eventually(t, "the stream reports the revision", s.handled(func() bool { return s.revision >= rev }))
			}
			if !test.old {
				submitNext(&s.before)
			}
			raise()
			cancel()
			receive(t, "the end of the first waiter", warmed)
			if _, err := client.Delete(t.Context(), key); err != nil {
				t.Fatal(err)
			}
			eventually(t, "the watch reports the deletion", s.handled(func() bool { return s.deleted[key] }))
			ended, end := context.WithCancel(context.Background())
			t.Cleanup(end)
			s.mu.Lock()
			made := s.made
			if !test.noticed {
				s.end = ended.Done()
			}
			s.mu.Unlock()
			if err := c.proxies[0].Redirect(restored[0].Client); err != nil {
				t.Fatal(err)
			}
			eventually(t, "the waiter's client reaches the restored server", func() bool {
				_, err := lib.Get(t.Context(), "x")
				return err == nil
			})
			if test.noticed {
				// One watch is that of the name, the other ones are those of entries and of the sentinel.
				eventually(t, "the watches are made again", s.handled(func() bool { return s.made >= made+2 }))
			}
			close(at.through)

			// The holder has its lock on the restored server, and renews it.
			if a := holder.Renew(t.Context(), []driver.Grant{held})[0]; a.Err != nil {
				t.Fatal(a.Err)
			}
			retry := 0
			again := func(res result) bool { // the session of the waiter ends soon, since it has seen later revisions
				if res.err == nil {
					return false
				}
				if retry++; retry > 20 {
					t.Fatal(res.err)
				}
				next = submit(t, waiter, request(fmt.Sprint("again-", retry), "n", 1, time.Hour))
				return true
			}
			for pending := time.After(500 * time.Millisecond); pending != nil; {
				select {
				case res := <-next:
					if !again(res) {
						t.Fatalf("granted beside the holder: %+v", res.g)
					}
				case <-pending:
					pending = nil
				}
			}
			end()
			release(t, holder, held)
			for again(receive(t, "the grant after the holder's release", next)) {
			}
		})
	}
}
