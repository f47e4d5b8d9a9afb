//go:build unix && !aix

package redisstore

import (
	"crypto/tls"
	"net"
	"syscall"
)

const canTellQuiet = true

// socket is what is below a connection, or nothing.
type socket struct{ raw syscall.RawConn }

func socketOf(conn net.Conn) socket {
	if t, ok := conn.(*tls.Conn); ok {
		conn = t.NetConn()
	}
	if c, ok := conn.(syscall.Conn); ok {
		if raw, err := c.SyscallConn(); err == nil {
			return socket{raw}
		}
	}
	return socket{}
}

// quiet tells whether a connection stands with nothing to read: one that its
// server has closed, or that says what nobody asked for, is not.
func (s socket) quiet() bool {
	if s.raw == nil {
		return false
	}
	still := false
	// Control, unlike Read, waits for nobody who reads, and minds no deadline that the
	// last request has left behind.
	err := s.raw.Control(func(fd uintptr) {
		var b [1]byte
		_, _, err := syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		still = err == syscall.EAGAIN || err == syscall.EWOULDBLOCK
	})
	return err == nil && still
}
