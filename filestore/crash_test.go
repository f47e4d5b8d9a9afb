//go:build linux || darwin

package filestore_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/filestore"
	"github.com/holdfast-go/holdfast/internal/must"
)

// TestKilledHolderWakesWaiter: the holder's process is killed. The waiters of this test have no
// fallback, so only the end of the connection can wake them.
func TestKilledHolderWakesWaiter(t *testing.T) {
	dir := tempDir(t)
	c := start(t, "hold", dir, "a")
	c.says("granted")
	a, b := open(t, dir), open(t, dir)
	p, q := silent(t, a, "a", driver.Exclusive), silent(t, b, "a", driver.Exclusive)
	eventually(t, "the waiters are watched", func() bool { return a.Links() > 0 && b.Watches(a) })
	c.kill()
	g := p.granted(t)
	release(t, a, g)
	q.granted(t)
}

func TestOneKilledHolderOfSeveralWakesWaiter(t *testing.T) {
	dir := tempDir(t)
	a, b := open(t, dir), open(t, dir)
	c := start(t, "hold", dir, "a")
	c.says("granted")
	d := start(t, "hold", dir, "b")
	d.says("granted")
	pa, pb := silent(t, a, "a", driver.Exclusive), silent(t, b, "b", driver.Exclusive)
	qa := silent(t, b, "a", driver.Unlimited)
	c.kill()
	release(t, a, pa.granted(t))
	qa.granted(t)
	d.kill()
	pb.granted(t)
}

// TestHeadWatchesEveryHolder: a waiter becomes the first one while other clients hold permits. The
// death of any of these clients must wake it.
func TestHeadWatchesEveryHolder(t *testing.T) {
	dir := tempDir(t)
	a, b, d := open(t, dir), open(t, dir), open(t, dir)
	c := start(t, "permit", dir, "a")
	c.says("granted")
	g := take(t, a, "a", 2)
	p, q := silent(t, b, "a", 2), silent(t, d, "a", 2)
	release(t, a, g)
	p.granted(t)
	c.kill()
	q.granted(t)
}

func TestKilledWaiterIsPassedOver(t *testing.T) {
	dir := tempDir(t)
	a, b := open(t, dir), open(t, dir)
	g := take(t, a, "a", driver.Exclusive)
	c := start(t, "hold", dir, "a")
	c.says("queued")
	p := silent(t, b, "a", driver.Exclusive)
	c.kill()
	release(t, a, g)
	p.granted(t)
}

// TestGrantToKilledProcessGoesToNextWaiter: a killed process gets a grant before another process
// detects its death. The next waiter then gets the lock.
func TestGrantToKilledProcessGoesToNextWaiter(t *testing.T) {
	dir := tempDir(t)
	a, b := open(t, dir), open(t, dir)
	g := take(t, a, "a", driver.Exclusive)
	c := start(t, "hold", dir, "a")
	c.says("queued")
	p := silent(t, b, "a", driver.Exclusive)
	c.signal(syscall.SIGSTOP)
	release(t, a, g)
	if st, err := a.Inspect(testContext(t), "a"); err != nil || len(st.Holders) != 1 || st.Holders[0].PID != c.pid() {
		t.Fatalf("not granted to the child: %+v, %v", st, err)
	}
	c.kill()
	p.granted(t)
}

// TestChildrenDoNotKeepTheLock: the holder dies, and a process that it has started still runs. The
// lock is free.
func TestChildrenDoNotKeepTheLock(t *testing.T) {
	dir := tempDir(t)
	c := start(t, "parent", dir, "a")
	pid, err := strconv.Atoi(c.says("child"))
	must.Succeed(t, err)
	defer syscall.Kill(pid, syscall.SIGKILL)
	c.says("granted")
	s := open(t, dir)
	p := queue(t, s, "a", driver.Exclusive)
	c.kill()
	p.granted(t)
	if err := syscall.Kill(pid, 0); err != nil {
		t.Errorf("the child has ended as well, so the test proves nothing: %v", err)
	}
}

// TestGrantToADeadWaiterIsRemoved: a process releases the lock, and grants it to a dead waiter. There
// is no other waiter, so the granting process removes the grant.
func TestGrantToADeadWaiterIsRemoved(t *testing.T) {
	dir := tempDir(t)
	s := open(t, dir)
	g := take(t, s, "a", driver.Exclusive)
	c := start(t, "hold", dir, "a")
	c.says("queued")
	c.kill()
	release(t, s, g)
	eventually(t, "the dead waiter's files and entries to be removed", func() bool { return len(leftovers(t, dir)) == 2 }) // the store's own session
}

func TestKilledHolderDoesNotBlockTry(t *testing.T) {
	dir := tempDir(t)
	s := open(t, dir)
	for range 5 {
		c := start(t, "hold", dir, "a")
		c.says("granted")
		_, err := s.Acquire(testContext(t), request("a", driver.Exclusive))
		wantCode(t, s, err, driver.CodeBusy)
		c.kill()
		if st, err := s.Inspect(testContext(t), "a"); err != nil || len(st.Holders) > 0 {
			t.Errorf("Inspect shows a dead holder: %+v, %v", st, err)
		}
		release(t, s, take(t, s, "a", driver.Exclusive))
	}
}

