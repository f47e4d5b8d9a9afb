package etcd

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/check/servers"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/etcdstore"
)

// mute is an interceptor that stops all messages of the client while it is set. The client
// then gets news only from existing watches.
type mute struct{ on atomic.Bool }

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
	return &muteStream{s, m}, err
}

type muteStream struct {
	grpc.ClientStream
	m *mute
}

func (s *muteStream) SendMsg(msg any) error {
	if err := s.m.wait(s.Context()); err != nil {
		return err
	}
	return s.ClientStream.SendMsg(msg)
}

func (c *cluster) muted(t *testing.T) (*etcdstore.Store, *mute) {
	t.Helper()
	m := &mute{}
	return over(t, c.direct(t, func(cfg *clientv3.Config) {
		cfg.DialOptions = append(cfg.DialOptions, grpc.WithChainUnaryInterceptor(m.unary), grpc.WithChainStreamInterceptor(m.stream))
	})), m
}

// watched waits until the sentinel of the client's lease stands, with the store's watches:
// the store makes them in its first heartbeats.
func watched(t *testing.T, client *clientv3.Client) {
	t.Helper()
	for end := time.Now().Add(testTimeout); ; time.Sleep(10 * time.Millisecond) {
		resp, err := client.Get(t.Context(), "_holdfast/lease/", clientv3.WithPrefix())
		if err == nil && len(resp.Kvs) > 0 {
			time.Sleep(time.Second) // the watches follow
			return
		}
		if time.Now().After(end) {
			t.Fatalf("no sentinel: %v", err)
		}
	}
}

// TestDeletionIsPushed: an operator deletes a key, revokes a lease, or breaks a lock. The
// holder's context ends although its client can send the server nothing: the server pushes
// the event.
func TestDeletionIsPushed(t *testing.T) {
	c := start(t, servers.EtcdConfig{})
	client := c.direct(t)
	for _, test := range []struct {
		name  string
		do    func(key string, g driver.Grant, lease clientv3.LeaseID) error
		cause driver.Cause
	}{
		{"deleted", func(key string, _ driver.Grant, _ clientv3.LeaseID) error {
			_, err := client.Delete(t.Context(), key)
			return err
		}, driver.CauseTaken},
		{"revoked", func(_ string, _ driver.Grant, lease clientv3.LeaseID) error {
			_, err := client.Revoke(t.Context(), lease)
			return err
		}, driver.CauseSessionEnded},
		{"broken", func(_ string, g driver.Grant, _ clientv3.LeaseID) error {
			return c.open(t).Break(t.Context(), g.Name, g.Token)
		}, driver.CauseTaken},
	} {
		s, m := c.muted(t)
		r := request("h-"+test.name, test.name, 1, time.Hour)
		g := must(t, s, r)
		watched(t, client)
		keys, err := client.Get(t.Context(), test.name+"/", clientv3.WithPrefix())
		if err != nil || len(keys.Kvs) != 1 {
			t.Fatal(keys, err)
		}
		m.on.Store(true)
		if err := test.do(string(keys.Kvs[0].Key), g, clientv3.LeaseID(keys.Kvs[0].Lease)); err != nil {
			t.Fatal(err)
		}
		if cause := receive(t, "the loss of what was "+test.name, r.From.(*requester).lost); cause != test.cause {
			t.Errorf("%s: cause %s, want %s", test.name, cause, test.cause)
		}
		m.on.Store(false)
		if err := s.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// TestYoungGrantEndsByRevocation: a lease is revoked while a grant is too young for a
// watch of its own. The grant ends without a request of its client.
func TestYoungGrantEndsByRevocation(t *testing.T) {
	c := start(t, servers.EtcdConfig{})
	client := c.direct(t)
	s, m := c.muted(t)
	must(t, s, request("first", "first", 1, time.Hour))
	watched(t, client)
	r := request("young", "young", 1, time.Hour)
	must(t, s, r)
	m.on.Store(true)
	keys, err := client.Get(t.Context(), "young/", clientv3.WithPrefix())
	if err != nil || len(keys.Kvs) != 1 {
		t.Fatal(keys, err)
	}
	if _, err := client.Revoke(t.Context(), clientv3.LeaseID(keys.Kvs[0].Lease)); err != nil {
		t.Fatal(err)
	}
	if cause := receive(t, "the loss", r.From.(*requester).lost); cause != driver.CauseSessionEnded {
		t.Errorf("cause %s, want %s", cause, driver.CauseSessionEnded)
	}
	m.on.Store(false)
}

// TestFormerLeaderRevokes: a leader is paused, or its disk stalls, for longer than the TTL.
// When it continues it revokes leases, although their clients have renewed them at its
// successor. The holder's context ends by the watch, without a request of its client, and
// the waiter's token is larger. Whether the former leader gets that far is a race inside the
// server.
func TestFormerLeaderRevokes(t *testing.T) {
	current, err := servers.Find("etcd")
	if err != nil {
		t.Skip(err)
	}
	for version, program := range map[string]string{"current": current, "distribution": "/usr/bin/etcd"} {
		for fault, do := range map[string]struct{ begin, end func(*servers.Etcd) error }{
			"pause": {(*servers.Etcd).Pause, (*servers.Etcd).Cont},
			"disk": {
				func(m *servers.Etcd) error { m.Disk.Stall(); return nil },
				func(m *servers.Etcd) error { m.Disk.Resume(); return nil },
			},
		} {
			t.Run(version+"/"+fault, func(t *testing.T) {
				t.Parallel()
				c := start(t, servers.EtcdConfig{Program: program, Members: 3, Heartbeat: 60 * time.Millisecond, Disks: true})
				const ttl = 3 * time.Second
				client := c.direct(t)
				for round := range 12 {
					holder, m := c.muted(t)
					l, o := locker(t, holder), locker(t, c.open(t))
					k, err := l.Lock(t.Context(), "n", holdfast.TTL(ttl))
					if err != nil {
						t.Fatal(err)
					}
					watched(t, client)
					lead := c.members[c.leader(t, client)]
					if err := do.begin(lead); err != nil {
						t.Fatal(err)
					}
					waited := make(chan *holdfast.Lock, 1)
					go func() {
						k, err := o.Lock(t.Context(), "n", holdfast.TTL(ttl))
						for errors.Is(err, holdfast.ErrUnavailable) && t.Context().Err() == nil { // until there is a leader
							k, err = o.Lock(t.Context(), "n", holdfast.TTL(ttl))
						}
						if err != nil {
							t.Error(err)
						}
						waited <- k
					}()
					time.Sleep(ttl + ttl/2)
					alive := k.Context().Err() == nil
					m.on.Store(true)
					if err := do.end(lead); err != nil {
						t.Fatal(err)
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
					if next.Token() <= k.Token() {
						t.Errorf("token %d after %d", next.Token(), k.Token())
					}
					if err := next.Unlock(); err != nil && !errors.Is(err, holdfast.ErrLost) {
						t.Error(err)
					}
					t.Logf("round %d: alive %t, lost %v", round, alive, lost)
					if alive && lost != nil && lost.Cause == holdfast.CauseSessionEnded {
						return
					}
				}
				t.Skip("this server revoked nothing that it should not have")
			})
		}
	}
}
