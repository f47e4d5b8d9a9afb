package nats

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/e2e/conformance/requests"
	"github.com/holdfast-go/holdfast/internal/servers"
)

// hold holds a lock with a long TTL, so that only a loss ends its context in time.
func (c *cluster) hold(t *testing.T, name string) *holdfast.Lock {
	t.Helper()
	locker, err := holdfast.New(c.open(t, ""))
	check(t, err)
	t.Cleanup(func() { _ = locker.Close(context.Background()) })
	lock, err := locker.Lock(t.Context(), name, holdfast.TTL(10*time.Minute))
	check(t, err)
	return lock
}

// lost waits until the holder has noticed the loss.
func lost(t *testing.T, lock *holdfast.Lock) {
	t.Helper()
	requests.Receive(t, "the end of the context", lock.Context().Done())
	if err := context.Cause(lock.Context()); !errors.Is(err, holdfast.ErrLost) {
		t.Errorf("the context ended by %v", err)
	}
}

// direct returns a client of JetStream without the proxies.
func (c *cluster) direct(t *testing.T) jetstream.JetStream {
	t.Helper()
	nc, err := nats.Connect(c.members[0].Client)
	check(t, err)
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	check(t, err)
	return js
}

// TestRecreatedBucketEndsContext: a bucket that was deleted and created again ends the locks.
func TestRecreatedBucketEndsContext(t *testing.T) {
	c := start(t, servers.NATSConfig{})
	lock := c.hold(t, "a")
	check(t, c.direct(t).DeleteKeyValue(t.Context(), "locks"))
	check(t, c.open(t, "").Init(t.Context()))
	lost(t, lock)
}

// TestLostWritesEndContext: a server that has lost its last writes, as after a power failure, ends the locks that it
// has lost. A grant after that has a larger token.
func TestLostWritesEndContext(t *testing.T) {
	c := start(t, servers.NATSConfig{})
	n, backup := c.members[0], filepath.Join(t.TempDir(), "backup")
	check(t, n.Stop())
	check(t, os.CopyFS(backup, os.DirFS(n.Data())))
	check(t, n.Restart(t.Context()))
	lock := c.hold(t, "a")
	n.Kill()
	check(t, errors.Join(os.RemoveAll(n.Data()), os.CopyFS(n.Data(), os.DirFS(backup))))
	check(t, n.Restart(t.Context()))
	lost(t, lock)
	requests.LocksRise(t, lock, c.hold(t, "a"))
}
