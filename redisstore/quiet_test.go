//go:build unix && !aix

package redisstore

import (
	"net"
	"testing"
	"time"
)

// A connection that its peer has closed, or on which something waits to be read, is
// told from one that stands.
func TestQuiet(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	pair := func() (socket, net.Conn) {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		peer, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _, _ = c.Close(), peer.Close() })
		s := socketOf(c)
		if !s.quiet() {
			t.Fatal("a new connection is not quiet")
		}
		return s, peer
	}
	loud := func(s socket, what string) {
		t.Helper()
		for end := time.Now().Add(20 * time.Second); s.quiet(); time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%s is not noticed", what)
			}
		}
	}
	s, peer := pair()
	if _, err := peer.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	loud(s, "what can be read")
	s, peer = pair()
	_ = peer.Close()
	loud(s, "the end of a connection")
	if (socket{}).quiet() {
		t.Error("what cannot be looked at is quiet")
	}
}
