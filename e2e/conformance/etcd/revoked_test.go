package etcd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/e2e/conformance/requests"
	"github.com/holdfast-go/holdfast/etcdstore"
	"github.com/holdfast-go/holdfast/internal/servers"
)

// mute is an interceptor that stops the messages of the client while it is set. The client
// then receives events only from its existing watches. It can still request the revision of the
// member that serves them.
type mute struct {
	on atomic.Bool

	mu     sync.Mutex
	newest *muteStream // the newest stream of watches, nil if there is none
	hidden string      // events of keys with this prefix are lost
}

// watches reports whether the server watches a key that begins with the prefix.
func (m *mute) watches(prefix string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.newest != nil && slices.ContainsFunc(m.newest.requested[:m.newest.created], func(key string) bool { return strings.HasPrefix(key, prefix) })
}

// hide drops the events of keys with the prefix.
func (m *mute) hide(prefix string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.hidden = prefix
}

func (m *mute) wait(ctx context.Context) error {
	for m.on.Load() {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(5 * time.Millisecond):
		}
	}
	return nil
}

func (m *mute) unary(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	if err := m.wait(ctx); err != nil {
		return err
	}
	return invoke(ctx, method, req, reply, cc, opts...)
}

func (m *mute) stream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	if err := m.wait(ctx); err != nil {
		return nil, err
	}
	s, err := streamer(ctx, desc, cc, method, opts...)
	muted := &muteStream{ClientStream: s, m: m}
	if strings.HasSuffix(method, "/Watch") {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.newest = muted
	}
	return muted, err
}

type muteStream struct {
	grpc.ClientStream
	m *mute
	// requested are the keys of the watches that were requested, in that order. created is how many
	// of them the server has made, from the first one on. The mutex of m guards both.
	requested []string
	created   int
}

func (s *muteStream) SendMsg(msg any) error {
	w, _ := msg.(*etcdserverpb.WatchRequest)
	if w.GetProgressRequest() == nil {
		if err := s.m.wait(s.Context()); err != nil {
			return err
		}
	}
	if c := w.GetCreateRequest(); c != nil {
		s.m.mu.Lock()
		s.requested = append(s.requested, string(c.Key))
		s.m.mu.Unlock()
	}
	return s.ClientStream.SendMsg(msg)
}

func (s *muteStream) RecvMsg(msg any) error {
	err := s.ClientStream.RecvMsg(msg)
	if w, is := msg.(*etcdserverpb.WatchResponse); is {
		s.m.mu.Lock()
		defer s.m.mu.Unlock()
		if err != nil {
			s.created = 0 // the stream has ended
			return err
		}
		if w.Created {
			s.created++
		}
		w.Events = slices.DeleteFunc(w.Events, func(e *mvccpb.Event) bool {
			return s.m.hidden != "" && strings.HasPrefix(string(e.Kv.Key), s.m.hidden)
		})
	}
	return err
}

// install adds the interceptor to a client's calls.
func (m *mute) install(cfg *clientv3.Config) {
	cfg.DialOptions = append(cfg.DialOptions, grpc.WithChainUnaryInterceptor(m.unary), grpc.WithChainStreamInterceptor(m.stream))
}

func (c *cluster) muted(t *testing.T) (*etcdstore.Store, *mute) {
	t.Helper()
	m := &mute{}
	return over(t, c.direct(t, m.install)), m
}

// sentinels is the prefix of the keys that show whether a lease exists.
const sentinels = "_holdfast/lease/"

// watched waits until the server has n watches: of the sentinel of each session and of its entries.
// The store makes them in its first heartbeats.
func (c *cluster) watched(t *testing.T, n int) {
	t.Helper()
	eventually(t, fmt.Sprintf("the server has %d watches", n), func() bool {
		return c.metric(t, "etcd_debugging_mvcc_watcher_total ", "") >= n
	})
}

// watching waits until the server watches keys with each of the prefixes: the store makes
// its watches in its first heartbeats.
func watching(t *testing.T, m *mute, prefixes ...string) {
	t.Helper()
	for _, prefix := range prefixes {
		eventually(t, "the server watches "+prefix, func() bool { return m.watches(prefix) })
	}
}

