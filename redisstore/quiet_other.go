//go:build !unix || aix

package redisstore

import "net"

const detectsQuiet = false

type socket struct{}

func socketOf(net.Conn) *socket { return nil }

func (*socket) quiet() bool { return false }
