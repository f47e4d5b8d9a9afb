package redisstore

import (
	"context"
	"strconv"

	"github.com/holdfast-go/holdfast/driver"
)

var _ driver.Swapper = (*Store)(nil)

// oldGrant is a grant that the first call of the next request releases.
type oldGrant struct {
	mark, slot, lateUntil string
	released              func(error)
}

// Swap implements driver.Swapper: one script releases old, and grants to r or makes its queue entry.
// With [WaitReplicas] or a layout it makes two calls.
func (s *Store) Swap(ctx context.Context, old driver.Grant, r driver.Request, released func(error)) (driver.Grant, error) {
	h, ok := old.Handle.(*handle)
	if !ok || s.peers != nil || s.cfg.replicas > 0 || old.Name != r.Name || !r.Wait {
		released(s.Release(ctx, old, 0))
		return s.Acquire(ctx, r)
	}
	s.mu.Lock()
	if e := s.entries[old.ID]; e != nil {
		s.forget(e)
	}
	s.mu.Unlock()
	return s.acquire(ctx, r, &oldGrant{mark(old.ID, old.Token), h.slot, strconv.FormatInt(s.lateUntil(h), 10), released})
}

// release appends the arguments by which the acquire script releases the grant first.
func (o *oldGrant) release(args []string) []string {
	if len(args) == 8 {
		args = append(args, "1", "")
	} else if len(args) == 9 {
		args = append(args, "")
	}
	return append(args, o.mark, o.slot, o.lateUntil)
}

// releaseAnswered passes the outcome of the release in a call to released. If the server refused
// the call, it did not release, and releaseAnswered does nothing.
func (a *attempt) releaseAnswered(rep *reply, err error) {
	if a.old == nil {
		return
	}
	switch {
	case err != nil && driver.CodeOf(err) != driver.CodeUnknown:
		return
	case err != nil:
	case rep.kind == 'g' || rep.kind == 'q':
		rep.kind -= 'g' - 'G'
		err = driver.Errorf(driver.CodeNotHeld, "no grant of %q with%sstands", a.e.r.Name, a.old.mark)
	case rep.kind != 'G' && rep.kind != 'Q': // too late, or undone
		return
	}
	a.old.released(err)
	a.old = nil
}
