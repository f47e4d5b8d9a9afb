//go:build linux || darwin

package filestore_test

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/filestore"
	"github.com/holdfast-go/holdfast/internal/must"
	"github.com/holdfast-go/holdfast/internal/wakeup"
)

// testTimeout is how long a test waits for an event that must happen at once. It only decides when a
// failing test ends.
const testTimeout = time.Minute

// requester implements the core's side of a request for a test.
type requester struct {
	owner  driver.Owner
	queued chan struct{} // if not nil, gets a value for each call of Queued
	lost   chan driver.Cause

	mu      sync.Mutex
	holders []driver.Holder
}

func (r *requester) Owner() driver.Owner { return r.owner }

func (r *requester) Queued(h []driver.Holder) {
	r.mu.Lock()
	r.holders = h
	r.mu.Unlock()
	if r.queued != nil {
		r.queued <- struct{}{}
	}
}

func (r *requester) Lost(c driver.Cause, err error) {
	if r.lost != nil {
		r.lost <- c
	}
}

func newRequester() *requester {
	return &requester{queued: make(chan struct{}, 64), lost: make(chan driver.Cause, 64)}
}

// tempDir returns a temporary directory whose path is short enough for a socket, also on macOS.
func tempDir(t testing.TB) string {
	t.Helper()
	if runtime.GOOS != "darwin" {
		return t.TempDir()
	}
	dir, err := os.MkdirTemp("/tmp", "fs")
	must.Succeed(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func open(t testing.TB, dir string, o ...filestore.Option) *filestore.Store {
	t.Helper()
	s, err := filestore.Open(context.Background(), dir, o...)
	must.Succeed(t, err)
	t.Cleanup(func() { s.Close(context.Background()) })
	return s
}

var ids atomic.Int64

// newID returns an ID that is unique among all processes of a test.
func newID() string { return fmt.Sprintf("%d-%d", os.Getpid(), ids.Add(1)) }

func request(name string, limit int) driver.Request {
	return driver.Request{ID: newID(), Name: name, Limit: limit, TTL: time.Minute, From: newRequester()}
}

func testContext(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	t.Cleanup(cancel)
	return ctx
}

// take acquires a lock that is free.
func take(t testing.TB, s *filestore.Store, name string, limit int) driver.Grant {
	t.Helper()
	g, err := s.Acquire(testContext(t), request(name, limit))
	if err != nil {
		t.Fatalf("taking %s: %v", name, err)
	}
	return g
}

func release(t testing.TB, s *filestore.Store, g driver.Grant) {
	t.Helper()
	if err := s.Release(testContext(t), g, 0); err != nil {
		t.Fatalf("releasing %s: %v", g.Name, err)
	}
}

func wantCode(t testing.TB, s *filestore.Store, err error, code driver.Code) {
	t.Helper()
	if err == nil || s.Classify(err) != code {
		t.Fatalf("error %v is %v, want %v", err, s.Classify(err), code)
	}
}

// waiter is a request that waits in a goroutine.
type waiter struct {
	r      driver.Request
	from   *requester
	cancel context.CancelFunc
	done   chan struct{}
	g      driver.Grant
	err    error
}

// silent is like queue. The request has no checks of its own, and relies on events.
func silent(t testing.TB, s *filestore.Store, name string, limit int) *waiter {
	t.Helper()
	return queue(t, wakeup.WithoutFallback(s), name, limit)
}

// queue sends a request and returns when it has its queue entry.
func queue(t testing.TB, s driver.Store, name string, limit int) *waiter {
	t.Helper()
	p := &waiter{r: request(name, limit), done: make(chan struct{})}
	p.r.Wait = true
	p.from = p.r.From.(*requester)
	ctx, cancel := context.WithCancel(context.Background())
	p.cancel = cancel
	t.Cleanup(cancel)
	go func() {
		defer close(p.done)
		p.g, p.err = s.Acquire(ctx, p.r)
	}()
	select {
	case <-p.from.queued:
	case <-p.done:
		t.Fatalf("%s was to wait and got %+v, %v", name, p.g, p.err)
	case <-time.After(testTimeout):
		t.Fatalf("%s: no queue entry", name)
	}
	return p
}

// granted waits for the grant, and returns it.
func (p *waiter) granted(t testing.TB) driver.Grant {
	t.Helper()
	select {
	case <-p.done:
	case <-time.After(testTimeout):
		t.Fatalf("%s: not granted", p.r.Name)
	}
	if p.err != nil {
		t.Fatalf("%s: %v", p.r.Name, p.err)
	}
	return p.g
}

// ended waits until the request has failed, and returns the error.
func (p *waiter) ended(t testing.TB) error {
	t.Helper()
	select {
	case <-p.done:
	case <-time.After(testTimeout):
		t.Fatalf("%s: the wait does not end", p.r.Name)
	}
	if p.err == nil {
		t.Fatalf("%s: granted instead of ended", p.r.Name)
	}
	return p.err
}

func wantLost(t testing.TB, r driver.Requester, cause driver.Cause) {
	t.Helper()
	select {
	case c := <-r.(*requester).lost:
		if c != cause {
			t.Fatalf("lost by %q, want %q", c, cause)
		}
	case <-time.After(testTimeout):
		t.Fatalf("not notified of the loss (%s)", cause)
	}
}
