//go:build linux || darwin

package filestore_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/filestore"
	"github.com/holdfast-go/holdfast/internal/must"
)

func TestBreakReportsAStoppedHolder(t *testing.T) {
	dir := tempDir(t)
	c := start(t, "release", dir, "a")
	c.says("granted")
	c.signal(syscall.SIGSTOP)
	s := open(t, dir)
	eventually(t, "the note is shown", func() bool {
		st, err := s.Inspect(testContext(t), "a")
		return err == nil && len(st.Holders) == 1 && st.Holders[0].Note == "stopped"
	})
	st, err := s.Inspect(testContext(t), "a")
	must.Succeed(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	broken := make(chan error, 1)
	go func() { broken <- s.Break(ctx, "a", st.Holders[0].Token) }()
	eventually(t, "the request to end has arrived", func() bool {
		st, err := s.Inspect(testContext(t), "a")
		return err == nil && len(st.Holders) == 1 && strings.Contains(st.Holders[0].Note, "end requested")
	})
	cancel()
	err = <-broken
	if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("pid %d on ", c.pid())) || !strings.Contains(err.Error(), "is stopped") || !errors.Is(err, context.Canceled) {
		t.Errorf("breaking a stopped holder's lock: %v", err)
	}
	_, err = s.Acquire(testContext(t), request("a", driver.Exclusive))
	wantCode(t, s, err, driver.CodeBusy)
	p := queue(t, s, "a", driver.Exclusive)
	c.signal(syscall.SIGCONT)
	c.says("lost " + string(driver.CauseTaken))
	p.granted(t)
}

func TestBreakEndsADeadHoldersGrant(t *testing.T) {
	dir := tempDir(t)
	c := start(t, "hold", dir, "a")
	c.says("granted")
	s := open(t, dir)
	st, err := s.Inspect(testContext(t), "a")
	must.Succeed(t, err)
	c.kill()
	must.Report(t, s.Break(testContext(t), "a", st.Holders[0].Token))
	wantCode(t, s, s.Break(testContext(t), "a", st.Holders[0].Token), driver.CodeNotHeld)
}

func TestDamagedFilesEndGrants(t *testing.T) {
	remove := func(t *testing.T, path string) {
		must.Succeed(t, os.Remove(path))
	}
	for name, harm := range map[string]func(t *testing.T, dir string, s *filestore.Store){
		"bucket deleted": func(t *testing.T, _ string, s *filestore.Store) { remove(t, s.BucketPath("a")) },
		"bucket replaced": func(t *testing.T, dir string, s *filestore.Store) {
			b, err := os.ReadFile(s.BucketPath("a"))
			must.Succeed(t, err)
			other := filepath.Join(dir, "other")
			must.Succeed(t, os.WriteFile(other, b, 0o600))
			must.Succeed(t, os.Rename(other, s.BucketPath("a")))
		},
		"bucket emptied": func(t *testing.T, _ string, s *filestore.Store) {
			must.Succeed(t, os.Truncate(s.BucketPath("a"), 0))
		},
		"session deleted": func(t *testing.T, _ string, s *filestore.Store) { remove(t, s.SessionPath()) },
		"directory deleted": func(t *testing.T, dir string, _ *filestore.Store) {
			must.Succeed(t, os.RemoveAll(dir))
		},
		"directory moved": func(t *testing.T, dir string, _ *filestore.Store) {
			must.Succeed(t, os.Rename(dir, dir+".old"))
		},
	} {
		// A waiter of the same store may notice the loss first. So each harm also meets a holder
		// without waiters.
		for _, waits := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/waiter %t", name, waits), func(t *testing.T) {
				t.Parallel()
				dir := filepath.Join(tempDir(t), "locks")
				s := open(t, dir)
				r := request("a", driver.Exclusive)
				g, err := s.Acquire(testContext(t), r)
				must.Succeed(t, err)
				next := func() driver.Grant { return take(t, s, "a", driver.Exclusive) }
				if waits {
					p := queue(t, s, "a", driver.Exclusive)
					next = func() driver.Grant { return p.granted(t) }
				}
				harm(t, dir, s)
				wantLost(t, r.From, driver.CauseGone)
				// If the entry survives, the release removes it.
				if err := s.Release(testContext(t), g, 0); err != nil && s.Classify(err) != driver.CodeNotHeld {
					t.Errorf("release of a lost grant: %v", err)
				}
				// The waiter and later requests get grants from the new files.
				h := next()
				if h.Token <= g.Token {
					t.Errorf("token %d after %d", h.Token, g.Token)
				}
				release(t, s, h)
				release(t, s, take(t, s, "a", driver.Exclusive))
			})
		}
	}
}