// TestNewSessionRemovesDeadSessions requires that a new session removes the entries and the files of
// all dead sessions.
func TestNewSessionRemovesDeadSessions(t *testing.T) {
	dir := tempDir(t)
	for i := range 3 {
		c := start(t, "hold", dir, fmt.Sprint("name", i))
		c.says("granted")
		c.kill()
	}
	s := open(t, dir)
	take(t, s, "other", driver.Exclusive)
	own := filepath.Base(s.SessionPath())
	eventually(t, "the dead sessions' files to be removed", func() bool {
		files, err := os.ReadDir(filepath.Join(dir, "sessions"))
		return err == nil && len(files) == 2 && files[0].Name() == own && files[1].Name() == own+".sock"
	})
}

// TestSweepSparesNewSessions: stores make sessions while other stores remove dead ones. A session whose
// file is not locked yet looks dead. Still no store loses its session.
func TestSweepSparesNewSessions(t *testing.T) {
	dir := tempDir(t)
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			for range 100 {
				s, err := filestore.Open(context.Background(), dir)
				if err != nil {
					t.Error(err)
					return
				}
				g, err := s.Acquire(context.Background(), request(fmt.Sprint("a", i), driver.Exclusive))
				if err != nil {
					t.Error(err)
					return
				}
				if _, err := os.Stat(s.SessionPath()); err != nil {
					t.Error(err)
				}
				must.Report(t, s.Release(context.Background(), g, 0))
				if _, err := os.Stat(s.SessionPath()); err != nil {
					t.Error(err)
				}
				s.Close(context.Background())
			}
		})
	}
	wg.Wait()
}

// eventually waits for a change that another process or goroutine makes without an event.
func eventually(t testing.TB, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(testTimeout); !f(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("timed out waiting until: %s", what)
		}
	}
}

// TestKilledWriterLeavesReadableBucket: a process is killed at a random moment while it writes. Other
// processes can read the bucket, and no entry of the killed process blocks them.
func TestKilledWriterLeavesReadableBucket(t *testing.T) {
	dir := tempDir(t)
	s := open(t, dir)
	for range 12 {
		c := start(t, "hammer", dir, "a")
		c.says("hammering")
		time.Sleep(rand.N(5 * time.Millisecond)) // a random moment is the purpose of the test
		c.signal(syscall.SIGKILL)
		c.kill()
		raw, err := os.ReadFile(s.BucketPath("a"))
		must.Succeed(t, err)
		if n, err := filestore.Entries(raw); err != nil || n < 100 {
			t.Fatalf("%d entries, %v", n, err)
		}
		release(t, s, take(t, s, "a", driver.Exclusive))
	}
}

// TestKilledWorkersExclude: the test kills processes that compete for one name, at random moments.
// Between a holder's begin and end no other holder begins, unless the test killed the first one.
// Tokens rise. The next waiter gets the lock although waiters have no fallback.
func TestKilledWorkersExclude(t *testing.T) {
	dir := tempDir(t)
	killed := map[int]bool{}
	workers := make([]*child, 4)
	for i := range workers {
		workers[i] = start(t, "work", dir, "a")
		workers[i].says("working")
	}
	size := func() int64 {
		info, err := os.Stat(filepath.Join(dir, "log"))
		must.Succeed(t, err)
		return info.Size()
	}
	for range 20 {
		i := rand.N(len(workers))
		time.Sleep(rand.N(20 * time.Millisecond)) // a random moment is the purpose of the test
		killed[workers[i].pid()] = true
		workers[i].kill()
		at := size()
		eventually(t, "the other workers to continue", func() bool { return size() > at+1000 })
		workers[i] = start(t, "work", dir, "a")
		workers[i].says("working")
	}
	for _, w := range workers {
		w.finish()
	}
	log, err := os.ReadFile(filepath.Join(dir, "log"))
	must.Succeed(t, err)
	var standing, last uint64
	var by, grants int
	for line := range strings.Lines(string(log)) {
		f := strings.Fields(line)
		what := f[0]
		token, err1 := strconv.ParseUint(f[1], 10, 64)
		pid, err2 := strconv.Atoi(f[2])
		if err := errors.Join(err1, err2); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		switch {
		case what == "begin" && standing != 0 && !killed[by]:
			t.Fatalf("pid %d holds token %d while pid %d begins with %d", by, standing, pid, token)
		case what == "begin" && token <= last:
			t.Fatalf("token %d after %d", token, last)
		case what == "begin":
			standing, last, by, grants = token, token, pid, grants+1
		case token != standing || pid != by:
			t.Fatalf("pid %d ends token %d while pid %d holds %d", pid, token, by, standing)
		default:
			standing = 0
		}
	}
	if grants < 100 {
		t.Errorf("only %d grants, want 100 or more", grants)
	}
	s := open(t, dir)
	if st, err := s.Inspect(testContext(t), "a"); err != nil || len(st.Holders)+len(st.Waiters) > 0 {
		t.Errorf("left behind: %+v, %v", st, err)
	}
}
