package drivertest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/must"
	"github.com/holdfast-go/holdfast/internal/wakeup"
)

// await receives from c, and ends the test with the message missing if nothing comes in time.
func await[T any](e *env, c <-chan T, missing string) (v T) {
	e.Helper()
	select {
	case v = <-c:
	case <-time.After(e.timeout()):
		e.Fatal(missing)
	}
	return v
}

func (e *env) inspector(s driver.Store) driver.Inspector {
	i, ok := s.(driver.Inspector)
	if !ok {
		e.Skip("the store cannot be inspected")
	}
	return i
}

// shown waits until an inspection shows a grant, if the store may omit a young one.
func (e *env) shown(s driver.Store, name string, token uint64) {
	e.Helper()
	i, ok := s.(driver.Inspector)
	if !ok || e.g.VisibleAfter == 0 {
		return
	}
	var st driver.State
	var err error
	e.eventually("an inspection shows the grant", func() bool {
		st, err = i.Inspect(e.Context(), name)
		return err != nil || slices.ContainsFunc(st.Holders, func(h driver.Holder) bool { return h.Token == token })
	}, func() string { return fmt.Sprintf("%+v, want token %d", st, token) })
	if err != nil {
		e.Fatalf("Inspect: %v", err)
	}
}

func inspect(e *env) {
	s, other, name := e.open(), e.open(), e.name()
	i := e.inspector(other)
	st, err := i.Inspect(e.Context(), name)
	if err != nil || st.Name != name || len(st.Holders)+len(st.Waiters) != 0 {
		e.Fatalf("a free name: %+v, %v", st, err)
	}
	r := e.request(name, driver.Exclusive, long)
	g := e.must(s, r)
	w := e.queue(other, e.request(name, driver.Exclusive, long))
	e.shown(other, name, g.Token)
	st, err = i.Inspect(e.Context(), name)
	if err != nil || len(st.Holders) != 1 {
		e.Fatalf("a held name: %+v, %v", st, err)
	}
	h := st.Holders[0]
	_, err = other.Acquire(e.Context(), e.request(name, driver.Exclusive, long))
	if busy, ok := errors.AsType[*driver.BusyError](err); ok && len(busy.Holders) > 0 {
		if got := busy.Holders[0]; got.ID != h.ID || got.Token != h.Token {
			e.Errorf("a request reports the holder %+v, want %+v", got, h)
		}
	}
	want := r.From.Owner()
	if h.ID != want.ID || h.Host != want.Host || h.PID != want.PID || h.Instance != want.Instance || h.Reason != want.Reason {
		e.Errorf("owner %+v, want %+v", h.Owner, want)
	}
	if h.Token != g.Token || h.Limit != g.Limit || h.Slot != g.Slot {
		e.Errorf("holder %+v, want %+v", h, g)
	}
	if age := time.Since(h.Since); age < -time.Minute || age > time.Hour {
		e.Errorf("held since %s", h.Since)
	}
	// A store may keep a lease for longer: Redis adds the time that a replica's clock is ahead.
	if h.TTL <= 0 || h.TTL-time.Second > g.TTL {
		e.Errorf("TTL left %s of %s", h.TTL, g.TTL)
	}
	if e.g.Visible == driver.VisibleAll {
		if len(st.Waiters) != 1 || st.Waiters[0].ID != w.r.ID || st.Waiters[0].Reason != w.r.From.Owner().Reason {
			e.Errorf("waiters %+v, want %s", st.Waiters, w.r.ID)
		}
	}
	e.release(s, g)
	e.release(other, w.granted())
	e.free(s, name)
}

// inspectNewOwner requires that the grant shows the owner at the time of the grant: another
// goroutine may have become the head of the core's queue during the wait. Here that happens as the store
// calls Queued, because it may send a request at any later time, with the owner of that time.
func inspectNewOwner(e *env) {
	s, other, name := e.open(), e.open(), e.name()
	i := e.inspector(other)
	g := e.must(other, e.request(name, driver.Exclusive, long))
	r := e.request(name, driver.Exclusive, long)
	const owner = "because of another"
	from(r).then = owner
	w := e.queue(s, r)
	e.release(other, g)
	g = w.granted()
	var st driver.State
	var err error
	// A store may write the owner after the grant: nothing depends on it.
	e.eventually("the grant shows its new owner", func() bool {
		st, err = i.Inspect(e.Context(), name)
		return err == nil && len(st.Holders) == 1 && st.Holders[0].Token == g.Token && st.Holders[0].Reason == owner
	}, func() string { return fmt.Sprintf("%+v, %v; want token %d %s", st, err, g.Token, owner) })
	e.release(s, g)
	e.free(s, name)
}

