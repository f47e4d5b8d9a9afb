//go:build linux || darwin

package filestore

import (
	"cmp"
	"context"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/calls"
)

// Inspect returns the state of one name, without the entries of dead sessions.
func (s *store) Inspect(ctx context.Context, name string) (driver.State, error) {
	states, err := s.survey(ctx, s.bucketOf(name), func(n string) bool { return n == name })
	if st, ok := states[name]; ok {
		return *st, err
	}
	return driver.State{Name: name}, err
}

// List yields the names in byte order. It reads all of them first, one bucket after the other, so
// the list is no snapshot.
func (s *store) List(ctx context.Context, prefix string) iter.Seq2[driver.State, error] {
	return func(yield func(driver.State, error) bool) {
		all := map[string]*driver.State{}
		for _, b := range s.buckets {
			states, err := s.survey(ctx, b, func(n string) bool { return strings.HasPrefix(n, prefix) })
			if driver.CodeOf(err) == driver.CodeRefused {
				if !yield(driver.State{Err: err}, nil) {
					return
				}
			} else if err != nil {
				yield(driver.State{}, err)
				return
			}
			maps.Copy(all, states)
		}
		for _, name := range slices.Sorted(maps.Keys(all)) {
			if !yield(*all[name], nil) {
				return
			}
		}
	}
}

// survey reads the matching names of one bucket.
func (s *store) survey(ctx context.Context, b *bucket, match func(string) bool) (map[string]*driver.State, error) {
	if err := s.calls.Enter(); err != nil {
		return nil, err
	}
	defer s.calls.Leave()
	if err := b.lock(ctx, false); err != nil {
		return nil, err
	}
	var found []entry
	for i := range b.entries {
		if e := &b.entries[i]; e.ns == s.ns && match(e.name) {
			found = append(found, *e)
		}
	}
	b.unlock()
	lives := map[string]bool{}
	states := map[string]*driver.State{}
	for i := range found {
		e := &found[i]
		if _, checked := lives[e.sid]; !checked {
			lives[e.sid] = e.until > 0 || s.isOwn(e.sid) || !s.dead(e.sid)
		}
		if !lives[e.sid] {
			continue
		}
		st := states[e.name]
		if st == nil {
			st = &driver.State{Name: e.name}
			states[e.name] = st
		}
		if e.token > 0 {
			h := e.holder()
			h.Note = s.note(e)
			st.Holders = append(st.Holders, h)
		} else {
			st.Waiters = append(st.Waiters, driver.Waiter{Owner: e.owner(), Limit: e.limit, Note: s.note(e)})
		}
	}
	for _, st := range states {
		slices.SortFunc(st.Holders, func(a, b driver.Holder) int { return cmp.Compare(a.Token, b.Token) })
	}
	return states, nil
}

// note returns the remarks about a holder or waiter that an operator sees.
func (s *store) note(e *entry) string {
	if e.until > 0 {
		return driver.NoteKept
	}
	var notes []string
	if e.endRequested {
		notes = append(notes, "end requested")
	}
	here, elsewhere := s.locate(e)
	if elsewhere {
		notes = append(notes, "pid of another PID namespace")
	}
	if here && stopped(e.pid) {
		notes = append(notes, "stopped")
	}
	return strings.Join(notes, ", ")
}

// locate reports whether the process of an entry certainly is in the PID namespace of this process, or certainly is
// on this host in another one.
func (s *store) locate(e *entry) (here, elsewhere bool) {
	if e.host != s.host {
		return false, false
	}
	own, its := pidNamespace(), s.pidNamespaceOf(e.sid)
	known := own != "" && its != ""
	return known && own == its, known && own != its
}

func (e *entry) owner() driver.Owner {
	return driver.Owner{ID: e.id, Host: e.host, PID: e.pid, Instance: e.instance, Reason: e.reason, Since: time.UnixMicro(e.since)}
}

func (e *entry) holder() driver.Holder {
	h := driver.Holder{Owner: e.owner(), Token: e.token, Tokens: e.tokens, Limit: e.limit, Slot: e.slot, TTL: driver.Forever}
	if e.until > 0 {
		h.Kept, h.TTL = true, time.Until(time.UnixMicro(e.until))
	}
	return h
}

// holders returns the holders of a name, the one with the lowest token first.
func (st *state) holders(k key) []driver.Holder {
	var hs []driver.Holder
	for i := range st.entries {
		if e := &st.entries[i]; e.token > 0 && e.is(k) {
			hs = append(hs, e.holder())
		}
	}
	slices.SortFunc(hs, func(a, b driver.Holder) int { return cmp.Compare(a.Token, b.Token) })
	return hs
}

