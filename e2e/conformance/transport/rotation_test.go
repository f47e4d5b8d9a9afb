package transport

import (
	"errors"
	"fmt"
	"os"
	"testing"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/e2e/servertest"
	"github.com/holdfast-go/holdfast/internal/servers"
)

// TestRenewedCertificateIsShown: the client's certificate and key are replaced on the disk while a store is open. Its
// next connection shows the new certificate. While the files do not fit together, it shows the old one.
func TestRenewedCertificateIsShown(t *testing.T) {
	ca := servertest.NewAuthority(t, "ca")
	for _, s := range stores {
		cert, key := "&cert=", "&key="
		if s.name == "postgres" {
			cert, key = "&sslcert=", "&sslkey="
		}
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			server, used := ca.Sign(t, s.name), ca.Sign(t, s.name+"-used")
			install := func(from, to string) {
				t.Helper()
				b, err := os.ReadFile(from)
				must(t, err)
				must(t, os.WriteFile(to, b, 0o600))
			}
			var all []*impostor
			var front []string
			for _, a := range s.start(t) {
				i := impersonate(t, server, a, s.before)
				all, front = append(all, i), append(front, i.address)
			}
			url := s.at(s.secure, encoded, ca.File, front) + cert + used.Cert + key + used.Key
			l, err := holdfast.Open(t.Context(), url)
			must(t, err)
			defer l.Close(background)
			shows := func(want string) {
				t.Helper()
				for _, i := range all {
					i.cut()
				}
				must(t, servers.Until(t.Context(), func() error { // the first request may use a connection that has ended
					k, err := l.TryLock(t.Context(), t.Name())
					if err != nil {
						return err
					}
					return k.Unlock()
				}))
				for _, i := range all {
					must(t, servers.Until(t.Context(), func() (err error) {
						i.change(func() {
							if i.shown != want {
								err = fmt.Errorf("the client has shown the certificate %q, want %q", i.shown, want)
							}
						})
						return err
					}))
				}
			}
			shows(s.name + "-used")
			next := ca.Sign(t, s.name+"-next")
			install(next.Cert, used.Cert)
			shows(s.name + "-used")
			install(next.Key, used.Key)
			shows(s.name + "-next")
		})
	}
}

// TestPasswordOfFileIsReadAgain: a file has the password. It is replaced while a store is open, and the next connection
// logs in with the new one.
func TestPasswordOfFileIsReadAgain(t *testing.T) {
	for _, s := range stores {
		if s.name == "zookeeper" || s.name == "s3" || s.name == "etcd" {
			continue // the password owns the data, signs the requests, or is sent for a token and not for each connection
		}
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			var all []*servers.Proxy
			var front []string
			for _, a := range s.start(t) {
				p, err := servers.NewProxy(a)
				must(t, err)
				t.Cleanup(p.Close)
				all, front = append(all, p), append(front, p.Address())
			}
			url, write := s.withPasswordFile(t, front)
			l, err := holdfast.Open(t.Context(), url)
			must(t, err)
			defer l.Close(background)
			try := func() error {
				k, err := l.TryLock(t.Context(), "a")
				if err != nil {
					return err
				}
				return k.Unlock()
			}
			must(t, try())
			write("another")
			for _, p := range all {
				p.Cut()
				must(t, p.Heal())
			}
			must(t, servers.Until(t.Context(), func() error {
				if err := try(); !errors.Is(err, holdfast.ErrRefused) {
					return fmt.Errorf("with a wrong password: %v, want refused", err)
				}
				return nil
			}))
			write(password)
			must(t, servers.Until(t.Context(), try))
		})
	}
}
