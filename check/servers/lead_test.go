//go:build linux || darwin

package servers_test

import (
	"bufio"
	"fmt"
	"net"
	"testing"

	"github.com/holdfast-go/holdfast/check/servers"
)

// naming is a server that answers each line with its name.
func naming(t *testing.T, name string) (address string) {
	t.Helper()
	return answering(t, func(string) string { return name })
}

func TestLeadMovesNewConnectionsOnly(t *testing.T) {
	r, err := servers.NewProxy(naming(t, "first"))
	if err != nil {
		t.Fatal(err)
	}
	connect := func() (net.Conn, func() string) {
		t.Helper()
		c, err := net.Dial("tcp", r.Address())
		if err != nil {
			t.Fatal(err)
		}
		answers := bufio.NewReader(c)
		return c, func() string {
			t.Helper()
			fmt.Fprintln(c)
			line, err := answers.ReadString('\n')
			if err != nil {
				t.Fatal(err)
			}
			return line
		}
	}
	old, talkOld := connect()
	defer old.Close()
	if got := talkOld(); got != "first\n" {
		t.Errorf("the first connection leads to %q", got)
	}
	r.Lead(naming(t, "second"))
	next, talkNext := connect()
	defer next.Close()
	if got := talkNext(); got != "second\n" {
		t.Errorf("a new connection leads to %q", got)
	}
	if got := talkOld(); got != "first\n" {
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
