//go:build linux || darwin

package filestore

import (
	"context"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/internal/calls"
	"github.com/holdfast-go/holdfast/internal/wakeup"
)

// waiter is a request of this store with a queue entry.
type waiter struct {
	r     driver.Request
	b     *bucket
	k     key
	wake  chan struct{}
	owner driver.Owner // as recorded
	links []*link      // the connections to the watched sessions; the store's mutex guards it
}

// firstDelay is the longest first delay before an unreachable session is checked again. When a process ends, the
// kernel may close its socket a moment before it frees its flock. The delay doubles up to wakeInterval.
const firstDelay = 50 * time.Microsecond

// watched is what the waiter at the head of a name, or behind another one, has to watch.
type watched struct {
	sids []string
	// until is when the first of the kept grants ends, in microseconds since 1970; 0 if there is none.
	until int64
}

// await waits for the grant, and returns it. A notice reports the grant to the waiter. Without a notice the
// waiter finds the grant when something that it watches has ended, or at one of its own checks.
func (s *store) await(ctx context.Context, w *waiter, watched watched) (driver.Grant, error) {
	defer func() { s.unwatch(w, nil) }()
	interval := wakeup.Fallback(ctx, wakeInterval)
	tick := time.NewTicker(interval - rand.N(interval/4))
	defer tick.Stop()
	retry := backoff.Backoff{First: firstDelay, Max: wakeInterval}
	for {
		s.unwatch(w, watched.sids)
		reached := true
		for _, sid := range watched.sids {
			reached = s.watch(w, sid) && reached
		}
		var again, end <-chan time.Time
		if reached {
			retry.Reset()
		} else {
			again = time.After(retry.Next())
		}
		if watched.until > 0 {
			end = time.After(time.Duration(watched.until-s.now()) * time.Microsecond)
		}
		select {
		case <-w.wake:
		case <-again:
		case <-end:
		case <-tick.C:
			if sess := s.sess.Load(); sess != nil {
				s.keepFresh(sess)
			}
		case <-ctx.Done():
			return driver.Grant{}, s.withdraw(ctx, w)
		case <-s.calls.Ctx.Done():
			return driver.Grant{}, calls.ErrClosed
		}
		h, next, err := s.readBucket(ctx, w)
		switch {
		case h != nil:
			s.resign(ctx, w)
			return h.returned(driver.NowInProcess()), nil
		case err == nil:
			watched = next
		case ctx.Err() != nil:
			return driver.Grant{}, s.withdraw(ctx, w)
		case driver.CodeOf(err) == driver.CodeClosed:
			return driver.Grant{}, err
		case driver.CodeOf(err) == driver.CodeRefused:
			s.unregister(w.r.ID)
			return driver.Grant{}, err
		}
		// After any other failure the waiter tries again, until the caller's context ends.
	}
}

// readBucket reads the bucket, and repairs the waiter's entry. It returns the grant if the entry is one.
// Otherwise it returns what the waiter has to watch.
func (s *store) readBucket(ctx context.Context, w *waiter) (h *grant, next watched, err error) {
	sess, err := s.current()
	if err != nil {
		return nil, next, err
	}
	b := w.b
	if err := b.lock(ctx, true); err != nil {
		return nil, next, err
	}
	i, changed, err := s.updateEntry(b, w, sess)
	if err == nil && b.overfull(w.k) {
		err = b.tooManyHolders(w.k)
	}
	if err == nil && changed {
		err = b.write()
	}
	if err != nil {
		return nil, next, s.fail(b, err)
	}
	if i < 0 {
		// Another goroutine has just ended the session, together with its entries.
		s.notify(b, b.unlock())
		wakeup.Send(w.wake)
		return nil, next, nil
	}
	e := &b.entries[i]
	b.notices = slices.DeleteFunc(b.notices, func(n notice) bool { return n.id == w.r.ID })
	if e.token > 0 {
		h = s.hold(&w.r, e, b, sess)
		s.mu.Lock()
		delete(s.waiting, w.r.ID)
		s.mu.Unlock()
	} else {
		next = b.watched(w.k, i)
	}
	s.notify(b, b.unlock())
	return h, next, nil
}

// updateEntry makes sure that the waiter has an entry of the session, removes the dead sessions before it,
// and grants the name to the first waiters. It returns the index of the entry, -1 if it was removed.
func (s *store) updateEntry(b *bucket, w *waiter, sess *session) (i int, changed bool, err error) {
	i = b.find(w.k, w.r.ID)
	if i < 0 {
		// The file was replaced, and the waiter's entry is lost. A new entry joins the end of the queue.
		b.entries = append(b.entries, s.newEntry(w.r, w.owner, sess))
		i, changed = len(b.entries)-1, true
	}
	if b.entries[i].sid != sess.sid {
		b.entries[i].sid, changed = sess.sid, true
	}
	if b.entries[i].token > 0 {
		return i, changed, nil
	}
	dropped, err := s.dropDeadBefore(b, w.k, i, true)
	i = b.find(w.k, w.r.ID)
	if err == nil && i >= 0 && b.entries[i].token == 0 {
		b.recordWatched(w.k)
		err = b.grantNext(w.k)
	}
	return i, changed || dropped || len(b.notices) > 0, err
}

// resign records the owner in the entry again if the caller at the head of the core's queue is another one than the
// caller that made the entry. Only inspections use the owner, so resign ignores a failure.
func (s *store) resign(ctx context.Context, w *waiter) {
	o := w.r.From.Owner()
	if o.Reason == w.owner.Reason && o.Instance == w.owner.Instance && o.PID == w.owner.PID && o.Host == w.owner.Host ||
		w.b.lock(ctx, false) != nil {
		return
	}
	i := w.b.find(w.k, w.r.ID)
	if i >= 0 {
		s.sign(&w.b.entries[i], o)
	}
	_ = s.commit(w.b, i >= 0)
}

// withdraw removes the waiter's entry, also if the entry has become a grant meanwhile.
func (s *store) withdraw(ctx context.Context, w *waiter) error {
	why := driver.Errorf(driver.CodeWithdrawn, "%w", ctx.Err())
	return calls.Withdraw(ctx, 200*time.Millisecond, why, func(ctx context.Context) error {
		_, err := s.remove(ctx, w.b, w.k, w.r.ID, 0, 0)
		if err != nil {
			s.unregister(w.r.ID)
		}
		return err
	})
}
