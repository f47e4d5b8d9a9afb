package storeurl

import (
	"crypto/tls"
	"fmt"
	"net"
	"net/netip"
	"strings"
)

// Protection is how a store's connections are protected from the network.
type Protection struct {
	// Hosts are the servers: HOST:PORT, HOST, or the path of a Unix socket.
	Hosts []string
	// Verified: the connections use TLS, and the client verifies the server.
	Verified bool
	// Password: the client presents a password.
	Password bool
	// How describes how to get Verified.
	How string
}

// Verifies reports whether a client with the configuration verifies its servers. Without TLS it is nil.
func Verifies(t *tls.Config) bool {
	return t != nil && (!t.InsecureSkipVerify || t.VerifyPeerCertificate != nil || t.VerifyConnection != nil)
}

// Check returns a warning if a password goes to another machine without TLS to a verified server. If TLS is
// required, every connection without it is an error, unless it is that of a Unix socket. A server at a loopback
// address may lead a client to other machines, as a sentinel and a list of members do.
func (p Protection) Check(required bool) (warning string, err error) {
	for _, host := range p.Hosts {
		socket := strings.HasPrefix(host, "/") || strings.HasPrefix(host, "@")
		switch {
		case p.Verified || socket:
		case required:
			const refusal = "require_tls=true, and the connections to %s are not by TLS to a verified server: %s"
			return "", fmt.Errorf(refusal, host, p.How)
		case p.Password && !loopback(host):
			return fmt.Sprintf("the password for %s is not protected by TLS to a verified server: %s", host, p.How), nil
		}
	}
	return "", nil
}

// loopback reports whether a host is this machine.
func loopback(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.Trim(host, "[]")
	if a, err := netip.ParseAddr(host); err == nil {
		return a.Unmap().IsLoopback()
	}
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	return host == "localhost" || strings.HasSuffix(host, ".localhost")
}

// Protect takes require_tls out, and checks c.
func (p *Params) Protect(c Protection) (warning string) {
	warning, err := c.Check(p.Choose("require_tls", "false", "true"))
	if err != nil {
		p.fail(err)
	}
	return warning
}
