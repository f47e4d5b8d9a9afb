//go:build linux || darwin

package filestore_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/filestore"
	"github.com/holdfast-go/holdfast/internal/must"
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
	must.Succeed(t, os.RemoveAll(dir))
	rising(s)
	s.Close(testContext(t))
	must.Succeed(t, os.RemoveAll(dir))
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

// TestTokensRiseBeyondTheCeiling: after a crash of the machine the tokens are ahead of the clock, and pass one ceiling
// after another.
func TestTokensRiseBeyondTheCeiling(t *testing.T) {
	s := open(t, tempDir(t))
	last := tokenAfter(t, s, 0)
	s.PretendBoot()
	for range 1000 {
		last = tokenAfter(t, s, last)
	}
}

// TestDifferentBootIDsKeepTokensNearTheClock: two processes that read different IDs of the boot, as in containers with
// files of their own below /proc, take turns. Each turn counts as a crash of the machine.
func TestDifferentBootIDsKeepTokensNearTheClock(t *testing.T) {
	const turns, ahead, step = 1000, 10_000_000, 64
	dir := tempDir(t)
	a, b := open(t, dir), open(t, dir)
	b.PretendBoot()
	last := uint64(0)
	for range turns {
		last = tokenAfter(t, b, tokenAfter(t, a, last))
	}
	if limit := time.Now().UnixMicro() + ahead + 2*turns*(step+1); int64(last) > limit {
		t.Errorf("after %d turns the token is %d, %s above its limit", turns, last, time.Duration(int64(last)-limit)*time.Microsecond)
	}
}

// TestTokensRiseAfterARestore: an older copy of the directory takes the place of the directory, or of its files while a
// store has a grant in them.
func TestTokensRiseAfterARestore(t *testing.T) {
	restore := func(t *testing.T, dir, backup string) {
		t.Helper()
		must.Succeed(t, os.RemoveAll(dir))
		must.Succeed(t, os.CopyFS(dir, os.DirFS(backup)))
	}
	t.Run("directory", func(t *testing.T) {
		root := tempDir(t)
		dir, backup := filepath.Join(root, "locks"), filepath.Join(root, "backup")
		s := open(t, dir)
		last := tokenAfter(t, s, 0)
		closeStore(t, s)
		restore(t, backup, dir)
		for range 3 {
			s = open(t, dir)
			for range 100 {
				last = tokenAfter(t, s, last)
			}
			closeStore(t, s)
			restore(t, dir, backup)
		}
	})
	t.Run("files of a live store", func(t *testing.T) {
		dir := tempDir(t)
		a, b := open(t, dir), open(t, dir)
		tokenAfter(t, a, 0)
		old, err := os.ReadFile(a.BucketPath("a"))
		must.Succeed(t, err)
		g := take(t, a, "a", driver.Exclusive)
		must.Succeed(t, os.WriteFile(a.BucketPath("a"), old, 0o600))
		if h := take(t, b, "a", driver.Exclusive); h.Token <= g.Token {
			t.Errorf("token %d after %d", h.Token, g.Token)
		}
	})
}

func closeStore(t *testing.T, s *filestore.Store) {
	t.Helper()
	must.Succeed(t, s.Close(testContext(t)))
}

// tokenAfter takes and releases the name "a". It returns the token, which must be larger than last.
func tokenAfter(t *testing.T, s *filestore.Store, last uint64) uint64 {
	t.Helper()
	g := take(t, s, "a", driver.Exclusive)
	release(t, s, g)
	if g.Token <= last {
		t.Fatalf("token %d after %d", g.Token, last)
	}
	return g.Token
}
