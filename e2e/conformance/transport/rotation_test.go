package transport

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

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
			install(t, next.Cert, used.Cert)
			shows(s.name + "-used")
			install(t, next.Key, used.Key)
			shows(s.name + "-next")
		})
	}
}

// install replaces a file by another one.
func install(t *testing.T, from, to string) {
	t.Helper()
	b, err := os.ReadFile(from)
	must(t, err)
	must(t, os.WriteFile(to, b, 0o600))
}

// TestRenewedAuthorityIsFollowed: the file of the authority is replaced while a store is open. From then on the store
// accepts servers of the new authority, and no others.
func TestRenewedAuthorityIsFollowed(t *testing.T) {
	old, next := servertest.NewAuthority(t, "old"), servertest.NewAuthority(t, "next")
	for _, s := range stores {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			used, ca := old.Sign(t, s.name+"-server"), filepath.Join(t.TempDir(), "ca.pem")
			install(t, old.File, ca)
			var all []*impostor
			var front []string
			for _, a := range s.start(t) {
				i := impersonate(t, used, a, s.before)
				all, front = append(all, i), append(front, i.address)
			}
			l, err := holdfast.Open(t.Context(), s.at(s.secure, encoded, ca, front))
			must(t, err)
			defer l.Close(background)
			verified := func(want bool) {
				t.Helper()
				for _, i := range all {
					i.cut()
				}
				began := time.Now()
				must(t, servers.Until(t.Context(), func() error { // a request may still use the connection that has ended
					ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
					defer cancel()
					k, err := l.TryLock(ctx, t.Name())
					if err == nil {
						err = k.Unlock()
					}
					switch {
					case want:
						return err
					case err == nil:
						return errors.New("a server of another authority is accepted")
					case !strings.Contains(err.Error(), "unknown authority"):
						return err
					}
					return nil
				}))
				t.Logf("%s after the change", time.Since(began).Round(time.Millisecond))
			}
			verified(true)
			install(t, next.File, ca)
			verified(false)
			renewed := next.Sign(t, s.name+"-renewed")
			install(t, renewed.Cert, used.Cert)
			install(t, renewed.Key, used.Key)
			verified(true)
		})
	}
}
