//go:build linux || darwin

package check

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"syscall"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// pausedHolder is a worker process that was stopped while it held an exclusive lock. It
// releases nothing and notices nothing. So it counts as the holder until its validity ends,
// however short its work was meant to be.
type pausedHolder struct {
	heldLock
	proceed func() error // continues the process; nil when it has continued
}

// resume continues the process, unless it has continued. A nil holder is none.
func (p *pausedHolder) resume() (err error) {
	if p != nil && p.proceed != nil {
		err = p.proceed()
		p.proceed = nil
	}
	return err
}

// outlast waits for the end of the holder's validity, for at most 5 s.
func (p *pausedHolder) outlast(ctx context.Context) {
	if p != nil {
		sleep(ctx, min(time.Duration(p.until-machineTime()), 5*time.Second))
	}
}

// heldLock is a lock that a worker holds, according to its history.
type heldLock struct {
	name string
	// granted is when the worker recorded the grant, and until the end of the validity.
	granted, until int64
}

// pauseHolder stops a worker that holds an exclusive lock with a remaining validity of at least
// left. It searches for a while, and returns nil if it finds none. It cannot stop a worker that is
// a part of this process. After the stop, fits decides whether the holder suits the fault; nil
// accepts each.
func (c *crew) pauseHolder(ctx context.Context, left time.Duration, fits func(name string) (bool, error)) (*pausedHolder, error) {
	if c.target.URL == "" {
		return nil, nil // the workers are parts of this process
	}
	unfit := map[int64]bool{} // by the moment of the grant
	for end := time.Now().Add(3 * time.Second); time.Now().Before(end) && ctx.Err() == nil; sleep(ctx, 10*time.Millisecond) {
		for _, m := range c.members {
			if p, err := c.pauseIfHolder(ctx, m, left, unfit, fits); p != nil || err != nil {
				return p, err
			}
		}
	}
	return nil, nil
}

// pauseIfHolder does for one worker what pauseHolder does for all. unfit has the locks that fits has
// refused. The worker's mutex stays locked until resume.
func (c *crew) pauseIfHolder(ctx context.Context, m *member, left time.Duration, unfit map[int64]bool, fits func(name string) (bool, error)) (*pausedHolder, error) {
	if !m.mu.TryLock() {
		return nil, nil // another fault affects the worker
	}
	if m.proc == nil {
		m.mu.Unlock()
		return nil, nil // the worker is a part of this process
	}
	path := c.history(m)
	held, err := longestHeld(path, left, unfit)
	if held == nil || err != nil {
		m.mu.Unlock()
		return nil, err
	}
	resume, err := c.pause(m, time.Duration(held.until-machineTime()))
	if err != nil {
		m.mu.Unlock()
		return nil, err
	}
	p := &pausedHolder{proceed: func() error {
		defer m.mu.Unlock()
		return resume()
	}}
	sleep(ctx, 5*time.Millisecond) // the kernel stops the threads one after another
	held, err = longestHeld(path, left, unfit)
	fit := held != nil && err == nil
	if fit && fits != nil {
		fit, err = fits(held.name)
		unfit[held.granted] = true // no second look
	}
	if !fit || err != nil {
		return nil, errors.Join(err, p.resume())
	}
	p.heldLock = *held
	return p, nil
}

// pause stops a worker's process and returns the function that continues it. The caller has
// locked m.
func (c *crew) pause(m *member, d time.Duration) (resume func() error, err error) {
	e := Event{W: m.name(), K: kindPause, For: int64(d)}
	c.log.Add(e)
	if err := m.proc.signal(syscall.SIGSTOP); err != nil {
		return nil, err
	}
	return func() error {
		err := m.proc.signal(syscall.SIGCONT)
		e.K = kindResume
		c.log.Add(e)
		return err
	}, nil
}

// longestHeld reads the end of a worker's history. It returns the exclusive lock that the
// worker holds with the longest validity, without those that are unfit. It returns nil if no
// lock remains valid for the time left.
func longestHeld(path string, left time.Duration, unfit map[int64]bool) (longest *heldLock, err error) {
	const tail = 1 << 16
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return nil, err
	}
	text := make([]byte, min(size, tail))
	if _, err := f.ReadAt(text, size-int64(len(text))); err != nil {
		return nil, err
	}
	held := map[int]*heldLock{} // by Op
	for line := range bytes.Lines(text) {
		var e Event
		if json.Unmarshal(line, &e) != nil {
			continue // the first or last line is only a part
		}
		switch e.K {
		case kindGranted:
			if e.Limit == driver.Exclusive {
				held[e.Op] = &heldLock{e.Name, e.T, e.Until}
			}
		case kindRenewed:
			if h := held[e.Op]; h != nil {
				h.until = e.Until
			}
		case kindLost, kindUnlock:
			delete(held, e.Op)
		case kindClosing:
			clear(held)
		}
	}
	least := machineTime() + int64(left)
	for _, h := range held {
		if h.until > least && !unfit[h.granted] && (longest == nil || h.until > longest.until) {
			longest = h
		}
	}
	return longest, nil
}
