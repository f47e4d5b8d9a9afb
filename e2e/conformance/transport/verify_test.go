package transport

import (
	"crypto/x509"
	"errors"
	"net"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/e2e/servertest"
	"github.com/holdfast-go/holdfast/internal/servers"
)

// byName is a name of this machine.
const byName = "localhost"

// TestServerThatCannotBeVerifiedGetsNothing: a server in the middle with a certificate that the client can verify
// gets a login and a request, and the lock is granted. With any other certificate it gets nothing, and the
// error says why.
func TestServerThatCannotBeVerifiedGetsNothing(t *testing.T) {
	ca := servertest.NewAuthority(t, "ca")
	for _, s := range stores {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			addresses := s.start(t)
			sign := func(name string, changes ...func(*x509.Certificate)) servers.TLS {
				return ca.Sign(t, s.name+"-"+name, changes...) // the stores run side by side, and a name is that of a file
			}
			for _, c := range []struct {
				certificate string
				files       servers.TLS
				says        string
			}{
				{"verified", sign("verified"), ""},
				{"verified by name", sign("named", func(c *x509.Certificate) { c.IPAddresses, c.DNSNames = nil, []string{byName} }), ""},
				{"of another authority", servertest.NewAuthority(t, "other").Sign(t, "other"), "certificate signed by unknown authority"},
				{"for another name", sign("elsewhere", func(c *x509.Certificate) { c.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 9)} }),
					`certificate is valid for 127\.0\.0\.9, not 127\.0\.0\.1`},
				{"expired", sign("expired", func(c *x509.Certificate) {
					c.NotBefore, c.NotAfter = time.Now().Add(-2*time.Hour), time.Now().Add(-time.Hour)
				}), "certificate has expired or is not yet valid"},
				{"self-signed", servertest.SelfSigned(t), "certificate signed by unknown authority"},
			} {
				t.Run(c.certificate, func(t *testing.T) {
					t.Parallel() // a client retries until its request timeout
					var all []*impostor
					var front []string
					for _, a := range addresses {
						i := impersonate(t, c.files, a, s.before)
						all = append(all, i)
						if c.certificate == "verified by name" {
							i.address = strings.Replace(i.address, "127.0.0.1", byName, 1)
						}
						front = append(front, i.address)
					}
					err := tryLock(t, s.at(s.secure, encoded, ca.File, front))
					for _, i := range all {
						i.change(func() {
							if i.clients == 0 || (len(i.got) > 0) != (c.says == "") || i.fault != nil {
								t.Errorf("%d clients, %v, and they have sent %q", i.clients, i.fault, i.got)
							}
						})
					}
					switch {
					case c.says == "" && err == nil:
					case c.says == "" || !errors.Is(err, holdfast.ErrUnavailable) || !regexp.MustCompile(c.says).MatchString(err.Error()):
						t.Errorf("%v, want unavailable and %q", err, c.says)
					}
				})
			}
		})
	}
}

// tryLock opens a store and acquires a lock.
func tryLock(t *testing.T, url string, o ...holdfast.Option) error {
	t.Helper()
	l, err := holdfast.Open(t.Context(), url, o...)
	if err != nil {
		return err
	}
	defer l.Close(background)
	k, err := l.TryLock(t.Context(), t.Name())
	if err == nil {
		err = k.Unlock()
	}
	return err
}
