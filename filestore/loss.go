//go:build linux || darwin

package filestore

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/wakeup"
)

var (
	errEndRequested = driver.Errorf(driver.CodeNotHeld, "an operator requested the end of the lock")
	errEntry        = driver.Errorf(driver.CodeNotHeld, "the grant's entry is gone from the file")
	errSession      = driver.Errorf(driver.CodeNotHeld, "the file of the session that held the grant was removed")
	errReplaced     = driver.Errorf(driver.CodeNotHeld, "the file that held the grant was deleted or replaced")
)

// held is a grant that this store has returned, or is about to return.
type held struct {
	id, name string
	token    uint64
	b        *bucket
	file     fileID
	sess     *session
	from     driver.Requester
	notified bool // its loss was reported; guarded by the store's mutex
}

// hold registers a grant and starts to check it.
func (s *Store) hold(h *held) {
	s.mu.Lock()
	s.held[h.id] = h
	s.arm()
	s.mu.Unlock()
}

// arm starts the timer that calls check. A release does not stop the timer: check does not start it
// again when there are no grants. The caller holds the store's mutex.
func (s *Store) arm() {
	if s.armed || s.closing {
		return
	}
	s.armed = true
	if s.timer == nil {
		s.timer = time.AfterFunc(checkInterval, s.check)
	} else {
		s.timer.Reset(checkInterval)
	}
}

// check finds grants that have ended without a release, and reports their loss.
func (s *Store) check() {
	if s.enter() != nil {
		return
	}
	defer s.ops.Done()
	if sess := s.sess.Load(); sess != nil && !sess.linked() {
		s.sessMu.Lock()
		if s.sess.Load() == sess {
			s.abandon(sess)
		}
		s.sessMu.Unlock()
	}
	// A goroutine may have registered a grant while another one gave up the grant's session.
	sess := s.sess.Load()
	s.loseMatching(func(h *held) bool { return h.sess != sess }, driver.CauseGone, errSession)
	s.mu.Lock()
	byBucket := map[*bucket][]*held{}
	for _, h := range s.held {
		if !h.notified {
			byBucket[h.b] = append(byBucket[h.b], h)
		}
	}
	s.mu.Unlock()
	if len(byBucket) > 0 {
		ctx, cancel := context.WithTimeout(s.ctx, noticeTimeout-checkInterval)
		defer cancel()
		for b, hs := range byBucket {
			s.checkBucket(ctx, b, hs)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.armed = false
	if len(s.held) > 0 {
		s.arm()
	}
}

// checkBucket checks the grants of one bucket.
func (s *Store) checkBucket(ctx context.Context, b *bucket, hs []*held) {
	// The path is checked first, because that needs no lock. A stopped process might hold the lock.
	var st unix.Stat_t
	err := stat(b.path, &st)
	removed := err == unix.ENOENT || err == unix.ENOTDIR
	present := hs[:0]
	for _, h := range hs {
		if removed || err == nil && h.file != idOf(&st) {
			s.lose(h.id, h.token, driver.CauseGone, errReplaced)
		} else {
			present = append(present, h)
		}
	}
	if len(present) == 0 {
		return
	}
	if err := b.lock(ctx, false); err != nil {
		if errors.Is(err, errNoFile) {
			for _, h := range present {
				s.lose(h.id, h.token, driver.CauseGone, errReplaced)
			}
		}
		return
	}
	var gone, requested []*held
	for _, h := range present {
		// A grant that was released meanwhile has no entry, and is not lost. A release unregisters
		// the grant inside its critical section, so s.holds returns false for it.
		i := b.find(key{s.ns, h.name}, h.id)
		switch {
		case !s.holds(h):
		case i < 0 || b.entries[i].token != h.token || b.entries[i].sid != h.sess.sid:
			gone = append(gone, h)
		case b.entries[i].endRequested:
			requested = append(requested, h)
		}
	}
	b.unlock()
	for _, h := range gone {
		s.lose(h.id, h.token, driver.CauseGone, errEntry)
	}
	for _, h := range requested {
		s.lose(h.id, h.token, driver.CauseTaken, errEndRequested)
	}
}

// holds reports whether a grant was not released.
func (s *Store) holds(h *held) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.held[h.id] == h
}

// lose reports to a holder, once, that its grant has ended.
func (s *Store) lose(id string, token uint64, cause driver.Cause, err error) {
	s.mu.Lock()
	h := s.held[id]
	if h == nil || h.token != token || h.notified {
		s.mu.Unlock()
		return
	}
	h.notified = true
	s.mu.Unlock()
	h.from.Lost(cause, err)
}

// loseMatching reports to the matching holders, once, that their grants have ended.
func (s *Store) loseMatching(match func(*held) bool, cause driver.Cause, err error) {
	s.mu.Lock()
	var hs []*held
	for _, h := range s.held {
		if !h.notified && match(h) {
			h.notified = true
			hs = append(hs, h)
		}
	}
	s.mu.Unlock()
	for _, h := range hs {
		h.from.Lost(cause, err)
	}
}

func (s *Store) loseAll(cause driver.Cause, err error) {
	s.loseMatching(func(*held) bool { return true }, cause, err)
}

// replaced reports a loss to the holders with entries in a file that was replaced.
func (s *Store) replaced(b *bucket, old fileID) {
	s.loseMatching(func(h *held) bool { return h.b == b && h.file == old }, driver.CauseGone, errReplaced)
	s.wakeAll()
}

func (s *Store) wakeAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, w := range s.waiting {
		wakeup.Send(w.wake)
	}
}
