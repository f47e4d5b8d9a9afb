//go:build linux || darwin

package main_test

import (
	"net"
	"strings"
	"syscall"
	"testing"
)

// TestSignalEndsRequests: a subcommand waits for a server that does not answer, or runs for a long
// time. A signal ends the subcommand. The exit status is that of the signal, and no message calls
// the store unavailable.
func TestSignalEndsRequests(t *testing.T) {
	for name, c := range map[string]struct {
		args   []string
		silent bool   // the server never answers
		prints string // the subcommand prints this on stderr when it runs
	}{
		"stores": {[]string{"stores", "redis://"}, true, ""},
		"init":   {[]string{"init", "mysql://u@"}, true, ""},
		"check":  {[]string{"check", "--local", "file", "--workers", "2", "--duration", "1h", "--round", "10m"}, false, "1s of 1h"},
		"lab":    {[]string{"lab", "counted-permits", "--duration", "1h"}, false, "1s of "},
	} {
		for _, s := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
			t.Run(name+", "+s.String(), func(t *testing.T) {
				w := newSandbox(t)
				args := c.args
				reached := make(chan struct{})
				if c.silent {
					l, err := net.Listen("tcp", "127.0.0.1:0")
					must(t, err)
					defer l.Close()
					go func() {
						defer close(reached)
						if conn, err := l.Accept(); err == nil {
							t.Cleanup(func() { conn.Close() })
						}
					}()
					args = []string{args[0], args[1] + l.Addr().String() + "/x"}
					if name == "stores" {
						args[1] = strings.TrimSuffix(args[1], "/x")
					}
				}
				p := w.start(args...)
				if c.silent {
					<-reached
				} else {
					p.stderr.expect(c.prints)
				}
				p.signal(s)
				if got, want := p.status(), 128+int(s); got != want || strings.Contains(p.stderr.all(), "unavailable") {
					t.Errorf("status %d, want %d: %s", got, want, p.stderr.all())
				}
				if out := p.stdout.all(); out != "" {
					t.Errorf("an interrupted subcommand printed a result: %s", out)
				}
			})
		}
	}
}

// TestCheckOfUnreachableStoreEndsAtOnce requires that a check ends at once if its store is
// unreachable, refuses, or cannot use the directory of --dir.
func TestCheckOfUnreachableStoreEndsAtOnce(t *testing.T) {
	w := newSandbox(t)
	plain := w.file("plain", "")
	for url, want := range map[string]int{"redis://127.0.0.1:1": 69, "file://" + plain: 78} {
		r := w.run("check", "--store", url, "--duration", "1h").expectStatus(t, want)
		if strings.Contains(r.stderr, "--help") || r.stdout != "" {
			t.Errorf("%s: %s%s", url, r.stdout, r.stderr)
		}
	}
	r := w.run("check", "--local", "file", "--dir", plain, "--duration", "1s").expectStatus(t, 64)
	contains(t, r.stderr, "--dir", plain)
}
