package cli

import (
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestAcceptedConnectionsHaveClientTimeout: the kernel gives up a client that does not acknowledge after clientTimeout,
// also on the connections that the listener accepts.
func TestAcceptedConnectionsHaveClientTimeout(t *testing.T) {
	l, err := listen(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	client, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	accepted, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer accepted.Close()
	raw, err := accepted.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	got := 0
	if e := raw.Control(func(fd uintptr) {
		got, err = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT)
	}); e != nil || err != nil {
		t.Fatal(e, err)
	}
	if time.Duration(got)*time.Millisecond != clientTimeout {
		t.Errorf("%d ms, want %s", got, clientTimeout)
	}
}
