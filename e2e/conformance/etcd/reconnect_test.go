package etcd

import (
	"context"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/holdfast-go/holdfast/e2e/servertest"
	"github.com/holdfast-go/holdfast/etcdstore"
)

// TestOutageDelaysNoReconnection: a server accepts no connection for so long that the client library would pause for
// several seconds before its next attempt. A store of a URL, and one over a client of the program, still try about once
// a second.
func TestOutageDelaysNoReconnection(t *testing.T) {
	t.Parallel()
	const outage, least = 15 * time.Second, 8
	for name, open := range map[string]func(t *testing.T, address string) *etcdstore.Store{
		"URL": func(t *testing.T, address string) *etcdstore.Store {
			s, err := etcdstore.Open(t.Context(), "etcd://"+address)
			check(t, err)
			return s
		},
		"client": func(t *testing.T, address string) *etcdstore.Store {
			client, err := clientv3.New(clientv3.Config{Endpoints: []string{address}})
			check(t, err)
			t.Cleanup(func() { _ = client.Close() })
			s, err := etcdstore.New(client)
			check(t, err)
			return s
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			address, end := servertest.Attempts(t, "127.0.0.1:0")
			s := open(t, address)
			ctx, cancel := context.WithTimeout(t.Context(), outage)
			defer cancel()
			for ctx.Err() == nil { // as the core does for a waiter
				if g, err := s.Acquire(ctx, request("a", 1, time.Minute)); err == nil {
					t.Fatalf("a lock without a server: %+v", g)
				}
				select {
				case <-ctx.Done():
				case <-time.After(100 * time.Millisecond):
				}
			}
			check(t, s.Close(t.Context()))
			if n := end(); n < least {
				t.Errorf("%d attempts to connect in %s, want at least %d", n, outage, least)
			}
		})
	}
}
