//go:build linux || darwin

package filestore_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/holdfast-go/holdfast/driver"
)

func TestWatch(t *testing.T) {
	dir := tempDir(t)
	a, b := open(t, dir), open(t, dir)
	for _, name := range []string{"a", ""} {
		ctx, cancel := context.WithCancel(context.Background())
		changed := make(chan struct{}, 1000)
		done := make(chan error, 1)
		go func() { done <- b.Watch(ctx, name, func() { changed <- struct{}{} }) }()
		hear := func(what string) {
			t.Helper()
			select {
			case <-changed:
			case err := <-done:
				t.Fatal(err)
			case <-time.After(patience):
				t.Fatalf("watching %q: %s not told", name, what)
			}
		}
		hear("the start")
		until := func(what string, holders, waiters int) {
			t.Helper()
			for {
				st, err := b.Inspect(patient(t), "a")
				if err != nil {
					t.Fatal(err)
				}
				if len(st.Holders) == holders && len(st.Waiters) == waiters {
					return
				}
				hear(what)
			}
		}
		drain := func() {
			for len(changed) > 0 {
				<-changed
			}
		}
		drain()
		g := take(t, a, "a", driver.Exclusive)
		hear("a grant")
		p := queue(t, a, "a", driver.Exclusive)
		until("a waiter", 1, 1)
		release(t, a, g)
		g = p.granted(t)
		until("a handoff", 1, 0)
		drain()
		release(t, a, g)
		hear("a release")
		c := start(t, "hold", dir, "a")
		c.says("granted")
		until("another process", 1, 0)
		c.kill()
		for { // nobody writes: only looking shows it
			hear("a death")
			if st, err := b.Inspect(patient(t), "a"); err == nil && len(st.Holders) == 0 {
				break
			}
		}
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("ended with %v", err)
		}
	}
}

func TestWatchFollowsANewFile(t *testing.T) {
	dir := tempDir(t)
	s := open(t, dir)
	g := take(t, s, "a", driver.Exclusive)
	ctx, cancel := context.WithCancel(context.Background())
	changed := make(chan struct{}, 1000)
	done := make(chan error, 1)
	go func() { done <- s.Watch(ctx, "a", func() { changed <- struct{}{} }) }()
	<-changed
	if err := os.Remove(s.BucketPath("a")); err != nil {
		t.Fatal(err)
	}
	<-changed
	s.Release(patient(t), g, 0)
	h := take(t, s, "a", driver.Exclusive)
	<-changed
	release(t, s, h)
	<-changed
	cancel()
	<-done
}

// TestNothingIsLeft: no goroutine and no descriptor outlives Close, whatever the
// store has been through.
func TestNothingIsLeft(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	descriptors := func() int {
		if runtime.GOOS != "linux" {
			return 0
		}
		fds, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(fds)
	}
	dir := tempDir(t)
	// The runtime's own poller comes with the first socket.
	warm := open(t, tempDir(t))
	take(t, warm, "a", driver.Exclusive)
	warm.Close(patient(t))
	before := descriptors()
	for range 3 {
		a, b := open(t, dir), open(t, dir)
		take(t, b, "b", driver.Exclusive)
		g := take(t, a, "a", driver.Exclusive)
		p, q := queue(t, b, "a", driver.Exclusive), queue(t, a, "a", driver.Unlimited)
		ctx, cancel := context.WithCancel(context.Background())
		watched := make(chan error, 1)
		go func() { watched <- a.Watch(ctx, "a", func() {}) }()
		release(t, a, g)
		release(t, b, p.granted(t))
		q.granted(t)
		last := queue(t, b, "a", driver.Exclusive)
		cancel()
		<-watched
		if err := b.Close(patient(t)); err != nil {
			t.Error(err)
		}
		last.ended(t)
		if err := a.Close(patient(t)); err != nil {
			t.Error(err)
		}
	}
	// Some that were there before may end now, and the last to end may be on its way.
	eventually(t, fmt.Sprintf("no more than the %d descriptors before", before), func() bool { return descriptors() <= before })
	left, err := os.ReadDir(filepath.Join(dir, "sessions"))
	if err != nil || len(left) > 0 {
		t.Errorf("sessions left: %v, %v", left, err)
	}
}
