package servertest

import (
	"net"
	"sync"
	"sync/atomic"
	"testing"
)

// Attempts listens at an address, as net.Listen does, and ends each connection at once, as a balancer without servers does.
// It returns the address. end frees it, and returns how many connections there were.
func Attempts(t testing.TB, address string) (at string, end func() int) {
	t.Helper()
	l, err := net.Listen("tcp", address)
	Check(t, err)
	var n atomic.Int32
	var accepting sync.WaitGroup
	accepting.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			n.Add(1)
			_ = c.Close()
		}
	})
	return l.Addr().String(), func() int {
		_ = l.Close()
		accepting.Wait()
		return int(n.Load())
	}
}
