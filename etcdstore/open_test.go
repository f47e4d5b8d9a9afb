package etcdstore

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/must"
)

func TestBadURLsAreRefused(t *testing.T) {
	empty := filepath.Join(t.TempDir(), "empty.pem")
	must.Succeed(t, os.WriteFile(empty, nil, 0o600))
	for url, says := range map[string]string{
		"http://h":                             "etcd or etcds",
		"etcd:///locks":                        "no host",
		"etcd://a,,b":                          "empty entry",
		"etcd://h/p#frag":                      "%23",
		"etcd://secret-user@h":                 "password",
		"etcd://:secret@h":                     "name and a password",
		"etcd://h?ca=x":                        "scheme etcds",
		"etcd://h?prefix=x":                    `"prefix"`,
		"etcds://h?ca=" + empty:                "no certificate",
		"etcd://u:secret@h/\x7f":               "not a URL",
		"etcd://h/" + strings.Repeat("x", 600): "at most 512",
	} {
		s, err := Open(context.Background(), url)
		if err == nil {
			_ = s.Close(context.Background())
		}
		if err == nil || driver.CodeOf(err) != driver.CodeInvalid || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "secret@") {
			t.Errorf("%q: %v, want an error of code invalid that contains %q", url, err, says)
		}
	}
}

// TestNoPasswordInErrors: an unescaped character splits the password, so that a piece of it is
// parsed as another part of the URL. An error does not quote that piece.
func TestNoPasswordInErrors(t *testing.T) {
	for _, url := range []string{
		"etcd://u:hush/2@h", "etcd://u:hush?2@h", "etcd://u:hush#2@h", "etcd://u:%hush@h", "etcd://u:1?hush@h",
	} {
		s, err := Open(context.Background(), url)
		if err == nil {
			_ = s.Close(context.Background())
			continue
		}
		if driver.CodeOf(err) != driver.CodeInvalid || strings.Contains(err.Error(), "hu") {
			t.Errorf("%q: %v", url, err)
		}
	}
}

func TestURLsSetOptions(t *testing.T) {
	for url, want := range map[string]struct {
		endpoints []string
		prefix    string
	}{
		"etcd://h":         {[]string{"http://h:2379"}, ""},
		"etcd://a,b:1/p":   {[]string{"http://a:2379", "http://b:1"}, "p/"},
		"etcd://a:2,b:1/p": {[]string{"http://a:2", "http://b:1"}, "p/"},
		"etcd://[::1]":     {[]string{"http://[::1]:2379"}, ""},
		"etcd://[::1]:2":   {[]string{"http://[::1]:2"}, ""},
		"etcds://h/locks/": {[]string{"https://h:2379"}, "locks/"},
		"etcd://h//abs/":   {[]string{"http://h:2379"}, "/abs/"},
	} {
		s, err := Open(context.Background(), url)
		if err != nil {
			t.Errorf("%q: %v", url, err)
			continue
		}
		if got := s.client.Endpoints(); strings.Join(got, " ") != strings.Join(want.endpoints, " ") || s.lay.prefix != want.prefix {
			t.Errorf("%q: %v, prefix %q", url, got, s.lay.prefix)
		}
		if err := s.Close(context.Background()); err != nil {
			t.Errorf("%q: %v", url, err)
		}
	}
}

func TestOptionsAreChecked(t *testing.T) {
	if _, err := New(nil); driver.CodeOf(err) != driver.CodeInvalid {
		t.Errorf("New(nil): %v", err)
	}
	for _, o := range []Option{Namespace(strings.Repeat("n", 200)), Namespace("a\x00b"), Namespace("\xff"), Prefix("a\x00")} {
		if s, err := Open(context.Background(), "etcd://h", o); driver.CodeOf(err) != driver.CodeInvalid {
			t.Errorf("an invalid option: store %v, error %v, want code invalid", s, err)
		}
	}
}

// TestRefusedConnectionIsReported: where no member accepts a connection, the first request returns that reason.
// The client library would try again, and report a passed deadline.
func TestRefusedConnectionIsReported(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must.Succeed(t, err)
	host := l.Addr().String()
	l.Close()
	s, err := Open(t.Context(), "etcd://"+host)
	must.Succeed(t, err)
	defer s.Close(t.Context())
	if _, err := s.Guarantees(t.Context()); driver.CodeOf(err) != driver.CodeUnavailable || !strings.Contains(err.Error(), "refused") {
		t.Errorf("%v, want unavailable: connection refused", err)
	}
}
