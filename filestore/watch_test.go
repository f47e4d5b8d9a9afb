//go:build linux || darwin

package filestore_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/must"
)

// TestWatchReportsOtherProcesses: a watch reports a grant of another process, and its death, to which nothing
// is written.
func TestWatchReportsOtherProcesses(t *testing.T) {
	dir := tempDir(t)
	b := open(t, dir)
	for _, name := range []string{"a", ""} {
		ctx, cancel := context.WithCancel(context.Background())
		changed := make(chan struct{}, 1000)
		done := make(chan error, 1)
		go func() { done <- b.Watch(ctx, name, func() { changed <- struct{}{} }) }()
		notified := func(what string) {
			t.Helper()
			select {
			case <-changed:
			case err := <-done:
				t.Fatal(err)
			case <-time.After(testTimeout):
				t.Fatalf("watching %q: %s not notified", name, what)
			}
		}
		notified("the start")
		c := start(t, "hold", dir, "a")
		c.says("granted")
		notified("a grant")
		c.kill()
		for { // no store writes to the bucket, so only a check of the watching store detects the death
			notified("a death")
			if st, err := b.Inspect(testContext(t), "a"); err == nil && len(st.Holders) == 0 {
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
	must.Succeed(t, os.Remove(s.BucketPath("a")))
	<-changed
	s.Release(testContext(t), g, 0)
	h := take(t, s, "a", driver.Exclusive)
	<-changed
	release(t, s, h)
	<-changed
	cancel()
	<-done
}

// TestCloseLeavesNothing: after Close, no goroutine, descriptor or session file is left.
func TestCloseLeavesNothing(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	dir := tempDir(t)
	// The first socket starts the runtime's own poller.
	warm := open(t, tempDir(t))
	take(t, warm, "a", driver.Exclusive)
	warm.Close(testContext(t))
	before := descriptors(t)
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
		must.Report(t, b.Close(testContext(t)))
		last.ended(t)
		must.Report(t, a.Close(testContext(t)))
	}
	// The number may be lower than before, and the last descriptors may close a moment after Close.
	eventually(t, fmt.Sprintf("at most %d descriptors are open, as before", before), func() bool { return descriptors(t) <= before })
	left, err := os.ReadDir(filepath.Join(dir, "sessions"))
	if err != nil || len(left) > 0 {
		t.Errorf("sessions left: %v, %v", left, err)
	}
}