// Break requests the holder to end, and returns when it has ended. A grant of a dead process, or a kept one, ends
// at once.
func (s *store) Break(ctx context.Context, name string, token uint64) error {
	if err := s.calls.Enter(); err != nil {
		return err
	}
	defer s.calls.Leave()
	b, k := s.bucketOf(name), key{s.ns, name}
	e, err := s.requestEnd(ctx, b, k, token)
	if err != nil || e == nil {
		return err
	}
	changes, stop := s.changes(b)
	defer stop()
	tick := time.NewTicker(wakeInterval)
	defer tick.Stop()
	for {
		// The first check comes before the first wait, because the grant may have ended before
		// changes began to report.
		exists, err := s.grantExists(ctx, b, k, e.token)
		if err == nil && !exists {
			return nil
		}
		select {
		case <-changes:
		case <-tick.C:
		case <-ctx.Done():
			return s.stillHeld(ctx, e)
		case <-s.calls.Ctx.Done():
			return calls.ErrClosed
		}
	}
}

// requestEnd marks the holder's entry, and notifies its session. It returns no entry if the session
// was dead, or the grant was a kept one, because then the grant has ended.
func (s *store) requestEnd(ctx context.Context, b *bucket, k key, token uint64) (*entry, error) {
	if err := b.lock(ctx, false); err != nil {
		return nil, err
	}
	i := slices.IndexFunc(b.entries, func(e entry) bool {
		return e.token > 0 && driver.HasToken(e.token, e.tokens, token) && e.is(k)
	})
	if i < 0 {
		b.unlock()
		return nil, errNotHeld
	}
	e := b.entries[i]
	if e.until > 0 || !s.isOwn(e.sid) && s.dead(e.sid) {
		if _, err := b.drop(func(o *entry) bool { return o.sid == e.sid && (e.until == 0 || o.token == e.token) }); err != nil {
			return nil, s.fail(b, err)
		}
		err := s.commit(b, true)
		if err == nil && e.until == 0 {
			s.cleanDeadSession(e.sid, b)
		}
		return nil, err
	}
	b.entries[i].endRequested = true
	b.notices = append(b.notices, notice{kind: msgEnd, sid: e.sid, id: e.id})
	if err := s.commit(b, !e.endRequested); err != nil {
		return nil, err
	}
	return &e, nil
}

// grantExists reports whether the grant exists and its session lives.
func (s *store) grantExists(ctx context.Context, b *bucket, k key, token uint64) (bool, error) {
	if err := b.lock(ctx, false); err != nil {
		return false, err
	}
	i := slices.IndexFunc(b.entries, func(e entry) bool { return e.token == token && e.is(k) })
	var sid string
	if i >= 0 {
		sid = b.entries[i].sid
	}
	b.unlock()
	if i >= 0 && sid != "" && !s.isOwn(sid) && s.dead(sid) {
		s.cleanDeadSession(sid, b)
		return false, nil
	}
	return i >= 0, nil
}

// stillHeld returns the error of a Break whose holder has not released the lock.
func (s *store) stillHeld(ctx context.Context, e *entry) error {
	here, elsewhere := s.locate(e)
	if here && stopped(e.pid) {
		return driver.Errorf(driver.CodeBusy, "pid %d on %s got a request to end but is stopped: it keeps the lock until it is continued (kill -CONT %d) or killed: %w",
			e.pid, e.host, e.pid, ctx.Err())
	}
	host := e.host
	if elsewhere {
		host += ", in another PID namespace,"
	}
	return driver.Errorf(driver.CodeBusy, "pid %d on %s got a request to end and still holds the lock: %w", e.pid, host, ctx.Err())
}

// Watch calls changed after changes of a name, or of any name if name is empty. If no other waiter is
// behind a holder or waiter that dies, changed is called within a second.
func (s *store) Watch(ctx context.Context, name string, changed func()) error {
	var b *bucket
	if name != "" {
		b = s.bucketOf(name)
	}
	if err := s.calls.Enter(); err != nil {
		return err
	}
	defer s.calls.Leave()
	changes, stop := s.changes(b)
	defer stop()
	tick := time.NewTicker(wakeInterval)
	defer tick.Stop()
	seen := s.fingerprint(ctx, name)
	changed()
	for {
		select {
		case <-changes:
			seen = s.fingerprint(ctx, name)
			changed()
		case <-tick.C:
			if now := s.fingerprint(ctx, name); now != seen {
				seen = now
				changed()
			}
		case <-ctx.Done():
			return ctx.Err()
		case <-s.calls.Ctx.Done():
			return calls.ErrClosed
		}
	}
}

// fingerprint returns a text of the holders and waiters, which Watch compares with an earlier one.
func (s *store) fingerprint(ctx context.Context, name string) string {
	var p strings.Builder
	add := func(st driver.State) {
		p.WriteString(st.Name)
		if st.Err != nil {
			p.WriteString("\x00e" + st.Err.Error())
		}
		for _, h := range st.Holders {
			p.WriteString("\x00h" + h.ID + h.Note)
		}
		for _, w := range st.Waiters {
			p.WriteString("\x00w" + w.ID)
		}
		p.WriteByte(0)
	}
	if name != "" {
		st, _ := s.Inspect(ctx, name)
		add(st)
		return p.String()
	}
	for st, err := range s.List(ctx, "") {
		if err != nil {
			break
		}
		add(st)
	}
	return p.String()
}
