//go:build linux || darwin

package filestore

import (
	"context"

	"golang.org/x/sys/unix"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/held"
	"github.com/holdfast-go/holdfast/internal/wakeup"
)

var (
	errEndRequested = driver.Errorf(driver.CodeNotHeld, "an operator requested the end of the lock")
	errEntry        = driver.Errorf(driver.CodeNotHeld, "the grant's entry is gone from the file")
	errSession      = driver.Errorf(driver.CodeNotHeld, "the file of the session that held the grant was removed")
	errReplaced     = driver.Errorf(driver.CodeNotHeld, "the file that held the grant was deleted or replaced")
)

// grant is a grant that this store has returned, or is about to return. Its Handle is the grant itself.
type grant struct {
	held.Grant
	b    *bucket
	file fileID
	sess *session
}

// hold registers the grant of an entry, so that its holder is notified of its loss. The caller has the bucket locked.
func (s *store) hold(r *driver.Request, e *entry, b *bucket, sess *session) *grant {
	h := &grant{b: b, file: b.id, sess: sess}
	h.Grant = held.Grant{From: r.From, Grant: driver.Grant{
		ID: r.ID, Name: r.Name, Limit: r.Limit, Token: e.token, Tokens: e.tokens, TTL: driver.Forever, Slot: e.slot, Handle: h,
	}}
	s.held.Hold(&h.Grant)
	return h
}

// returned is what a caller gets. Its validity begins at the instant sent.
func (h *grant) returned(sent driver.Instant) driver.Grant {
	g := h.Grant.Grant
	g.SentAt = sent
	return g
}

// check finds grants that have ended without a release, and reports their loss.
func (s *store) check(due []*held.Grant) {
	if s.calls.Enter() != nil {
		return
	}
	defer s.calls.Leave()
	if sess := s.sess.Load(); sess != nil && !sess.linked() {
		s.sessMu.Lock()
		if s.sess.Load() == sess {
			s.abandon(sess)
		}
		s.sessMu.Unlock()
	}
	// A goroutine may have registered a grant while another one gave up the grant's session.
	sess := s.sess.Load()
	s.loseMatching(func(h *grant) bool { return h.sess != sess }, driver.CauseGone, errSession)
	if sess != nil {
		s.keepFresh(sess)
	}
	byBucket := map[*bucket][]*grant{}
	for _, h := range due {
		g := h.Handle.(*grant)
		byBucket[g.b] = append(byBucket[g.b], g)
	}
	ctx, cancel := context.WithTimeout(s.calls.Ctx, noticeTimeout-checkInterval)
	defer cancel()
	for b, hs := range byBucket {
		s.checkBucket(ctx, b, hs)
	}
}

// checkBucket checks the grants of one bucket.
func (s *store) checkBucket(ctx context.Context, b *bucket, hs []*grant) {
	// The path is checked first, because that needs no lock. A stopped process might hold the lock.
	var st unix.Stat_t
	err := stat(b.path, &st)
	removed := err == unix.ENOENT || err == unix.ENOTDIR
	present := hs[:0]
	for _, h := range hs {
		if removed || err == nil && h.file != idOf(&st) {
			s.held.Lose(&h.Grant, driver.CauseGone, errReplaced)
		} else {
			present = append(present, h)
		}
	}
	if len(present) == 0 {
		return
	}
	if err := b.lock(ctx, false); err != nil {
		if driver.CodeOf(err) == driver.CodeRefused {
			for _, h := range present {
				s.held.Lose(&h.Grant, driver.CauseGone, err)
			}
		}
		return
	}
	lost := map[*grant]error{}
	for _, h := range present {
		// A grant that was released meanwhile has no entry, and is not lost. A release unregisters
		// the grant inside its critical section.
		k := key{s.ns, h.Name}
		i := b.find(k, h.ID)
		switch {
		case s.held.Get(h.ID) != &h.Grant:
		case i < 0 || b.entries[i].token != h.Token || b.entries[i].sid != h.sess.sid:
			lost[h] = errEntry
		case b.overfull(k):
			lost[h] = b.tooManyHolders(k)
		case b.entries[i].endRequested:
			lost[h] = errEndRequested
		}
	}
	b.unlock()
	for h, err := range lost {
		cause := driver.CauseGone
		if err == errEndRequested {
			cause = driver.CauseTaken
		}
		s.held.Lose(&h.Grant, cause, err)
	}
}

// loseMatching reports to the matching holders that their grants have ended.
func (s *store) loseMatching(match func(*grant) bool, cause driver.Cause, err error) {
	for _, h := range s.held.All() {
		if match(h.Handle.(*grant)) {
			s.held.Lose(h, cause, err)
		}
	}
}

func (s *store) loseAll(cause driver.Cause, err error) {
	s.loseMatching(func(*grant) bool { return true }, cause, err)
}

// replaced reports a loss to the holders with entries in a file that was replaced.
func (s *store) replaced(f *lockFile, old fileID) {
	s.loseMatching(func(h *grant) bool { return &h.b.lockFile == f && h.file == old }, driver.CauseGone, errReplaced)
	s.wakeAll()
}

func (s *store) wakeAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, w := range s.waiting {
		wakeup.Send(w.wake)
	}
}
