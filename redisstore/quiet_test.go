//go:build unix && !aix

package redisstore

import (
	"net"
	"testing"
	"time"
)

// TestQuietDetectsDataAndEnd requires that quiet is false for a connection with unread data, and for
// one that the peer has closed. It is true for an open connection without data.
func TestQuietDetectsDataAndEnd(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var conn net.Conn // of the last pair
	pair := func() (*socket, net.Conn) {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		peer, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _, _ = c.Close(), peer.Close() })
		conn = c
		s := socketOf(c)
		if !s.quiet() {
			t.Fatal("a new connection is not quiet")
		}
		return s, peer
	}
	loud := func(s *socket, what string) {
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
	loud(s, "unread data")
	s, peer = pair()
	_ = peer.Close()
	loud(s, "the end of a connection")
	// A passed deadline does not end the connection, and quiet does not wait for a reader.
	s, _ = pair()
	if err := conn.SetDeadline(time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	if !s.quiet() {
		t.Error("a connection whose deadline has passed is not quiet")
	}
	s, _ = pair()
	go func() { _, _ = conn.Read(make([]byte, 1)) }()
	answers := make(chan bool)
	go func() {
		for range 1000 { // until the reader surely reads
			time.Sleep(10 * time.Microsecond)
			s.quiet()
		}
		answers <- s.quiet()
	}()
	select {
	case quiet := <-answers:
		if !quiet {
			t.Error("a connection with a reader is not quiet")
		}
	case <-time.After(20 * time.Second):
		t.Error("quiet waits for the reader")
	}
	if (&socket{}).quiet() {
		t.Error("a socket without access is quiet")
	}
}
