//go:build linux || darwin

package filestore

import (
	"context"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// remove removes the entry of a request if it has the token. A token of 0 matches every entry. remove
// then grants the name to the next waiters. With keep, it leaves the grant in place for that time.
func (s *store) remove(ctx context.Context, b *bucket, k key, id string, token uint64, keep time.Duration) (found bool, err error) {
	if err := b.lock(ctx, false); err != nil {
		return false, err
	}
	i := b.find(k, id)
	if i < 0 || token != 0 && b.entries[i].token != token {
		s.unregister(id)
		b.unlock()
		return false, nil
	}
	if keep > 0 { // mutation: file-keep
		b.keep(&b.entries[i], s.now()+(keep+time.Microsecond-1).Microseconds())
	} else {
		b.recordWatched(k)
		b.entries = slices.Delete(b.entries, i, i+1)
		// If this fails, the waiters grant the name at their own checks.
		b.grantNext(k)
	}
	if err := b.write(); err != nil {
		return false, s.fail(b, err)
	}
	s.unregister(id)
	s.notify(b, b.unlock())
	return true, nil
}

func (s *store) unregister(id string) {
	s.mu.Lock()
	delete(s.waiting, id)
	s.mu.Unlock()
	s.held.Forget(id)
}

// Undo removes the entry of a request.
func (s *store) Undo(ctx context.Context, r driver.Request) error {
	if err := s.calls.Enter(); err != nil {
		return err
	}
	defer s.calls.Leave()
	_, err := s.remove(ctx, s.bucketOf(r.Name), key{s.ns, r.Name}, r.ID, 0, 0)
	return err
}

// Release ends a grant and grants the name to the next waiter, or leaves the grant in place for the time keep.
func (s *store) Release(ctx context.Context, g driver.Grant, keep time.Duration) error {
	if err := s.calls.Enter(); err != nil {
		return err
	}
	defer s.calls.Leave()
	// A token of 0 would match every entry. No grant has the token 1.
	found, err := s.remove(ctx, s.bucketOf(g.Name), key{s.ns, g.Name}, g.ID, max(g.Token, 1), keep)
	if err == nil && !found {
		return errNotHeld
	}
	return err
}

var errNotHeld = driver.Errorf(driver.CodeNotHeld, "the grant does not stand")

// Renew reports which grants have ended. The others do not expire, so they need no renewal.
func (s *store) Renew(ctx context.Context, grants []driver.Grant) []driver.Renewal {
	out := make([]driver.Renewal, len(grants))
	for i, g := range grants {
		out[i] = driver.Renewal{SentAt: driver.NowInProcess(), TTL: driver.Forever}
		if err := s.checkGrant(ctx, g); err != nil {
			out[i] = driver.Renewal{Err: err}
			if driver.CodeOf(err) == driver.CodeNotHeld {
				out[i].Cause = driver.CauseGone
			}
		}
	}
	return out
}

// checkGrant returns errNotHeld if the grant has ended.
func (s *store) checkGrant(ctx context.Context, g driver.Grant) error {
	if err := s.calls.Enter(); err != nil {
		return err
	}
	defer s.calls.Leave()
	b := s.bucketOf(g.Name)
	if err := b.lock(ctx, false); err != nil {
		return err
	}
	defer b.unlock()
	if i := b.find(key{s.ns, g.Name}, g.ID); i < 0 || g.Token == 0 || b.entries[i].token != g.Token {
		return errNotHeld
	}
	return nil
}
