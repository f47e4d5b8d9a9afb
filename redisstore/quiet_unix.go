//go:build unix && !aix

package redisstore

import (
	"crypto/tls"
	"net"
	"syscall"
)

const canTellQuiet = true

// socket is what is below a connection, or nothing.
type socket struct {
	raw   syscall.RawConn
	look  func(fd uintptr) // made once: a closure for each look would be an allocation
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
	s.look = func(fd uintptr) {
		_, _, err := syscall.Recvfrom(int(fd), s.first[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		s.still = err == syscall.EAGAIN || err == syscall.EWOULDBLOCK
	}
	return s
}

// quiet reports whether a connection stands with nothing to read: one that its
// server has closed, or that has sent what no request asked for, is not. One goroutine at a
// time may call it.
func (s *socket) quiet() bool {
	if s.raw == nil {
		return false
	}
	s.still = false
	// Control, unlike Read, does not wait for a reader, and minds no deadline that the
	// last request has left behind.
	err := s.raw.Control(s.look)
	return err == nil && s.still
}
