package storeurl

import (
	"context"
	"net"
	"slices"
	"time"
)

// lookupTimeout limits the resolution of one name.
const lookupTimeout = 2 * time.Second

// Advertised reports whether the addresses that servers advertise contain one of those of a URL, perhaps under another
// name of the host. All are HOST:PORT. If so, the client is on a network on which the addresses of the servers are valid.
// Otherwise the URL has the addresses of a proxy, or of a network with other addresses.
func Advertised(ctx context.Context, advertised, given []string) bool {
	given = resolve(ctx, given)
	return slices.ContainsFunc(resolve(ctx, advertised), func(a string) bool { return slices.Contains(given, a) })
}

// resolve returns addresses, and the same ones with the IP addresses of their hosts.
func resolve(ctx context.Context, addresses []string) []string {
	all := slices.Clone(addresses)
	for _, a := range addresses {
		host, port, _ := net.SplitHostPort(a)
		ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
		ips, _ := net.DefaultResolver.LookupHost(ctx, host)
		cancel()
		for _, ip := range ips {
			all = append(all, net.JoinHostPort(ip, port))
		}
	}
	return all
}
