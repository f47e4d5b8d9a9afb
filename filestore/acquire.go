//go:build linux || darwin

package filestore

import (
	"cmp"
	"context"
	"math"
	"os"
	"slices"

	"github.com/holdfast-go/holdfast/driver"
)

// Acquire requests a grant. See [driver.Store].
func (s *store) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	// The core has checked the request. The store checks it again, because it must never write an
	// entry that the file format cannot represent.
	if r.ID == "" || len(r.ID) > 40 || r.Name == "" || len(r.Name) > driver.MaxName || r.Limit < 1 || r.Limit > driver.Unlimited {
		return driver.Grant{}, driver.Errorf(driver.CodeInvalid, "a request of id %q, name %q, limit %d", r.ID, r.Name, r.Limit)
	}
	if err := s.calls.Enter(); err != nil {
		return driver.Grant{}, err
	}
	defer s.calls.Leave()
	sess, err := s.current()
	if err != nil {
		return driver.Grant{}, err
	}
	owner := r.From.Owner()
	b, k := s.bucketOf(r.Name), key{s.ns, r.Name}
	sent := driver.NowInProcess()
	if err := b.lock(ctx, true); err != nil {
		return driver.Grant{}, gaveUp(ctx, r, err)
	}
	b.used.Store(true)
	dropped := false
	if b.blocks(k, r.Limit) {
		if dropped, err = s.dropDeadBefore(b, k, len(b.entries), r.Wait); err != nil {
			return driver.Grant{}, s.fail(b, err)
		}
	}
	blocked := b.blocks(k, r.Limit)
	if blocked && !r.Wait {
		busy := &driver.BusyError{Holders: b.holders(k)}
		_ = s.commit(b, dropped) // if nothing was written, the next call also finds these sessions dead
		return driver.Grant{}, busy
	}
	b.entries = append(b.entries, s.newEntry(r, owner, sess))
	e := &b.entries[len(b.entries)-1]
	if !blocked {
		err = b.grant(e)
	}
	if err == nil {
		err = b.write()
	}
	if err != nil {
		return driver.Grant{}, s.fail(b, err)
	}
	if blocked {
		return s.queue(ctx, &waiter{r: r, b: b, k: k, wake: make(chan struct{}, 1), owner: owner})
	}
	h := s.hold(&r, e, b, sess)
	s.notify(b, b.unlock())
	return h.returned(sent), nil
}

// queue registers a waiter whose entry was just written, leaves the critical section, and waits.
func (s *store) queue(ctx context.Context, w *waiter) (driver.Grant, error) {
	s.mu.Lock()
	s.waiting[w.r.ID] = w
	s.mu.Unlock()
	b := w.b
	holders, watched := b.holders(w.k), b.watched(w.k, len(b.entries)-1)
	s.notify(b, b.unlock())
	w.r.From.Queued(holders)
	return s.await(ctx, w, watched)
}

// gaveUp returns the error of a request that ended before it had a queue entry.
func gaveUp(ctx context.Context, r driver.Request, err error) error {
	if r.Wait && ctx.Err() != nil && driver.CodeOf(err) == driver.CodeUnavailable {
		return driver.Errorf(driver.CodeWithdrawn, "%w", err)
	}
	return err
}

// commit writes the change, if there is one, leaves the critical section, and sends the notices.
func (s *store) commit(b *bucket, changed bool) error {
	if changed {
		if err := b.write(); err != nil {
			return s.fail(b, err)
		}
	}
	s.notify(b, b.unlock())
	return nil
}

// fail leaves a critical section whose change was not written.
func (s *store) fail(b *bucket, err error) error {
	b.notices = nil
	b.unlock()
	return err
}

func (s *store) newEntry(r driver.Request, o driver.Owner, sess *session) entry {
	e := entry{ns: s.ns, name: r.Name, id: r.ID, sid: sess.sid, limit: r.Limit, slot: driver.NoSlot, tokens: min(max(r.Tokens, 1), maxTokens), since: s.now()}
	s.sign(&e, o)
	return e
}

func (s *store) sign(e *entry, o driver.Owner) {
	if o.PID <= 0 || o.PID > math.MaxInt32 {
		o.PID = os.Getpid()
	}
	o.Host = cmp.Or(o.Host, s.host)
	e.pid, e.host, e.instance, e.reason = o.PID, clip(o.Host), clip(o.Instance), clip(o.Reason)
}

// blocks reports whether a new request has to wait.
func (st *state) blocks(k key, limit int) bool {
	if len(st.entries) == 0 {
		return false
	}
	holders, least := st.countHolders(k)
	return holders+1 > min(least, limit) || st.awaited(k) // mutation: file-rule
}

// watched returns what the waiter at index i watches. The first waiter watches the holders' sessions, and the end
// of kept grants. Every other waiter watches the session of the waiter before it.
func (st *state) watched(k key, i int) (w watched) {
	for j := i - 1; j >= 0; j-- {
		if e := &st.entries[j]; e.token == 0 && e.is(k) {
			return watched{sids: []string{e.sid}}
		}
	}
	for j := range st.entries {
		switch e := &st.entries[j]; {
		case e.token == 0 || !e.is(k):
		case e.until > 0 && (w.until == 0 || e.until < w.until):
			w.until = e.until
		case e.until == 0 && !slices.Contains(w.sids, e.sid):
			w.sids = append(w.sids, e.sid)
		}
	}
	return w
}

// dropDeadBefore removes the entries of dead sessions before index i. It stops at a live waiter, which
// checks the entries before itself. With linked, an open connection proves that a session lives.
func (s *store) dropDeadBefore(b *bucket, k key, i int, linked bool) (dropped bool, err error) {
	dead := map[string]bool{} // by session
	isDead := func(sid string) bool {
		d, checked := dead[sid]
		if !checked {
			d = !s.isOwn(sid) && !(linked && s.linkedTo(sid)) && s.dead(sid)
			dead[sid] = d
		}
		return d
	}
	liveWaiter := false
	for j := i - 1; j >= 0 && !liveWaiter; j-- {
		if e := &b.entries[j]; e.token == 0 && e.is(k) {
			liveWaiter = !isDead(e.sid)
		}
	}
	for j := range b.entries {
		if e := &b.entries[j]; !liveWaiter && e.token > 0 && e.until == 0 && e.is(k) {
			isDead(e.sid)
		}
	}
	for sid, d := range dead {
		if d {
			s.cleanDeadSession(sid, b)
		}
	}
	return b.drop(func(e *entry) bool { return dead[e.sid] })
}