// TestDeletionIsPushed: an operator deletes a key, revokes a lease, or breaks a lock. The
// holder's context ends although its client can send the server nothing: the server pushes
// the event. A grant that is too young for a watch of its own ends with its lease.
func TestDeletionIsPushed(t *testing.T) {
	t.Parallel()
	c := start(t, servers.EtcdConfig{})
	client := c.direct(t)
	deletes := func(t *testing.T, g driver.Grant) { remove(t, client, keyOf(t, client, g.Name)) }
	revokes := func(t *testing.T, g driver.Grant) { revoke(t, client, g.Name) }
	breaks := func(t *testing.T, g driver.Grant) { check(t, c.open(t).Break(t.Context(), g.Name, g.Token)) }
	for name, test := range map[string]struct {
		do    func(t *testing.T, g driver.Grant)
		young bool
		cause driver.Cause
	}{
		"deleted": {deletes, false, driver.CauseTaken},
		"revoked": {revokes, false, driver.CauseSessionEnded},
		"broken":  {breaks, false, driver.CauseTaken},
		"young":   {revokes, true, driver.CauseSessionEnded},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, m := c.muted(t)
			if test.young {
				must(t, s, request("first", 1, time.Hour))
				watching(t, m, sentinels)
			}
			r := request(name, 1, time.Hour)
			g := must(t, s, r)
			if !test.young {
				watching(t, m, sentinels, name+"/")
			}
			m.on.Store(true)
			defer m.on.Store(false) // before the store is closed
			test.do(t, g)
			requests.Lost(t, r, test.cause)
		})
	}
}

// versions returns the programs of the current etcd and of the distribution's, which is older.
func versions(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{"current": need(t, "etcd")}
	if _, err := os.Stat("/usr/bin/etcd"); err == nil {
		all["distribution"] = "/usr/bin/etcd"
	} else if os.Getenv("HOLDFAST_REQUIRE_SERVERS") != "" {
		t.Fatal(err)
	}
	return all
}

// TestFormerLeaderConfirms blocks the disk of a leader until its successor has ended a lease. Before
// etcd 3.4.31 and 3.5.13 the former leader, which has not noticed the election, confirms the lease.
func TestFormerLeaderConfirms(t *testing.T) {
	for version, program := range versions(t) {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			out, err := exec.Command(program, "--version").Output()
			check(t, err)
			confirms := strings.HasPrefix(string(out), "etcd Version: 3.4.2")
			c := start(t, servers.EtcdConfig{Program: program, Members: 3, Heartbeat: 60 * time.Millisecond, Disks: true})
			for round := range 5 {
				ttl, err := c.confirmed(t, c.leader(t, c.direct(t)))
				t.Logf("round %d: TTL %d, %v", round, ttl, err)
				switch {
				case ttl > 0 && !confirms:
					t.Fatalf("the former leader confirms an ended lease for %d s, although this version should not", ttl)
				case ttl > 0 || !confirms:
					return
				}
			}
			t.Error("the former leader never confirmed an ended lease: is the note of the guarantees still true?")
		})
	}
}

