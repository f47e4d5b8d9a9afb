//go:build linux || darwin

package filestore_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/filestore"
)

func TestTokensSurviveReopening(t *testing.T) {
	dir := filepath.Join(tempDir(t), "locks")
	var last uint64
	rising := func(s *filestore.Store) {
		t.Helper()
		for range 3 {
			g := take(t, s, "a", driver.Exclusive)
			if g.Token <= last || g.Token >= driver.MaxToken {
				t.Fatalf("token %d after %d", g.Token, last)
			}
			last = g.Token
			release(t, s, g)
		}
	}
	for range 3 {
		s := open(t, dir)
		rising(s)
		s.Close(testContext(t))
	}
	s := open(t, dir)
	rising(s)
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	rising(s)
	s.Close(testContext(t))
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	rising(open(t, dir))
}

// TestTokensRiseAfterACrash: before the machine crashed, stores may have granted all tokens below the
// ceiling. After the crash tokens continue above it, and the old entries are gone.
func TestTokensRiseAfterACrash(t *testing.T) {
	dir := tempDir(t)
	a, b := open(t, dir), open(t, dir)
	g := take(t, a, "a", driver.Exclusive)
	b.PretendBoot()
	_, err := b.Acquire(testContext(t), request("a", driver.Exclusive))
	wantCode(t, b, err, driver.CodeBusy)
	release(t, a, g)
	if h := take(t, b, "a", driver.Exclusive); h.Token < g.Token+1<<16-1 {
		t.Errorf("token %d after %d: not above the ceiling", h.Token, g.Token)
	}
}

// TestTokensWaitForTheDisk: a store grants no token above the ceiling that is on the disk, and none while
// the disk fails. No store relies on a ceiling that is not on the disk.
func TestTokensWaitForTheDisk(t *testing.T) {
	dir := tempDir(t)
	failing, s := open(t, dir), open(t, dir)
	durable := uint64(0)
	for range 3 {
		failing.OnSync(func(uint64) error { return errors.New("the disk fails") })
		if g, err := failing.Acquire(testContext(t), request("a", driver.Exclusive)); err == nil {
			t.Fatalf("token %d while the disk fails", g.Token)
		}
		s.OnSync(func(ceiling uint64) error {
			durable = ceiling
			return nil
		})
		g := take(t, s, "a", driver.Exclusive)
		if g.Token > durable {
			t.Errorf("token %d, and the ceiling on the disk is %d", g.Token, durable)
		}
		release(t, s, g)
		s.PretendBoot()
		failing.PretendBoot()
	}
}

func TestTokensRiseBeyondTheCeiling(t *testing.T) {
	s := open(t, tempDir(t))
	var last uint64
	for range 1<<16 + 10 {
		g := take0(t, s)
		if g.Token <= last {
			t.Fatalf("token %d after %d", g.Token, last)
		}
		last = g.Token
	}
}

func take0(t *testing.T, s *filestore.Store) driver.Grant {
	ctx := context.Background()
	g, err := s.Acquire(ctx, driver.Request{ID: "x", Name: "a", Limit: 1, From: &requester{}})
	if err == nil {
		err = s.Release(ctx, g, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	return g
}
