//go:build linux || darwin

package servers_test

import (
	"bufio"
	"fmt"
	"net"
	"testing"

	"github.com/holdfast-go/holdfast/internal/must"
	"github.com/holdfast-go/holdfast/internal/servers"
)

// nameServer starts a server that answers each line with its name.
func nameServer(t *testing.T, name string) (address string) {
	t.Helper()
	return lineServer(t, func(string) string { return name })
}

func TestLeadMovesNewConnectionsOnly(t *testing.T) {
	r, err := servers.NewProxy(nameServer(t, "first"))
	must.Succeed(t, err)
	connect := func() (net.Conn, func() string) {
		t.Helper()
		c, err := net.Dial("tcp", r.Address())
		must.Succeed(t, err)
		answers := bufio.NewReader(c)
		return c, func() string {
			t.Helper()
			fmt.Fprintln(c)
			line, err := answers.ReadString('\n')
			must.Succeed(t, err)
			return line
		}
	}
	old, requestOld := connect()
	defer old.Close()
	if got := requestOld(); got != "first\n" {
		t.Errorf("the first connection leads to %q", got)
	}
	r.Lead(nameServer(t, "second"))
	next, requestNext := connect()
	defer next.Close()
	if got := requestNext(); got != "second\n" {
		t.Errorf("a new connection leads to %q", got)
	}
	if got := requestOld(); got != "first\n" {
		t.Errorf("the established connection leads to %q", got)
	}
	r.Close()
	if _, err := old.Read(make([]byte, 1)); err == nil {
		t.Error("a connection outlives its proxy")
	}
	if c, err := net.Dial("tcp", r.Address()); err == nil {
		c.Close()
		t.Error("a closed proxy accepts connections")
	}
}
