package redisstore

import (
	"context"
	"strconv"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/redisstore/internal/server"
)

var _ driver.Swapper = (*store)(nil)

// oldGrant is a grant that the first call of the next request releases.
type oldGrant struct {
	grant     driver.Grant
	handle    *handle
	lateUntil int64
	released  func(error) // gets the outcome of the release
}

// Swap implements driver.Swapper: one script releases old, and grants to r or makes its queue entry.
// With [WaitReplicas] it makes two calls.
func (s *store) Swap(ctx context.Context, old driver.Grant, r driver.Request, released func(error)) (driver.Grant, error) {
	h, ok := old.Handle.(*handle)
	if !ok || s.srv.Config.Replicas > 0 || old.Name != r.Name || !r.Wait {
		released(s.Release(ctx, old, 0))
		return s.Acquire(ctx, r)
	}
	s.srv.Held.Forget(old.ID)
	return s.acquire(ctx, r, &oldGrant{old, h, s.lateUntil(h), released})
}

// appendTo appends the arguments by which the acquire script releases the grant first. They follow
// the number of tokens and the tag, so appendTo appends these first if they are missing.
func (o *oldGrant) appendTo(args []string) []string {
	if len(args) == argTokens {
		args = append(args, "1")
	}
	if len(args) == argTag {
		args = append(args, "")
	}
	return append(args, mark(o.grant.ID, o.grant.Token), o.handle.slot, strconv.FormatInt(o.lateUntil, 10))
}

// reportRelease passes the outcome of the release in a call to released. If the server refused
// the call, it did not release, and reportRelease does nothing.
func (a *attempt) reportRelease(rep *server.Reply, err error) {
	if a.old == nil {
		return
	}
	switch {
	case err != nil && driver.CodeOf(err) != driver.CodeUnknown:
		return
	case err != nil:
	case rep.Kind == 'g' || rep.Kind == 'q':
		rep.Kind -= 'g' - 'G' // now G or Q, and the old grant had already ended
		err = driver.NotHeld(a.old.grant.Name, a.old.grant.Token)
	case rep.Kind != 'G' && rep.Kind != 'Q': // too late, or undone
		return
	}
	a.old.released(err)
	a.old = nil
}
