//go:build linux || darwin

package filestore_test

import (
	"errors"
	"os"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/filestore"
	"github.com/holdfast-go/holdfast/internal/must"
)

func TestCloseRemovesSession(t *testing.T) {
	dir := tempDir(t)
	a, b := open(t, dir), open(t, dir)
	r := request("a", driver.Exclusive)
	if _, err := a.Acquire(testContext(t), r); err != nil {
		t.Fatal(err)
	}
	own := queue(t, a, "a", driver.Exclusive)
	other := silent(t, b, "a", driver.Exclusive)
	path := a.SessionPath()
	must.Succeed(t, a.Close(testContext(t)))
	wantLost(t, r.From, driver.CauseClosed)
	wantCode(t, a, own.ended(t), driver.CodeClosed)
	other.granted(t)
	for _, p := range []string{path, path + ".sock"} {
		if _, err := os.Lstat(p); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is left: %v", p, err)
		}
	}
}

func TestInspectionMakesNoSession(t *testing.T) {
	s := open(t, tempDir(t))
	if _, err := s.Inspect(testContext(t), "a"); err != nil {
		t.Fatal(err)
	}
	for _, err := range s.List(testContext(t), "") {
		t.Fatalf("List yields a name or an error: %v", err)
	}
	if p := s.SessionPath(); p != "" {
		t.Errorf("the store has made session %s", p)
	}
	if _, err := os.Stat(s.BucketPath("a")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the store has made a bucket: %v", err)
	}
}

// TestWaitersWorkWithoutSockets: the test removes all sockets, so that the stores can send no message and
// watch no session. The waiters check by themselves.
func TestWaitersWorkWithoutSockets(t *testing.T) {
	dir := tempDir(t)
	a, b := open(t, dir), open(t, dir)
	g := take(t, a, "a", driver.Exclusive)
	take(t, b, "b", driver.Exclusive)
	for _, s := range []*filestore.Store{a, b} {
		must.Succeed(t, os.Remove(s.SessionPath()+".sock"))
	}
	p := queue(t, b, "a", driver.Exclusive)
	if a.Links()+b.Links() > 0 {
		t.Fatal("the stores are connected")
	}
	release(t, a, g)
	p.granted(t)
	// A request to end still reaches the holder.
	done := make(chan error, 1)
	go func() { done <- a.Break(testContext(t), "a", p.g.Token) }()
	wantLost(t, p.r.From, driver.CauseTaken)
	release(t, b, p.g)
	must.Report(t, <-done)
}

// TestKeptGrantNeedsNoProcess: a grant that is kept for a while outlives its store, and is not tied to a boot of the
// machine. Break ends it, or its time. Then nothing is left of it.
func TestKeptGrantNeedsNoProcess(t *testing.T) {
	dir := tempDir(t)
	a, b := open(t, dir), open(t, dir)
	keep := func(s *filestore.Store) driver.Grant {
		g := take(t, s, "a", driver.Exclusive)
		must.Succeed(t, s.Release(testContext(t), g, time.Hour))
		return g
	}
	g := keep(a)
	a.Close(testContext(t))
	b.PretendBoot()
	must.Succeed(t, b.Undo(testContext(t), driver.Request{ID: g.ID, Name: g.Name}))
	_, err := b.Acquire(testContext(t), request("a", driver.Exclusive))
	wantCode(t, b, err, driver.CodeBusy)
	st, err := b.Inspect(testContext(t), "a")
	if err != nil || len(st.Holders) != 1 || !st.Holders[0].Kept || st.Holders[0].Token != g.Token || st.Holders[0].TTL > time.Hour || st.Holders[0].TTL < time.Minute {
		t.Fatalf("%+v, %v", st, err)
	}
	w := queue(t, b, "a", driver.Exclusive)
	must.Succeed(t, b.Break(testContext(t), "a", g.Token))
	release(t, b, w.granted(t))

	g = keep(b)
	b.PretendNow(time.Now().Add(time.Hour + time.Minute).UnixMicro())
	release(t, b, take(t, b, "a", driver.Exclusive))
	raw, err := os.ReadFile(b.BucketPath("a"))
	if n, err2 := filestore.Entries(raw); err != nil || err2 != nil || n != 0 {
		t.Errorf("%d entries are left, %v, %v", n, err, err2)
	}
}

// TestWaiterBehindKeptGrant: waiters without checks of their own are granted the name when the holder, which lives on, has
// kept its grant, and the time has passed.
func TestWaiterBehindKeptGrant(t *testing.T) {
	dir := tempDir(t)
	a, b, c := open(t, dir), open(t, dir), open(t, dir)
	g := take(t, a, "a", driver.Exclusive)
	first, second := silent(t, b, "a", driver.Exclusive), silent(t, c, "a", driver.Exclusive)
	began := time.Now()
	must.Succeed(t, a.Release(testContext(t), g, 100*time.Millisecond))
	next := first.granted(t)
	if stood := time.Since(began); stood < 90*time.Millisecond {
		t.Errorf("stood for %s", stood)
	}
	release(t, b, next)
	second.granted(t)
}
