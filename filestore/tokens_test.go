//go:build linux || darwin

package filestore_test

import (
	"context"
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

// TestTokensRiseAfterACrash: all tokens of the last durable block may have been granted
// before the machine crashed. The entries end with their sessions.
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
