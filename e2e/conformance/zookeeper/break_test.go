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

// endRequests is a connection that closes after the client has sent the first request to end a
// holder. The server receives the request, and its answer is lost.
type endRequests struct {
	net.Conn
	times *atomic.Int64
	over  *atomic.Bool
}

func (c endRequests) Write(b []byte) (int, error) {
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

func (c endRequests) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if c.over.Load() {
		return 0, io.EOF
	}
	return n, err
}

// TestBreakRepeatsLostRequest: Break requests a holder to end, and loses the connection before the
// answer. Break sends the request again on the next connection, and ends a holder that does not
// react.
func TestBreakRepeatsLostRequest(t *testing.T) {
	z := single(t)
	var times atomic.Int64
	l, s := locker(t, []string{z.Address()}, zkstore.Dial(func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := new(net.Dialer).DialContext(ctx, network, address)
		return endRequests{c, &times, new(atomic.Bool)}, err
	}))
	raw := connect(t, z.Address())
	name := newName()
	must(t, lock(t, l, name).Unlock()) // makes the name's node
	path, err := raw.Create("/faults/"+name+"/x-__WRIT__", nil, zookeeper.FlagEphemeral|zookeeper.FlagSequence, zookeeper.WorldACL(zookeeper.PermAll))
	must(t, err)
	_, at, err := raw.Exists(path)
	must(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	must(t, s.Break(ctx, name, uint64(at.Czxid)))
	if _, _, err := raw.Get(path); !errors.Is(err, zookeeper.ErrNoNode) {
		t.Errorf("the holder's node: %v", err)
	}
	if n := times.Load(); n != 2 {
		t.Errorf("the holder got %d requests to end, want 2: the first without an answer", n)
	}
}
