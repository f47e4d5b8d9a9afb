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
	*section
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
	p.section = held
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
func longestHeld(path string, left time.Duration, unfit map[int64]bool) (longest *section, err error) {
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
	var events []Event
	for line := range bytes.Lines(text) {
		var e Event
		if json.Unmarshal(line, &e) == nil { // the first or last line may be only a part
			events = append(events, e)
		}
	}
	c, err := collect(events)
	if err != nil {
		return nil, nil // the worker has recorded nothing
	}
	least := machineTime() + int64(left)
	for _, h := range c.names {
		for _, s := range h.sections {
			holds := s.granted != 0 && s.unlock == 0 && s.lost == 0 && s.closing == 0
			if holds && s.limit == driver.Exclusive && s.until > least && s.until < forever && !unfit[s.granted] && (longest == nil || s.until > longest.until) {
				longest = s
			}
		}
	}
	return longest, nil
}
