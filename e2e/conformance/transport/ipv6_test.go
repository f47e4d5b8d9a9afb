package transport

import (
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
)

// TestListOfIPv6AddressesIsRead: a URL has several servers with IPv6 addresses, or one beside an IPv4 address. The first
// one is down, so the client uses the second one.
func TestListOfIPv6AddressesIsRead(t *testing.T) {
	if l, err := net.Listen("tcp", "[::1]:0"); err != nil {
		t.Skipf("this machine has no IPv6: %v", err)
	} else {
		l.Close()
	}
	for _, s := range stores {
		if !slices.Contains([]string{"etcd", "zookeeper", "nats", "postgres"}, s.name) {
			continue
		}
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			at := forward(t, s.start(t)[0])
			for _, down := range []string{"[::1]:1", "127.0.0.1:1"} {
				url := strings.Replace(s.clear, "FIRST", down+","+at, 1)
				url = s.at(url, encoded, "", []string{""})
				if err := tryLock(t, url); err != nil {
					t.Errorf("%s: %v", strings.ReplaceAll(url, encoded, "..."), err)
				}
			}
		})
	}
}

// forward passes the connections of an IPv6 address on to a server.
func forward(t *testing.T, server string) (address string) {
	t.Helper()
	l, err := net.Listen("tcp", "[::1]:0")
	must(t, err)
	var all sync.WaitGroup
	all.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() {
				defer client.Close()
				up, err := net.Dial("tcp", server)
				if err != nil {
					return
				}
				defer up.Close()
				all.Go(func() {
					_, _ = io.Copy(up, client)
					up.Close()
				})
				_, _ = io.Copy(client, up)
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		all.Wait()
	})
	return l.Addr().String()
}