// TestFilesInUseStayFresh: a cleaner of temporary directories removes files whose times are old. A holder
// renews the times of all files that its grant needs, and a waiter those of its session.
func TestFilesInUseStayFresh(t *testing.T) {
	dir := tempDir(t)
	holder, waiter := open(t, dir), open(t, dir)
	g := take(t, holder, "a", driver.Exclusive)
	p := queue(t, waiter, "a", driver.Exclusive)
	files := []string{filepath.Join(dir, "format"), holder.BucketPath("a")}
	for _, s := range []*filestore.Store{holder, waiter} {
		files = append(files, s.SessionPath()+".sock", s.SessionPath())
	}
	old := time.Now().Add(-24 * time.Hour)
	for _, path := range files { // last the sessions, whose times decide when a store renews all
		must.Succeed(t, os.Chtimes(path, old, old))
	}
	for _, path := range files {
		eventually(t, path+" is fresh", func() bool {
			info, err := os.Stat(path)
			return err == nil && info.ModTime().After(old.Add(time.Hour))
		})
	}
	release(t, holder, g)
	release(t, waiter, p.granted(t))
}

// TestReplacedFileDividesNoClients: a bucket's file is deleted while a store has it open. The store then
// uses the new file, like the other stores.
func TestReplacedFileDividesNoClients(t *testing.T) {
	dir := tempDir(t)
	a := open(t, dir)
	release(t, a, take(t, a, "a", driver.Exclusive))
	must.Succeed(t, os.Remove(a.BucketPath("a")))
	b := open(t, dir)
	take(t, b, "a", driver.Exclusive)
	_, err := a.Acquire(testContext(t), request("a", driver.Exclusive))
	wantCode(t, a, err, driver.CodeBusy)
}

// TestStalledBucketHonoursDeadlines: a process is stopped inside its critical section. The calls of
// other processes end when their contexts end.
func TestStalledBucketHonoursDeadlines(t *testing.T) {
	dir := tempDir(t)
	s := open(t, dir)
	release(t, s, take(t, s, "a", driver.Exclusive))
	resume, err := s.StallBucket("a")
	must.Succeed(t, err)
	for _, wait := range []bool{false, true} {
		var err error
		// The error differs if the context ends before the call has reached the file. The
		// test then repeats with more time.
		for timeout := 10 * time.Millisecond; timeout < testTimeout; timeout *= 2 {
			ctx, cancel := context.WithTimeout(context.Background(), timeout)
			r := request("a", driver.Exclusive)
			r.Wait = wait
			_, err = s.Acquire(ctx, r)
			cancel()
			if err == nil || strings.Contains(err.Error(), s.BucketPath("a")) {
				break
			}
		}
		wantCode(t, s, err, map[bool]driver.Code{false: driver.CodeUnavailable, true: driver.CodeWithdrawn}[wait])
		if !strings.Contains(err.Error(), s.BucketPath("a")) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v", err)
		}
	}
	done := make(chan error, 1)
	go func() {
		g, err := s.Acquire(testContext(t), request("a", driver.Exclusive))
		if err == nil {
			err = s.Release(testContext(t), g, 0)
		}
		done <- err
	}()
	resume()
	must.Report(t, <-done)
}

// TestConcurrentDialsLeaveNoConnection: several waiters dial one session at the same time.
// Every connection is used or closed.
func TestConcurrentDialsLeaveNoConnection(t *testing.T) {
	dir := tempDir(t)
	a, b := open(t, dir), open(t, dir)
	g := take(t, a, "a", driver.Exclusive)
	for range 3 {
		if !b.Dial(a) {
			t.Fatal("it cannot be reached")
		}
	}
	if n := b.Unkept(); n != 0 {
		t.Errorf("%d connections are not closed", n)
	}
	release(t, a, g)
}

// late is a requester whose Owner blocks until the test calls resume.
type late struct {
	*requester
	called, resume chan struct{}
	once           sync.Once
}

func (l *late) Owner() driver.Owner {
	l.once.Do(func() { close(l.called) })
	<-l.resume
	return l.requester.Owner()
}

// TestGrantDuringCloseIsLost: a request gets a grant while the store closes. The store reports to the
// holder that the grant is lost.
func TestGrantDuringCloseIsLost(t *testing.T) {
	s := open(t, tempDir(t))
	r := request("a", driver.Exclusive)
	l := &late{requester: newRequester(), called: make(chan struct{}), resume: make(chan struct{})}
	l.owner = driver.Owner{ID: r.ID}
	r.From = l
	granted := make(chan error, 1)
	go func() {
		_, err := s.Acquire(testContext(t), r)
		granted <- err
	}()
	<-l.called
	closed := make(chan error, 1)
	go func() { closed <- s.Close(testContext(t)) }()
	<-s.Closing()
	close(l.resume)
	must.Report(t, <-closed)
	if <-granted != nil {
		return
	}
	select {
	case c := <-l.lost:
		if c != driver.CauseClosed {
			t.Errorf("notified of %q", c)
		}
	default:
		t.Error("the grant has ended and its holder was not notified")
	}
}
