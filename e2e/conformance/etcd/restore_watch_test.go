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

// slow delays requests and watches of one client. It stops a transaction that creates a queue
// entry, and delays the report that the stream of watches has ended. It records the responses of
// the stream that the store has handled.
type slow struct {
	mu            sync.Mutex
	before, after *stop           // stop the next such transaction before its send, and before its answer returns
	end           <-chan struct{} // if it is not nil, the end of a stream is reported when it is closed
	created       int             // the number of watches that the server has created
	revision      int64           // the newest revision of the responses
	deleted       map[string]bool // the keys whose deletion was reported
}

// stop is a point at which one call waits. reached is closed when the call arrives there. The call
// continues when through is closed.
type stop struct{ reached, through chan struct{} }

func newStop() *stop { return &stop{make(chan struct{}), make(chan struct{})} }

// wait waits at *which, unless it is nil, and sets it to nil for the next call.
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
	last *etcdserverpb.WatchResponse // the store has handled it when it calls RecvMsg again
}

func (w *slowWatch) RecvMsg(msg any) error {
	s := w.slow
	s.mu.Lock()
	if w.last != nil {
		for _, e := range w.last.Events {
			s.deleted[string(e.Kv.Key)] = s.deleted[string(e.Kv.Key)] || e.Type == mvccpb.DELETE
		}
		if w.last.Created {
			s.created++
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

// locked returns a function that calls f with the mutex held.
func (s *slow) locked(f func() bool) func() bool {
	return func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return f()
	}
}

// TestRestoreWhileWatchIsKept: a server is replaced by one that was restored from an older copy. A holder
// has its lock in the copy. On the replaced server an operator deleted that lock later, and a watch of
// another client has reported the deletion. The waiter of that client is not granted the lock beside the
// holder. It is granted the lock after the holder's release.
func TestRestoreWhileWatchIsKept(t *testing.T) {
	for what, test := range map[string]struct {
		old, noticed bool // the waiter's entry is in the copy; its client has noticed the end of the watch
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

			// A first waiter creates the watch of the name.
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
			// Each client watches its sentinel and its entry, and the waiter's client also the name.
			c.watched(t, 5)
			eventually(t, "both clients have written their sentinels", func() bool {
				resp, err := client.Get(t.Context(), sentinels, clientv3.WithPrefix())
				return err == nil && len(resp.Kvs) == 2
			})

			// submitNext starts the next waiter, which shares the watch of the first one. It returns when
			// the waiter's transaction has stopped at *which.
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

			// The member is copied, and the holder's client continues on the restored server.
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

			// On the replaced server the revision rises, the first waiter ends, and the lock is deleted.
			raise := func() (rev int64) { // the revision becomes far larger than that of the copy
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
				eventually(t, "the stream reports the revision", s.locked(func() bool { return s.revision >= rev }))
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
			eventually(t, "the watch reports the deletion", s.locked(func() bool { return s.deleted[key] }))

			// The waiter's client is led to the restored server.
			ended, end := context.WithCancel(context.Background())
			t.Cleanup(end)
			s.mu.Lock()
			created := s.created
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
				// One is the watch of the name, and the other watches are those of entries and of the sentinel.
				eventually(t, "the watches are made again", s.locked(func() bool { return s.created >= created+2 }))
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
