package redis

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/servers"
	"github.com/holdfast-go/holdfast/redisstore"
)

// refused requires that a request is refused with the given text, and that no goroutine and no
// connection remain.
func refused(t *testing.T, r *servers.Redis, url, says string, prepare ...func(*redisstore.Store)) {
	t.Helper()
	before := goleak.IgnoreCurrent()
	s, err := redisstore.Open(t.Context(), url)
	check(t, err)
	for _, p := range prepare {
		p(s)
	}
	for _, wait := range []bool{false, true} {
		q := request(t.Name(), driver.Exclusive, long)
		q.Wait = wait
		_, err = s.Acquire(t.Context(), q)
		if err == nil || s.Classify(err) != driver.CodeRefused || !strings.Contains(err.Error(), says) {
			t.Errorf("wait %t: %v (%v), want refused, with %q", wait, err, s.Classify(err), says)
		}
		if err != nil && strings.Contains(err.Error(), "wrong-secret") {
			t.Errorf("the password is shown: %v", err)
		}
	}
	if err := s.Close(t.Context()); err != nil {
		t.Error(err)
	}
	// Goleak itself retries for less than half a second.
	eventually(t, "no goroutine remains", func() bool { return goleak.Find(before) == nil })
	eventually(t, "no connection remains but that of this command", func() bool {
		list, _ := do(t, r, "CLIENT", "LIST", "TYPE", "normal").(string)
		return strings.Count(list, "\n") <= 1
	})
}

func TestWrongPasswordIsRefused(t *testing.T) {
	r := start(t, "--requirepass", "secret")
	refused(t, r, "redis://:wrong-secret@"+r.Address(), "WRONGPASS")
	refused(t, r, "redis://"+r.Address(), "NOAUTH")
	// A Locker reports the same error.
	l, err := holdfast.Open(t.Context(), "redis://:wrong-secret@"+r.Address())
	check(t, err)
	defer l.Close(t.Context())
	if _, err := l.TryLock(t.Context(), "x"); err == nil || strings.Contains(err.Error(), "wrong-secret") || !strings.Contains(err.Error(), "refused") {
		t.Error(err)
	}
}

func TestReadOnlyReplicaIsRefused(t *testing.T) {
	g := replicas(t)
	refused(t, g.Replicas[0], "redis://"+g.Replicas[0].Address(), "replica")
}

func TestMissingRightIsRefused(t *testing.T) {
	r := start(t)
	do(t, r, "ACL", "SETUSER", "weak", "on", ">secret", "~*", "&*", "+@all", "-eval", "-evalsha")
	refused(t, r, "redis://weak:secret@"+r.Address(), "NOPERM")
	do(t, r, "ACL", "SETUSER", "narrow", "on", ">secret", "~other:*", "&*", "+@all")
	refused(t, r, "redis://narrow:secret@"+r.Address(), "holdfast:*")
	do(t, r, "ACL", "SETUSER", "hasty", "on", ">secret", "~*", "&*", "+@all", "-wait")
	refused(t, r, "redis://hasty:secret@"+r.Address()+"?replicas=1", "needs WAIT")
	for _, right := range []string{"set", "pexpire", "time", "del"} { // that a script needs, the last only to end a lock
		restrict(t, []*servers.Redis{r})
		do(t, r, "ACL", "SETUSER", "app", "-"+right)
		refused(t, r, "redis://app:app-secret@"+r.Address(), "docs/security.md")
	}
	// The rights in the documentation are enough.
	restrict(t, []*servers.Redis{r}, "info", "scan", "wait")
	s := open(t, "redis://app:app-secret@"+r.Address())
	g := must(t, s, request("x", driver.Exclusive, long))
	w := queue(t, open(t, "redis://app:app-secret@"+r.Address()), request("x", 3, long))
	check(t, s.Release(t.Context(), g, 0))
	w.Granted()
	for _, err := range s.List(t.Context(), "") {
		if err != nil {
			t.Error(err)
		}
	}
	if guarantees, err := s.Guarantees(t.Context()); err != nil || len(guarantees.Notes) == 0 {
		t.Errorf("%+v, %v", guarantees, err)
	}
}

// TestUnsafeMemorySettingsAreRefused: a server that evicts keys is refused, and so is one without free memory.
func TestUnsafeMemorySettingsAreRefused(t *testing.T) {
	r := start(t)
	do(t, r, "CONFIG", "SET", "maxmemory", "1")
	refused(t, r, "redis://"+r.Address(), "maxmemory")
	do(t, r, "CONFIG", "SET", "maxmemory", "0")
	for _, policy := range []string{"allkeys-lru", "volatile-ttl"} {
		do(t, r, "CONFIG", "SET", "maxmemory-policy", policy)
		refused(t, r, "redis://"+r.Address(), policy)
	}
	s := open(t, "redis://"+r.Address()+"?insist=true")
	g, err := s.Guarantees(t.Context())
	if err != nil || !strings.Contains(fmt.Sprint(g.EarlyEnd), "volatile-ttl") {
		t.Errorf("%+v, %v", g, err)
	}
	must(t, s, request("x", driver.Exclusive, long))
}

func TestClusterNodeNeedsClusterURL(t *testing.T) {
	r := start(t, "--cluster-enabled", "yes", "--cluster-port", freePort(t))
	refused(t, r, "redis://"+r.Address(), "redis+cluster://")
}

func freePort(t *testing.T) string {
	t.Helper()
	p, err := servers.FreePort()
	check(t, err)
	return fmt.Sprint(p)
}

// TestBadInputIsInvalid: package server of redisstore tests the errors of URLs.
func TestBadInputIsInvalid(t *testing.T) {
	if _, err := redisstore.Open(t.Context(), "redis://h", redisstore.Namespace("\xff")); driver.CodeOf(err) != driver.CodeInvalid {
		t.Error(err)
	}
	if _, err := redisstore.NewOver(nil); driver.CodeOf(err) != driver.CodeInvalid {
		t.Error(err)
	}
	for _, c := range []goredis.UniversalClient{nil, (*goredis.Client)(nil), goredis.NewRing(&goredis.RingOptions{})} {
		if _, err := redisstore.New(c); driver.CodeOf(err) != driver.CodeInvalid {
			t.Errorf("%T: %v", c, err)
		}
	}
	// No server listens at that address, so a request would fail with another code.
	s := open(t, "redis://:secret@127.0.0.1:1")
	if text := fmt.Sprintf("%v %+v %#v %s", s, s, s, s.String()); strings.Contains(text, "secret") {
		t.Errorf("the password is shown: %s", text)
	}
	for what, change := range map[string]func(*driver.Request){
		"id":    func(r *driver.Request) { r.ID = "a b" },
		"name":  func(r *driver.Request) { r.Name = "" },
		"NUL":   func(r *driver.Request) { r.Name = "a\x00b" },
		"limit": func(r *driver.Request) { r.Limit = 0 },
		"TTL":   func(r *driver.Request) { r.TTL = time.Microsecond },
		"long":  func(r *driver.Request) { r.TTL = 25 * time.Hour },
	} {
		q := request("x", driver.Exclusive, long)
		change(&q)
		if _, err := s.Acquire(t.Context(), q); s.Classify(err) != driver.CodeInvalid {
			t.Errorf("%s: %v", what, err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if _, err := s.Acquire(ctx, request("x", driver.Exclusive, long)); s.Classify(err) != driver.CodeUnavailable {
		t.Errorf("without a server: %v", err)
	}
}
