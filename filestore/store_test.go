//go:build linux || darwin

package filestore_test

import (
	"errors"
	"os"
	"testing"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/filestore"
)

func TestCloseRemovesSession(t *testing.T) {
	dir := tempDir(t)
	a, b := open(t, dir), open(t, dir)
	b.NoFallback()
	r := request("a", driver.Exclusive)
	if _, err := a.Acquire(testContext(t), r); err != nil {
		t.Fatal(err)
	}
	own := queue(t, a, "a", driver.Exclusive)
	other := queue(t, b, "a", driver.Exclusive)
	path := a.SessionPath()
	if err := a.Close(testContext(t)); err != nil {
		t.Fatal(err)
	}
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
		if err := os.Remove(s.SessionPath() + ".sock"); err != nil {
			t.Fatal(err)
		}
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
	if err := <-done; err != nil {
		t.Error(err)
	}
}
