package zkstore

import (
	"errors"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

func TestURLSetsOptions(t *testing.T) {
	empty := filepath.Join(t.TempDir(), "empty.pem")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for raw, want := range map[string]string{
		"zk://h":                           "zk://h:2181",
		"zk://h1,h2:2182/a/b/":             "zk://h1:2181,h2:2182/a/b",
		"zk://h/a?layout=mutex&tick=3s":    "zk://h:2181/a (layout mutex)",
		"zk://me:secret@h/a?acl=creator":   "zk://h:2181/a",
		"zk://h/a?tls=true&grace=1s":       "zk://h:2181/a",
		"zk:h":                             "!no host",
		"zk:///a":                          "!no host",
		"zk://h/a#b":                       "!%23",
		"zk://h//a":                        "!empty part",
		"zk://h/zookeeper/a":               "!the server's own",
		"zk://h/a?layout=both":             "!layout \"both\": give readwrite, mutex or semaphore",
		"zk://h/a?tick=fast":               "!tick \"fast\": give a duration",
		"zk://h/a?tick=1ms":                "!from 10ms to 1m0s is allowed",
		"zk://h/a?grace=-1s":               "!from 0 to 1h",
		"zk://h/a?acl=world":               "!give everyone or creator",
		"zk://h/a?acl=creator":             "!CreatorOnly without a user",
		"zk://me@h/a":                      "!a user without a password",
		"zk://me:@h/a":                     "!password is empty",
		"zk://h/a?password=secret":         "!unknown parameter \"password\"",
		"zk://h/a?ca=x":                    "!give tls=true",
		"zk://h/a?tls=true&ca=" + empty:    "!holds no certificate",
		"zk://h1,,h2":                      "!host or host:port",
		"zk://me:secret@h/a?tick=nonsense": "!give a duration",
	} {
		u, err := url.Parse(raw)
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		s, err := openURL(t.Context(), u, "")
		if err == nil {
			got = s.String()
			if err := s.Close(t.Context()); err != nil {
				t.Error(err)
			}
		} else {
			got = "!" + err.Error()
			if driver.CodeOf(err) != driver.CodeInvalid {
				t.Errorf("%s: %v", raw, driver.CodeOf(err))
			}
		}
		if refused := strings.HasPrefix(want, "!"); refused != (err != nil) || !strings.Contains(got, strings.TrimPrefix(want, "!")) || !refused && got != want {
			t.Errorf("%s: %q, want %q", raw, got, want)
		}
		if strings.Contains(got, "secret") {
			t.Errorf("%s: the message shows a password: %s", raw, got)
		}
	}
}

func TestOptionsAreChecked(t *testing.T) {
	for want, o := range map[string][]Option{
		"namespace":          {Namespace(strings.Repeat("x", 129))},
		"root \"locks\"":     {Root("locks")},
		"user or the pass":   {Digest("", "x")},
		"layout \"\"":        {WithLayout("")},
		"tick 1h0m0s":        {Tick(time.Hour)},
		"break grace 2h0m0s": {BreakGrace(2 * time.Hour)},
	} {
		if _, err := Open(t.Context(), "zk://h", o...); driver.CodeOf(err) != driver.CodeInvalid || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	if _, err := Open(t.Context(), "zk://"); driver.CodeOf(err) != driver.CodeInvalid {
		t.Error(err)
	}
	// Different namespaces and names have different keys, whatever characters they have.
	seen := map[string]string{}
	for _, ns := range []string{"", "a", "@a", "a/b", "%", "x"} {
		s, err := Open(t.Context(), "zk://h", Namespace(ns), Root("/r"))
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"a", "@a", "@", "a/b", "/", "@x", "x"} {
			dir := s.dir(name)
			if other, twice := seen[dir]; twice {
				t.Errorf("the directory %s is that of %q in %q and of %s", dir, name, ns, other)
			}
			seen[dir] = name + " in " + ns
			if s.home != "/r" && strings.HasPrefix(dir, "/r/"+guardDir+"/") {
				t.Errorf("%s is in the directory of the guards", dir)
			}
		}
		if err := s.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

func TestGuaranteesAreDeclared(t *testing.T) {
	for _, l := range []Layout{ReadWrite, Mutex, Semaphore} {
		g, err := Declared(WithLayout(l))
		if err != nil || g.MinTTL != 2*time.Second || g.MaxTTL != 32*time.Second || g.Notice <= 0 {
			t.Errorf("%s: %+v, %v", l, g, err)
		}
	}
}

// TestRefusedConnectionsAreReported: where every server refuses the connection, the first request returns that
// reason, and does not try until its deadline.
func TestRefusedConnectionsAreReported(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	s, err := Open(t.Context(), "zk://"+l.Addr().String()+","+l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close(t.Context())
	// The context has no deadline.
	if _, err := s.Guarantees(t.Context()); driver.CodeOf(err) != driver.CodeUnavailable || !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("%v, want unavailable: connection refused", err)
	}
}
