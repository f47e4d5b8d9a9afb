package service

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/must"
)

// TestServiceOnEveryStore runs the life of a service, with a server for each store.
func TestServiceOnEveryStore(t *testing.T) {
	for _, s := range stores {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			srv, url := s.start(t)
			t.Run("close", func(t *testing.T) { testClose(t, url) })
			t.Run("wanted", func(t *testing.T) { testWanted(t, url) })
			t.Run("sticky", func(t *testing.T) { testSticky(t, s, url) })
			t.Run("drain", func(t *testing.T) { testDrain(t, s, url, nil) })
			if srv != nil {
				t.Run("outage", func(t *testing.T) {
					testCloseDuringAnOutage(t, srv, url)
					testDrain(t, s, url, srv)
				})
			}
			t.Run("examples", func(t *testing.T) { testExamples(t, srv, url) })
			t.Run("election", func(t *testing.T) { testElection(t, s, srv, url) })
		})
	}
}

// testClose: SIGTERM ends the service's context, and the service passes that context to
// Close. The next holder does not wait for the TTL.
func testClose(t *testing.T, url string) {
	w := worker{Role: "close", URL: url, Name: "close", TTL: 2 * time.Minute}
	p := w.start(t, nil)
	token := next(t, p.lines, "holds").Token
	p.signal(syscall.SIGTERM)
	p.wait(t)
	if r := next(t, p.lines, "closed"); r.Err != "" {
		t.Errorf("Close: %s", r.Err)
	}
	k, err := open(t, url).Lock(t.Context(), "close", holdfast.Wait(w.TTL/2))
	must.Succeed(t, err)
	if k.Token() <= token {
		t.Errorf("token %d after %d", k.Token(), token)
	}
	must.Report(t, k.Unlock())
}

// testWanted: a waiter in another client closes the channel of Wanted, if the store shows waiters. One in the same
// client does so on every store.
func testWanted(t *testing.T, url string) {
	l, other := open(t, url), open(t, url)
	g, err := l.Guarantees(t.Context())
	must.Succeed(t, err)
	waits := map[string]*holdfast.Locker{"wanted-here": l}
	if g.Visible == driver.VisibleAll && g.Scope != driver.ScopeProcess {
		waits["wanted-there"] = other
	}
	for name, from := range waits {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		k, err := l.Lock(ctx, name)
		must.Succeed(t, err)
		done := make(chan struct{})
		go func() {
			defer close(done)
			if k, err := from.Lock(ctx, name); err != nil {
				t.Error(err)
			} else if err := k.Unlock(); err != nil {
				t.Error(err)
			}
		}()
		select {
		case <-k.Wanted():
		case <-ctx.Done():
			t.Errorf("%s: a client waits, and the channel of Wanted is open", name)
		}
		must.Report(t, k.Unlock())
		<-done
		cancel()
	}
}

// testCloseDuringAnOutage: the server is away. Close returns, and its error reports that.
func testCloseDuringAnOutage(t *testing.T, srv server, url string) {
	w := worker{Role: "close", URL: url, Name: "close-outage", TTL: 2 * time.Minute}
	p := w.start(t, nil)
	next(t, p.lines, "holds")
	srv.Kill()
	p.signal(syscall.SIGTERM)
	p.wait(t)
	if r := next(t, p.lines, "closed"); r.Err == "" {
		t.Error("Close reports nothing of a lock that it could not release")
	}
	restart(t, srv)
}

// testDrain: after SIGTERM a service works on for two TTLs, and no other client is granted
// the name in this time. If srv is given, the test uses a long TTL and restarts the server
// while the service works.
//
// A lock expires if the machine stands still for a TTL. The test is then repeated with a
// longer TTL.
func testDrain(t *testing.T, s store, url string, srv server) {
	for ttl := s.ttl; ttl <= 4*s.ttl; ttl *= 2 {
		if !drains(t, url, srv, worker{Role: "drain", URL: url, Name: fmt.Sprint("drain-", ttl), TTL: ttl, Drain: 2 * ttl}) {
			t.Logf("the lock with a TTL of %s has expired", ttl)
			continue
		}
		return
	}
	t.Error("the lock expires while its holder drains")
}

// drains runs the test of draining once. It returns false if the lock has expired.
func drains(t *testing.T, url string, srv server, w worker) bool {
	if srv != nil {
		w.Name += "-outage"
		w.TTL, w.Drain = time.Minute, time.Second // after the outage
	}
	p := w.start(t, nil)
	held := next(t, p.lines, "holds")
	other := open(t, url)
	g, err := other.Guarantees(t.Context())
	must.Succeed(t, err)
	type granted struct {
		at    time.Duration
		token uint64
		err   error
	}
	grant := make(chan granted, 1)
	go func() {
		ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
		defer cancel()
		for { // like Do, a service tries again after an outage
			k, err := other.Lock(ctx, w.Name)
			if errors.Is(err, holdfast.ErrUnavailable) && ctx.Err() == nil {
				continue
			}
			got := granted{at: monotonic(), err: err}
			if err == nil {
				got.token = k.Token()
				_ = k.Unlock()
			}
			grant <- got
			return
		}
	}()
	p.signal(syscall.SIGTERM)
	next(t, p.lines, "drains")
	if srv != nil {
		srv.Kill()
		restart(t, srv)
	}
	drained := next(t, p.lines, "drained", "lost")
	p.wait(t)
	got := <-grant
	switch {
	case got.err != nil:
		t.Error(got.err)
	case drained.Kind == "lost" && srv == nil && strings.Contains(drained.Err, "("+string(holdfast.CauseExpired)+")"):
		return false
	case drained.Kind == "lost":
		// A grant may end only if the store declares that a restart of the server ends it.
		if srv == nil || !strings.Contains(strings.Join(g.EarlyEnd, " "), "server") {
			t.Errorf("lost while it drained: %s", drained.Err)
		}
	case drained.Token != held.Token:
		t.Errorf("token %d, and %d while it drains", held.Token, drained.Token)
	case got.at < drained.At || got.token <= held.Token:
		t.Errorf("another client was granted token %d %s before the holder of token %d had drained", got.token, drained.At-got.at, held.Token)
	}
	return true
}