func list(e *env) {
	s, other := e.open(), e.open()
	i := e.inspector(other)
	base := e.name()
	var want []string
	var grants []driver.Grant
	for n := range 40 {
		name := fmt.Sprintf("%s/%02d", base, n)
		want = append(want, name)
		grants = append(grants, e.must(s, e.request(name, driver.Exclusive, long)))
	}
	outside := e.must(s, e.request(base[:len(base)-1]+"\x7f", driver.Exclusive, long))
	for _, g := range grants {
		e.shown(s, g.Name, g.Token)
	}
	slices.Sort(want)
	var got []string
	for st, err := range i.List(e.Context(), base+"/") {
		must.Succeed(e, err)
		got = append(got, st.Name)
		if len(st.Holders) != 1 || st.Err != nil {
			e.Errorf("%+v", st)
		}
	}
	if !slices.Equal(got, want) {
		e.Errorf("List: %v, want %v", got, want)
	}
	for range i.List(e.Context(), base) {
		break // a caller may stop early
	}
	for _, g := range append(grants, outside) {
		e.release(s, g)
	}
	for st, err := range i.List(e.Context(), base) {
		e.Errorf("after release List shows %+v, %v", st, err)
	}
}

// brokenRecord requires that a record that no client has written refuses its own name, and no
// other one. When it is removed, the holder of the name is notified, and tokens rise.
func brokenRecord(e *env) {
	if e.h.Corrupt == nil {
		e.Skip("the harness cannot break a record")
	}
	s, other, base := e.open(), e.open(), e.name()
	// The error of a store may name the record as it is at the store: these names need no escape.
	before, broken, after := base+"-a", base+"-b", base+"-c"
	grants := map[string]driver.Grant{}
	held := map[string]driver.Request{}
	for _, name := range []string{before, broken, after} {
		held[name] = e.request(name, driver.Exclusive, long)
		grants[name] = e.must(s, held[name])
		e.shown(s, name, grants[name].Token)
	}
	remove := e.h.Corrupt(e.T, "", broken)
	names := func(err error, what string) {
		e.Helper()
		e.code(other, err, driver.CodeRefused, what)
		if !strings.Contains(err.Error(), broken) {
			e.Errorf("%s: %v: it does not name %q", what, err, broken)
		}
	}
	for _, limit := range e.kinds() {
		if limit != driver.Exclusive && !e.g.Mixed {
			continue // the broken record may count as one of the limit
		}
		for _, wait := range []bool{false, true} {
			r := e.request(broken, limit, long)
			r.Wait = wait && e.pushes()
			_, err := other.Acquire(e.Context(), r)
			names(err, fmt.Sprintf("Acquire of a broken record, limit %d, wait %t", limit, wait))
		}
	}
	if i, ok := other.(driver.Inspector); ok {
		_, err := i.Inspect(e.Context(), broken)
		names(err, "Inspect of a broken record")
		var got []string
		for st, err := range i.List(e.Context(), base+"-") {
			if err != nil {
				e.Fatalf("a broken record ends List: %v", err)
			}
			got = append(got, st.Name)
			if st.Name == broken {
				names(st.Err, "List of a broken record")
			} else if st.Err != nil || len(st.Holders) != 1 {
				e.Errorf("beside a broken record: %+v", st)
			}
		}
		if want := []string{before, broken, after}; !slices.Equal(got, want) {
			e.Errorf("List: %v, want %v", got, want)
		}
	}
	e.release(s, grants[before])
	e.release(s, grants[after])
	remove()
	if cause := await(e, from(held[broken]).lost, "the holder of a record that was removed is not notified"); cause != driver.CauseGone && cause != driver.CauseTaken {
		e.Errorf("the holder of a record that was removed has lost it with cause %q, want %q or %q", cause, driver.CauseGone, driver.CauseTaken)
	}
	if err := s.Renew(e.Context(), []driver.Grant{grants[broken]})[0].Err; err != nil {
		e.code(s, err, driver.CodeNotHeld, "renewing a grant whose record was removed")
	} else {
		e.busy(other, e.request(broken, driver.Exclusive, long)) // the renewal has written the record again
	}
	if err := s.Release(e.Context(), grants[broken], 0); err != nil {
		e.code(s, err, driver.CodeNotHeld, "Release of a grant whose record was removed")
	}
	next := e.must(s, e.request(broken, driver.Exclusive, long))
	e.above(next, grants[broken])
	e.release(s, next)
	e.free(s, broken)
}

