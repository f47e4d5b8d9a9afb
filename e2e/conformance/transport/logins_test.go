package transport

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/e2e/servertest"
	"github.com/holdfast-go/holdfast/internal/servers"
)

// withPasswordFile returns a URL whose password is that of a file, and a function that writes the file.
func (s store) withPasswordFile(t *testing.T, addresses []string) (url string, write func(string)) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "password")
	write = func(text string) { must(t, os.WriteFile(file, []byte(text), 0o600)) }
	write(password + "\n")
	form, parameter := strings.Replace(s.clear, ":SECRET@", "@", 1), "?password_file="+file
	if strings.Contains(form, "?") {
		form = strings.Replace(form, "?", parameter+"&", 1)
	} else {
		form += parameter
	}
	return s.at(form, "", "", addresses), write
}

// TestRefusedLoginsAreFew: a file has the password of a process that has a holder, a waiter and a candidate for an
// election, and repeats each request. The file gets a wrong password. The process logs in no more often than
// docs/security.md says. Soon after the file has the right password, its requests succeed.
func TestRefusedLoginsAreFew(t *testing.T) {
	for _, s := range stores {
		if s.name == "zookeeper" || s.name == "s3" || s.name == "etcd" {
			continue // the password owns the data, signs the requests, or is sent for a token and not for each connection
		}
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			var all []*servers.Proxy
			var front []string
			back := s.start(t)
			for _, a := range back {
				p, err := servers.NewProxy(a)
				must(t, err)
				t.Cleanup(p.Close)
				all, front = append(all, p), append(front, p.Address())
			}
			other, err := holdfast.Open(t.Context(), s.at(s.clear, encoded, "", back))
			must(t, err)
			defer other.Close(background)
			_, err = other.Lock(t.Context(), "busy")
			must(t, err)
			url, write := s.withPasswordFile(t, front)
			l, err := holdfast.Open(t.Context(), url)
			must(t, err)
			defer l.Close(background)
			servertest.RefusedLogins{
				Row: s.name, Client: l, Busy: "busy",
				Refuse: func() {
					write("another")
					for _, p := range all {
						p.Cut()
						must(t, p.Heal())
					}
				},
				Accept: func() { write(password) },
				Count: func() (most int) {
					for _, p := range all {
						most = max(most, p.Accepted())
					}
					return most
				},
			}.Test(t)
		})
	}
}
