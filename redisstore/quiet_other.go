//go:build !unix || aix

package redisstore

import "net"

// On this system the client cannot check a connection as quiet_unix.go does. So it opens no
// connection of the type alone, and never calls quiet.
const detectsQuiet = false

type socket struct{}

func socketOf(net.Conn) *socket { return nil }

func (*socket) quiet() bool { return false }
