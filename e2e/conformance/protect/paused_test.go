package protect

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
)

// TestGuardRefusesPausedHolder replays the story of docs/choosing.md. Process A takes the lock and is
// stopped for longer than its TTL. B takes the lock and writes. A continues and writes. The
// guard refuses that write; without a guard A overwrites the content that B has written. On
// a store where a stopped holder keeps its lock, B is not granted.
func TestGuardRefusesPausedHolder(t *testing.T) {
	for _, kind := range []string{"file", "redis", "etcd", "zookeeper", "mysql", "postgres"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			for _, s := range systems(t, kind) {
				t.Run(s.Name, func(t *testing.T) { pausedHolder(t, s) })
			}
		})
	}
}

func pausedHolder(t *testing.T, s system) {
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	store, err := open(ctx, s.URL)
	check(t, err)
	defer store.Close(context.Background())
	promised, err := store.Guarantees(ctx)
	check(t, err)
	l, err := holdfast.New(store)
	check(t, err)
	defer l.Close(context.Background())
	name := "paused-" + strings.NewReplacer(", ", "-").Replace(s.Name)
	r, err := s.resource(ctx, store, name)
	check(t, err)
	ttl := max(3*time.Second, promised.MinTTL) // a busy machine takes a second to answer

	a := run(t, task{system: s, Mode: "hold", Lock: name, TTL: ttl})
	held, ok := strings.CutPrefix(a.line(t), "holding ")
	tokenA, err := strconv.ParseUint(held, 10, 64)
	if !ok || err != nil {
		t.Fatalf("A does not hold the lock: %q, %v", held, err)
	}
	signal := func(sig syscall.Signal) {
		check(t, a.cmd.Process.Signal(sig))
	}
	signal(syscall.SIGSTOP)
	if promised.Pause == driver.PauseKeeps {
		k, err := l.Lock(ctx, name, holdfast.TTL(ttl), holdfast.Wait(2*ttl))
		for errors.Is(err, holdfast.ErrUnavailable) { // A was stopped during a step at the store
			signal(syscall.SIGCONT)
			signal(syscall.SIGSTOP)
			k, err = l.Lock(ctx, name, holdfast.TTL(ttl), holdfast.Wait(2*ttl))
		}
		if !errors.Is(err, holdfast.ErrBusy) {
			t.Fatalf("B was granted the lock of a stopped holder that keeps it: %v, %v", k, err)
		}
		signal(syscall.SIGCONT)
		a.say(t, "guarded")
		if got := a.line(t); got != "done" {
			t.Errorf("the holder's write after its pause: %s", got)
		}
		a.say(t, "unlock")
		if got := a.line(t); got != "done" {
			t.Errorf("the holder's release after its pause: %s", got)
		}
		return
	}

	b, err := l.Lock(ctx, name, holdfast.TTL(ttl))
	if err != nil {
		t.Fatalf("B was not granted the lock of a holder that is gone: %v", err)
	}
	if b.Token() <= tokenA {
		t.Fatalf("B has token %d after %d", b.Token(), tokenA)
	}
	check(t, r.guarded(ctx, b.Token(), "B"))
	a.say(t, "guarded") // A has decided to write; then it continues
	check(t, a.cmd.Process.Signal(syscall.SIGCONT))
	if got := a.line(t); got != "stale" {
		t.Errorf("the guard answered A: %s, want stale", got)
	}
	content := func(want, when string) {
		t.Helper()
		if got, err := r.read(ctx); got != want || err != nil {
			t.Errorf("%s the content is %q, %v; want %q", when, got, err, want)
		}
	}
	content("B", "after the guarded write of A")
	a.say(t, "bare")
	if got := a.line(t); got != "done" {
		t.Errorf("A's write without a guard: %s", got)
	}
	content("A", "after the write of A without a guard")
	_ = b.Unlock() // on a slow machine the lock may be lost
}
