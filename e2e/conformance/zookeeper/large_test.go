package zookeeper

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/zkstore"
)

// juteMaxBuffer is the longest request that a server accepts by default.
const juteMaxBuffer = 1<<20 - 1

// TestWriteTooLargeIsRefusedAndEndsNoLock: a guarded write that is too long for the server
// is refused before it is sent. No lock of the client is lost, no connection ends, and the
// next write succeeds.
func TestWriteTooLargeIsRefusedAndEndsNoLock(t *testing.T) {
	t.Parallel()
	z := single(t)
	var connections atomic.Int32
	l, s := locker(t, []string{z.Address()}, dialing(func(c net.Conn) net.Conn {
		connections.Add(1)
		return c
	}))
	k := lock(t, l, newName(), holdfast.TTL(3*time.Second))
	other := lock(t, l, newName(), holdfast.TTL(3*time.Second))
	node := "/" + newName()
	must(t, s.Guard().Write(t.Context(), k.Name(), k.Token(), []zkstore.Op{zkstore.CreateNode(node, nil)}))
	before := k.Remaining()
	for range 8 { // repeat the write, like a caller that ignores the reason
		err := s.Guard().Write(t.Context(), k.Name(), k.Token(), []zkstore.Op{zkstore.SetData(node, make([]byte, 2<<20), -1)})
		if driver.CodeOf(err) != driver.CodeInvalid {
			t.Fatalf("%v (%v), want invalid", err, driver.CodeOf(err))
		}
		time.Sleep(time.Duration(float64(before) * 0.2))
	}
	for _, k := range []*holdfast.Lock{k, other} {
		if k.Context().Err() != nil {
			t.Errorf("a lock was lost: %v", context.Cause(k.Context()))
		}
	}
	must(t, s.Guard().Write(t.Context(), k.Name(), k.Token(), []zkstore.Op{zkstore.SetData(node, make([]byte, juteMaxBuffer-2000), -1)}))
	must(t, k.Unlock())
	must(t, other.Unlock())
}

// TestSlowWriteDelaysNoHeartbeat: a guarded write over a slow link takes long, and the
// client keeps its locks.
func TestSlowWriteDelaysNoHeartbeat(t *testing.T) {
	t.Parallel()
	z := single(t)
	l, s := locker(t, []string{z.Address()}, dialing(func(c net.Conn) net.Conn { return slow{c} }))
	k := lock(t, l, newName(), holdfast.TTL(3*time.Second))
	node := "/" + newName()
	must(t, s.Guard().Write(t.Context(), k.Name(), k.Token(), []zkstore.Op{zkstore.CreateNode(node, nil)}))
	must(t, s.Guard().Write(t.Context(), k.Name(), k.Token(), []zkstore.Op{zkstore.SetData(node, make([]byte, 1<<20-2000), -1)}))
	if k.Context().Err() != nil {
		t.Errorf("the lock was lost: %v", context.Cause(k.Context()))
	}
	must(t, k.Unlock())
}

// slow is a connection with 400 KB a second.
type slow struct{ net.Conn }

func (s slow) Write(b []byte) (n int, err error) {
	for len(b) > 0 && err == nil {
		some := b[:min(len(b), 8<<10)]
		if len(some) > 2<<10 {
			time.Sleep(20 * time.Millisecond)
		}
		var m int
		m, err = s.Conn.Write(some)
		n, b = n+m, b[m:]
	}
	return n, err
}