func watch(e *env) {
	s, name := e.open(), e.name()
	w, ok := e.open().(driver.Watcher)
	if !ok && e.g.Wanted != driver.WakePush {
		e.Skip("the store cannot report changes")
	} else if !ok {
		e.Fatal("the store declares that a holder is notified of a waiter, and is no Watcher")
	}
	ctx, cancel := context.WithCancel(e.Context())
	changed, done := make(chan struct{}, 100), make(chan error, 1)
	go func() {
		done <- w.Watch(ctx, name, func() { wakeup.Send(changed) })
	}()
	next := func(what string) {
		e.Helper()
		select {
		case <-changed:
		case err := <-done:
			if s.Classify(err) == driver.CodeUnsupported && e.g.Wanted != driver.WakePush {
				e.Skip(err)
			}
			e.Fatalf("the watch ended: %v", err)
		case <-time.After(e.timeout()):
			e.Fatalf("the watch did not report %s", what)
		}
		for len(changed) > 0 { // changed may have been called more than once
			<-changed
		}
	}
	next("the start")
	other := func(what string) {
		if !e.h.WatchesWaiters {
			e.Helper()
			next(what)
		}
	}
	g := e.must(s, e.request(name, driver.Exclusive, long))
	other("a grant")
	if e.g.Visible == driver.VisibleAll {
		wait := e.queue(e.open(), e.request(name, driver.Exclusive, long))
		next("a waiter")
		wait.leave()
		other("the end of a wait")
	}
	e.release(s, g)
	other("a release")
	cancel()
	await(e, done, "the watch did not end with its context")
	closed := e.open()
	go func() { done <- closed.(driver.Watcher).Watch(e.Context(), name, func() { wakeup.Send(changed) }) }()
	next("the start")
	if err := closed.Close(e.Context()); err != nil {
		e.Errorf("Close: %v", err)
	}
	e.code(closed, await(e, done, "the watch did not end with its store"), driver.CodeClosed, "Watch of a closed store")
}

func breakGrant(e *env) {
	s, other, name := e.open(), e.open(), e.name()
	b, ok := other.(driver.Breaker)
	if !ok {
		e.Skip("the store cannot break a grant")
	}
	e.code(other, b.Break(e.Context(), name, 1), driver.CodeNotHeld, "breaking a free name")
	r := e.request(name, driver.Exclusive, long)
	g := e.must(s, r)
	e.code(other, b.Break(e.Context(), name, g.Token-1), driver.CodeNotHeld, "breaking with an older token")
	e.code(other, b.Break(e.Context(), name, g.Token+1), driver.CodeNotHeld, "breaking with a newer token")
	e.busy(other, e.request(name, driver.Exclusive, long))

	broken := make(chan error, 1)
	go func() { broken <- b.Break(e.Context(), name, g.Token) }()
	select {
	case cause := <-from(r).lost:
		if cause != driver.CauseTaken {
			e.Errorf("the holder was notified of cause %q, want %q", cause, driver.CauseTaken)
		}
	case err := <-broken:
		if err != nil {
			e.Fatalf("Break: %v", err)
		}
		await(e, from(r).lost, "the holder was not notified")
		broken <- nil
	case <-time.After(e.timeout()):
		e.Fatal("the holder was not notified")
	}
	if e.g.Break == driver.BreakNotify {
		e.busy(other, e.request(name, driver.Exclusive, long)) // until the holder has released it
		var err error
		// If a timeout is too short for the first step, the next one is twice as long.
		for wait := 20 * time.Millisecond; wait < e.timeout(); wait *= 2 {
			ctx, cancel := context.WithTimeout(e.Context(), wait)
			err = b.Break(ctx, name, g.Token)
			cancel()
			if err == nil || other.Classify(err) != driver.CodeUnavailable {
				break
			}
		}
		e.code(other, err, driver.CodeBusy, "breaking a grant that its holder keeps")
	}
	err := s.Release(e.Context(), g, 0)
	if e.g.Break == driver.BreakNotify {
		if err != nil {
			e.Fatalf("the notified holder cannot release: %v", err)
		}
	} else {
		e.code(s, err, driver.CodeNotHeld, "releasing a broken grant")
	}
	if err := await(e, broken, "Break did not return"); err != nil {
		e.Fatalf("Break: %v", err)
	}
	e.code(other, b.Break(e.Context(), name, g.Token), driver.CodeNotHeld, "breaking twice")
	e.free(other, name)
}

