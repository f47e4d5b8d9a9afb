//go:build unix && !aix

package redisstore

import (
	"crypto/tls"
	"net"
	"syscall"
)

const detectsQuiet = true

// socket is the socket of a connection. raw is nil if the connection gives no access to it.
type socket struct {
	raw   syscall.RawConn
	peek  func(fd uintptr) // made once, because a new closure for each call would be an allocation
	still bool
	first [1]byte
}

func socketOf(conn net.Conn) *socket {
	s := &socket{}
	if t, ok := conn.(*tls.Conn); ok {
		conn = t.NetConn()
	}
	if c, ok := conn.(syscall.Conn); ok {
		if raw, err := c.SyscallConn(); err == nil {
			s.raw = raw
		}
	}
	s.peek = func(fd uintptr) {
		_, _, err := syscall.Recvfrom(int(fd), s.first[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		s.still = err == syscall.EAGAIN || err == syscall.EWOULDBLOCK
	}
	return s
}

// quiet reports whether a connection is open and has nothing to read. It returns false if the
// server has closed the connection, or has sent data that no request expects. Only one goroutine
// at a time may call quiet.
func (s *socket) quiet() bool {
	if s.raw == nil {
		return false
	}
	s.still = false
	// Control, unlike Read, does not wait for a reader, and ignores the deadline of an earlier
	// request.
	err := s.raw.Control(s.peek)
	return err == nil && s.still
}
