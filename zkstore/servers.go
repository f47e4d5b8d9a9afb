package zkstore

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/holdfast-go/holdfast/internal/storeurl"
	"github.com/holdfast-go/holdfast/zkstore/internal/zk"
)

// configNode has the ensemble's list of its servers. By default each client may read it.
const configNode = "/zookeeper/config"

// followServers reads and watches the list of servers: see "Which servers a client uses" in the package comment.
func (ss *session) followServers() {
	ctx, cancel := context.WithTimeout(ss.s.calls.Ctx, maintainTimeout)
	defer cancel()
	list := zk.Get(configNode, true)
	if ss.zk.Do(ctx, list) != nil {
		ss.relist.Store(true)
		return
	}
	listed, used := clientAddresses(string(list.Data)), *ss.s.following.Load()
	if !storeurl.Advertised(ctx, listed, used) {
		return
	}
	next := slices.Clone(ss.s.servers)
	for _, server := range listed {
		if !slices.Contains(next, server) {
			next = append(next, server)
		}
	}
	ss.s.following.Store(&next)
}

// clientAddresses returns the addresses for clients in the data of configNode. Its lines are
//
//	server.1=HOST:PORT:PORT:participant;HOST:PORT
//
// The second host may be 0.0.0.0. Without a semicolon the ensemble does not know the address.
func clientAddresses(config string) (all []string) {
	for line := range strings.Lines(config) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		server, client, _ := strings.Cut(value, ";")
		host, port, err := net.SplitHostPort(client)
		if !strings.HasPrefix(name, "server.") || err != nil {
			continue
		}
		if a, err := netip.ParseAddr(host); err == nil && a.IsUnspecified() {
			if six, ok := strings.CutPrefix(server, "["); ok {
				host, _, _ = strings.Cut(six, "]")
			} else {
				host, _, _ = strings.Cut(server, ":")
			}
		}
		all = append(all, net.JoinHostPort(host, port))
	}
	return all
}