// confirmed blocks the disk of the leader until the other members have ended a lease that its client
// renews there. It returns the answer of the blocked member to the next keepalive.
func (c *cluster) confirmed(t *testing.T, lead int) (int64, error) {
	t.Helper()
	at := func(members ...*servers.Etcd) *clientv3.Client {
		return c.direct(t, func(cfg *clientv3.Config) { cfg.Endpoints = servers.EtcdEndpoints(members) })
	}
	former, others := at(c.members[lead]), at(slices.Delete(slices.Clone(c.members), lead, lead+1)...)
	lease, err := former.Grant(t.Context(), 3)
	check(t, err)
	_, err = former.KeepAliveOnce(t.Context(), lease.ID)
	check(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	answers, err := former.KeepAlive(ctx, lease.ID) // otherwise the lease expires at the former leader, too
	check(t, err)
	go func() {
		for range answers {
		}
	}()
	// Every 100 ms a member writes the requests that it has applied. A member that is blocked in
	// that write confirms nothing.
	time.Sleep(500 * time.Millisecond)
	c.members[lead].Disk().Stall()
	defer c.members[lead].Disk().Resume()
	for ; ; time.Sleep(50 * time.Millisecond) {
		soon, end := context.WithTimeout(ctx, time.Second)
		_, _ = others.Put(soon, "something", "to write")
		left, err := others.TimeToLive(soon, lease.ID)
		end()
		if err == nil && left.TTL < 0 {
			break
		}
		if ctx.Err() != nil {
			t.Fatalf("the lease was not ended: %v", err)
		}
	}
	soon, end := context.WithTimeout(ctx, 2*time.Second)
	defer end()
	answer, err := former.KeepAliveOnce(soon, lease.ID)
	if err != nil {
		return 0, err
	}
	return answer.TTL, nil
}

// TestFormerLeaderRevokes: a leader is paused, or its disk stalls, for longer than the TTL. When it
// continues it revokes leases, although their clients have renewed them at its successor. The
// holder's context ends by the watch of its own key, without a request of its client and without
// the watch of its lease's sentinel. The waiter's token is larger. Whether the former leader
// revokes a lease depends on a race inside the server.
func TestFormerLeaderRevokes(t *testing.T) {
	for version, program := range versions(t) {
		for fault, do := range map[string]struct{ begin, end func(*servers.Etcd) error }{
			"pause": {(*servers.Etcd).Pause, (*servers.Etcd).Cont},
			"disk": {
				func(m *servers.Etcd) error { m.Disk().Stall(); return nil },
				func(m *servers.Etcd) error { m.Disk().Resume(); return nil },
			},
		} {
			t.Run(version+"/"+fault, func(t *testing.T) {
				t.Parallel()
				c := start(t, servers.EtcdConfig{Program: program, Members: 3, Heartbeat: 60 * time.Millisecond, Disks: true})
				const ttl = 3 * time.Second
				client := c.direct(t)
				missed, rounds := 0, 12
				if testing.Short() {
					rounds = 3
				}
				for round := range rounds {
					holder, m := c.muted(t)
					m.hide(sentinels)
					l, o := locker(t, holder), locker(t, c.open(t))
					k, err := lockOnceLed(t, l, ttl) // the cluster may still be busy with the former round
					check(t, err)
					watching(t, m, "n/")
					key := keyOf(t, client, "n")
					lead := c.members[c.leader(t, client)]
					check(t, do.begin(lead))
					waited := make(chan *holdfast.Lock, 1)
					go func() {
						k, err := lockOnceLed(t, o, ttl)
						if err != nil {
							t.Error(err)
						}
						waited <- k
					}()
					time.Sleep(ttl + ttl/2)
					// The leader may have served the watch: wait until another member serves it.
					eventually(t, "a member watches the holder's key", func() bool {
						return k.Context().Err() != nil || m.watches("n/")
					})
					alive := k.Context().Err() == nil
					m.on.Store(true)
					until := time.Now().Add(k.Remaining())
					check(t, do.end(lead))
					// The deletion of the key, long before the end of the validity, is a revocation.
					revoked := false
					for k.Context().Err() == nil && !revoked {
						revoked = deleted(t, client, key) && time.Until(until) > time.Second
					}
					<-k.Context().Done() // a muted holder cannot renew
					var lost *holdfast.LostError
					errors.As(context.Cause(k.Context()), &lost)
					m.on.Store(false)
					_ = k.Unlock()
					next := receive(t, "the waiter's lock", waited)
					if next == nil {
						t.FailNow()
					}
					requests.LocksRise(t, k, next)
					// The cluster may still be busy with the change of its leader.
					if err := next.Unlock(); err != nil && !errors.Is(err, holdfast.ErrLost) && !errors.Is(err, holdfast.ErrUnavailable) {
						t.Error(err)
					}
					t.Logf("round %d: alive %t, revoked %t, lost %v", round, alive, revoked, lost)
					if alive && lost != nil && lost.Cause != holdfast.CauseExpired {
						return
					}
					if revoked {
						missed++ // on a busy machine an event may be late
					}
					if missed == 3 {
						t.Fatal("three times the holder's key was deleted while the holder was valid, and no watch has ended its context")
					}
				}
				t.Skip("this server revoked nothing that it should not have")
			})
		}
	}
}

// deleted reports whether a read has shown that a key does not exist.
func deleted(t *testing.T, client *clientv3.Client, key string) bool {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	now, err := client.Get(ctx, key, clientv3.WithCountOnly())
	return err == nil && now.Count == 0
}

// lockOnceLed locks "n". It tries again while the cluster has no leader.
func lockOnceLed(t *testing.T, l *holdfast.Locker, ttl time.Duration) (*holdfast.Lock, error) {
	return requests.Retried(func() (*holdfast.Lock, error) { return l.Lock(t.Context(), "n", holdfast.TTL(ttl)) })
}
