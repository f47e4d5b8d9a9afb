package service

import (
	"context"
	"errors"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/must"
)

// testSticky: a client keeps its lock after Unlock, and locks again with the next token of the same grant. A waiter of
// another client gets the lock although the time of the option is not over. Close, and the death of the keeper, free it.
func testSticky(t *testing.T, s store, url string) {
	l, other := open(t, url), open(t, url)
	g, err := l.Guarantees(t.Context())
	must.Succeed(t, err)
	hour := holdfast.Sticky(time.Hour)
	if !g.Reserves || g.Visible != driver.VisibleAll || g.Wake == driver.WakePoll {
		if _, err := l.TryLock(t.Context(), "sticky", hour); !errors.Is(err, holdfast.ErrUnsupported) {
			t.Errorf("%v on a store that cannot recall a lock", err)
		}
		return
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	lock := func(l *holdfast.Locker) *holdfast.Lock {
		t.Helper()
		k, err := l.Lock(ctx, "sticky", hour)
		must.Succeed(t, err)
		return k
	}
	busy := func(l *holdfast.Locker) {
		t.Helper()
		if k, err := l.TryLock(ctx, "sticky"); !errors.Is(err, holdfast.ErrBusy) {
			t.Fatalf("TryLock of a lock that is kept: %v, %v", k, err)
		}
	}

	// Each lock gets the next token of the grant. A store may reserve fewer tokens than requested, so it may take
	// some grants.
	k := lock(l)
	for row, n := 0, 0; row < 40; n++ {
		last := k.Token()
		must.Succeed(t, k.Unlock())
		k, err = l.TryLock(ctx, "sticky", hour)
		must.Succeed(t, err)
		if row++; k.Token() != last+1 {
			row = 0
		}
		if k.Token() <= last || n > 1000 {
			t.Fatalf("token %d after %d, in lock %d", k.Token(), last, n)
		}
	}
	busy(other)
	must.Succeed(t, k.Unlock())
	busy(other)

	// The waiter comes while the lock is kept.
	got := lock(other)
	if got.Token() <= k.Token() {
		t.Errorf("token %d after %d", got.Token(), k.Token())
	}
	busy(l)
	must.Succeed(t, got.Unlock()) // kept by the other client
	k = lock(l)                   // and recalled
	must.Succeed(t, k.Unlock())

	// The waiter comes while the lock is held again.
	k = lock(l)
	done := make(chan error, 1)
	go func() {
		got, err := other.Lock(ctx, "sticky")
		if err == nil {
			err = got.Unlock()
		}
		done <- err
	}()
	select {
	case <-k.Wanted():
	case <-ctx.Done():
		t.Fatal("the waiter is not seen")
	}
	must.Succeed(t, k.Unlock())
	must.Succeed(t, <-done)

	if strings.HasPrefix(g.Kind, "mysql") || strings.HasPrefix(g.Kind, "postgres") { // only session recipes reserve and push
		t.Run("TryLock needs its connection", func(t *testing.T) {
			separator := "?"
			if strings.Contains(url, "?") {
				separator = "&"
			}
			one := open(t, url+separator+"max_conns=1")
			for _, name := range []string{"sticky-one", "sticky-two", "sticky-one"} {
				k, err := one.TryLock(ctx, name, hour)
				must.Succeed(t, err)
				must.Succeed(t, k.Unlock())
			}
		})
	}
	t.Run("the keeper closes", func(t *testing.T) {
		w := worker{Role: "keep", URL: url, Name: "sticky-closes", TTL: 2 * time.Minute}
		p := w.start(t, nil)
		token := next(t, p.lines, "keeps").Token
		p.signal(syscall.SIGTERM)
		p.wait(t)
		if r := next(t, p.lines, "closed"); r.Err != "" {
			t.Errorf("Close: %s", r.Err)
		}
		k, err := other.Lock(ctx, w.Name, holdfast.Wait(w.TTL/2))
		must.Succeed(t, err)
		if k.Token() <= token {
			t.Errorf("token %d after %d", k.Token(), token)
		}
		must.Succeed(t, k.Unlock())
	})
	t.Run("the keeper is killed", func(t *testing.T) {
		w := worker{Role: "keep", URL: url, Name: "sticky-killed", TTL: s.ttl}
		p := w.start(t, nil)
		token := next(t, p.lines, "keeps").Token
		p.signal(syscall.SIGKILL)
		k, err := other.Lock(ctx, w.Name)
		must.Succeed(t, err)
		if k.Token() <= token {
			t.Errorf("token %d after %d", k.Token(), token)
		}
		must.Succeed(t, k.Unlock())
	})
}