func closed(e *env) {
	s, name := e.open(), e.name()
	g := e.must(s, e.request(name, driver.Exclusive, e.h.TTL))
	for range 2 { // a second Close has no effect
		if err := s.Close(e.Context()); err != nil && s.Classify(err) != driver.CodeClosed {
			e.Fatalf("Close: %v", err)
		}
	}
	_, err := s.Acquire(e.Context(), e.request(name, driver.Exclusive, long))
	e.code(s, err, driver.CodeClosed, "Acquire after Close")
	e.code(s, s.Release(e.Context(), g, 0), driver.CodeClosed, "Release after Close")
	e.code(s, s.Undo(e.Context(), e.request(name, driver.Exclusive, long)), driver.CodeClosed, "Undo after Close")
	for _, r := range s.Renew(e.Context(), []driver.Grant{g}) {
		e.code(s, r.Err, driver.CodeClosed, "Renew after Close")
	}
	if i, ok := s.(driver.Inspector); ok {
		_, err := i.Inspect(e.Context(), name)
		e.code(s, err, driver.CodeClosed, "Inspect after Close")
		for _, err := range i.List(e.Context(), "") {
			e.code(s, err, driver.CodeClosed, "List after Close")
		}
	}
	if b, ok := s.(driver.Breaker); ok {
		e.code(s, b.Break(e.Context(), name, g.Token), driver.CodeClosed, "Break after Close")
	}
	if w, ok := s.(driver.Watcher); ok {
		e.code(s, w.Watch(e.Context(), name, func() {}), driver.CodeClosed, "Watch after Close")
	}
	again := e.open()
	e.release(again, e.takeExpired(again, name))
}

// openWithoutServer requires that Open succeeds while no server answers. The calls of that client
// end with their context, and succeed when the server is back.
func openWithoutServer(e *env) {
	if e.h.Stop == nil {
		e.Skip("the harness cannot stop the store")
	}
	name := e.name()
	e.h.Stop(e.T)
	opened := make(chan driver.Store, 1)
	go func() {
		defer close(opened)
		e.Run("opens", func(t *testing.T) { opened <- e.h.Open(t, "") })
	}()
	var s driver.Store
	select {
	case s = <-opened:
	case <-time.After(openTime):
	}
	if s == nil {
		e.h.Start(e.T)
		if s = <-opened; s != nil {
			e.opened(s)
		}
		e.Fatalf("Open did not return within %s while no server answered: it must return a store, whose calls report that there is no server", openTime)
	}
	e.opened(s)
	ctx, cancel := context.WithTimeout(e.Context(), 200*time.Millisecond)
	r := e.request(name, driver.Exclusive, long)
	_, err := s.Acquire(ctx, r)
	cancel()
	code := driver.CodeUnavailable
	if err == nil {
		e.Errorf("Acquire(%q) was granted while no server answered", name)
	} else if code = s.Classify(err); code != driver.CodeUnavailable && code != driver.CodeUnknown && code != driver.CodeWithdrawn {
		e.Errorf("Acquire(%q) while no server answers: %v (%v), want unavailable, withdrawn, or an unknown outcome", name, code, err)
	}
	e.h.Start(e.T)
	if code == driver.CodeUnknown {
		e.undone(s, r)
	}
	g := e.takeExpired(s, name)
	e.release(s, g)
}

// openTime limits Open while no server answers.
const openTime = 20 * time.Second

// down requires that a call to an unreachable store ends with its context, and that its code is
// unavailable, withdrawn or unknown. The store works again when the server is back.
func down(e *env) {
	if e.h.Stop == nil {
		e.Skip("the harness cannot stop the store")
	}
	s, name := e.open(), e.name()
	e.free(s, name)
	e.h.Stop(e.T)
	ctx, cancel := context.WithTimeout(e.Context(), 50*time.Millisecond)
	defer cancel()
	r := e.request(name, driver.Exclusive, long)
	_, err := s.Acquire(ctx, r)
	if err == nil {
		e.Fatal("a stopped store granted")
	}
	code := s.Classify(err)
	if code != driver.CodeUnknown && code != driver.CodeUnavailable && code != driver.CodeWithdrawn {
		e.Errorf("Acquire of a stopped store returns %v (%v)", code, err)
	}
	e.h.Start(e.T)
	if code == driver.CodeUnknown {
		e.undone(s, r)
	}
	e.release(s, e.takeExpired(s, name))
}
