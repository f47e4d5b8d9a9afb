package zookeeper

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"sync/atomic"
	"testing"

	zookeeper "github.com/go-zookeeper/zk"

	"github.com/holdfast-go/holdfast/zkstore"
)

// asked ends its connection once, when the holder has been asked to end: without an
// answer.
type asked struct {
	net.Conn
	times *atomic.Int64
	over  *atomic.Bool
}

func (c asked) Write(b []byte) (int, error) {
	first := bytes.Contains(b, []byte("__REVOKE__")) && c.times.Add(1) == 1
	if first {
		c.over.Store(true)
	}
	n, err := c.Conn.Write(b)
	if first {
		c.Conn.Close()
	}
	return n, err
}

func (c asked) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if c.over.Load() {
		return 0, io.EOF
	}
	return n, err
}

// TestBreakGoesOn: the connection is lost on which the holder was asked to end. Break asks
// again on the next, and ends one that does not react.
func TestBreakGoesOn(t *testing.T) {
	z := single(t)
	var times atomic.Int64
	l, s := locker(t, []string{z.Address()}, zkstore.Dial(func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := new(net.Dialer).DialContext(ctx, network, address)
		return asked{c, &times, new(atomic.Bool)}, err
	}))
	raw := connect(t, z.Address())
	name := newName()
	must(t, lock(t, l, name).Unlock()) // the name has a node
	path, err := raw.Create("/faults/"+name+"/x-__WRIT__", nil, zookeeper.FlagEphemeral|zookeeper.FlagSequence, zookeeper.WorldACL(zookeeper.PermAll))
	must(t, err)
	_, at, err := raw.Exists(path)
	must(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	must(t, s.Break(ctx, name, uint64(at.Czxid)))
	if _, _, err := raw.Get(path); !errors.Is(err, zookeeper.ErrNoNode) {
		t.Errorf("the holder's node: %v", err)
	}
	if n := times.Load(); n != 2 {
		t.Errorf("the holder was asked %d times, want 2: once in vain", n)
	}
}
