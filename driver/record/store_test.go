//go:build linux || darwin

package record

import (
	"bytes"
	"context"
	"crypto/md5"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/drivertest"
	"github.com/holdfast-go/holdfast/internal/must"
	"github.com/holdfast-go/holdfast/internal/wakeup"
)

// memory is the storage of a test: a map, whose versions are hashes of the data.
type memory struct {
	mu       sync.Mutex
	records  map[string][]byte
	written  map[string]time.Time // when a record was written; nil if the storage does not return it
	watchers map[*watcher]bool
	ahead    time.Duration // of the storage's clock
	tick     time.Duration // of the storage's clock
	down     bool
	quiet    bool          // it does not report changes
	delay    time.Duration // of the answers
	requests int
}

// client is one client of a memory. It is a Storage and a Watcher.
type client struct {
	*memory
	holding bool     // whether the next request is held back
	held    []func() // the requests that were held back
	lose    int      // the number of the next Put that loses its answer; 0 if none does
}

// watcher is a call of Watch.
type watcher struct{ changed func(key, id string) }

func newMemory() *memory {
	return &memory{records: map[string][]byte{}, watchers: map[*watcher]bool{}}
}

// request executes f at the storage. It returns errNoAnswer if it was executed, or may be later.
func (c *client) request(ctx context.Context, f func()) error {
	if err := ctx.Err(); err != nil {
		return &driver.Error{Code: driver.CodeUnavailable, Err: err}
	}
	c.mu.Lock()
	c.requests++
	down, delay, hold := c.down, c.delay, c.holding
	switch {
	case hold:
		c.holding, c.held = false, append(c.held, f)
	case !down:
		f()
	}
	c.mu.Unlock()
	switch {
	case hold:
		return errNoAnswer
	case down:
		return driver.Errorf(driver.CodeUnavailable, "the storage is down")
	case delay == 0:
		return nil
	}
	select {
	case <-time.After(delay):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

var errNoAnswer = errors.New("the connection has ended")

// now returns the time by the storage's clock, also in a bubble of testing/synctest.
func (m *memory) now() time.Time {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_REALTIME, &now); err != nil {
		panic(err)
	}
	return time.Unix(now.Unix()).Add(m.ahead).Truncate(m.tick)
}

func version(data []byte) string {
	if data == nil {
		return ""
	}
	sum := md5.Sum(data)
	return hex.EncodeToString(sum[:])
}

func (c *client) Get(ctx context.Context, key string) (o Object, err error) {
	return o, c.request(ctx, func() {
		o = Object{Data: c.records[key], Version: version(c.records[key]), Now: c.now(), Written: c.written[key]}
		if c.written != nil && o.Version == "" {
			o.Written = o.Now
		}
	})
}

func (c *client) Put(ctx context.Context, key string, data []byte, old string) (string, error) {
	same, lost := false, false
	err := c.request(ctx, func() {
		if same = version(c.records[key]) == old; same {
			c.records[key] = bytes.Clone(data)
			if c.written != nil {
				c.written[key] = c.now()
			}
			for w := range c.watchers {
				if !c.quiet {
					w.changed(key, "")
				}
			}
		}
		lost, c.lose = c.lose == 1, max(c.lose-1, 0)
	})
	switch {
	case err != nil:
		return "", err
	case lost:
		return "", errNoAnswer
	case !same:
		return "", driver.Conflict(key)
	}
	return version(data), nil
}

func (c *client) List(ctx context.Context, prefix string) iter.Seq2[Entry, error] {
	var all map[string][]byte
	var now time.Time
	err := c.request(ctx, func() { all, now = maps.Clone(c.records), c.now() })
	return func(yield func(Entry, error) bool) {
		if err != nil {
			yield(Entry{}, err)
			return
		}
		for key, data := range all {
			if strings.HasPrefix(key, prefix) && !yield(Entry{key, Object{Data: data, Now: now}}, nil) {
				return
			}
		}
	}
}

func (c *client) Watch(ctx context.Context, changed func(key, id string)) error {
	w := &watcher{changed}
	c.mu.Lock()
	c.watchers[w] = true
	c.mu.Unlock()
	changed("", "")
	<-ctx.Done()
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.watchers, w)
	return ctx.Err()
}

func (c *client) Close() error { return nil }

// LoseAnswer, Hold, Held and Deliver implement drivertest.Late.
func (c *client) LoseAnswer(after int) { c.mu.Lock(); defer c.mu.Unlock(); c.lose = after + 1 }

func (c *client) Hold() { c.mu.Lock(); defer c.mu.Unlock(); c.holding = true }

func (c *client) Held() int { c.mu.Lock(); defer c.mu.Unlock(); return len(c.held) }

func (c *client) Deliver(time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, f := range c.held {
		f()
	}
	c.holding, c.held = false, nil
}

// unwatched is a client that cannot watch its storage.
type unwatched struct{ Storage }

func (m *memory) open(s Storage, namespace string) *Store {
	o := Options{Namespace: namespace, Skew: func() time.Duration { return m.tick }}
	return New(s, "memory", driver.Guarantees{Kind: "map", Scope: driver.ScopeProcess}, o)
}

// TestConformance runs the suite with a storage that reports changes, and with one that does not and has a
// coarse clock.
func TestConformance(t *testing.T) {
	for name, watch := range map[string]bool{"watched": true, "polled": false} {
		t.Run(name, func(t *testing.T) {
			m := newMemory()
			if !watch {
				m.tick, m.written = 50*time.Millisecond, map[string]time.Time{}
			}
			storage := func(c *client) Storage {
				if watch {
					return c
				}
				return unwatched{c}
			}
			set := func(change func()) { m.mu.Lock(); defer m.mu.Unlock(); change() }
			h := drivertest.Harness{
				Open: func(_ testing.TB, namespace string) driver.Store {
					return m.open(storage(&client{memory: m}), namespace)
				},
				OpenLate: func(testing.TB) (driver.Store, drivertest.Late) {
					c := &client{memory: m}
					return m.open(storage(c), ""), c
				},
				Stop:     func(testing.TB) { set(func() { m.down = true }) },
				Start:    func(testing.TB) { set(func() { m.down = false }) },
				Delay:    func(_ testing.TB, d time.Duration) { set(func() { m.delay = d }) },
				SetClock: func(_ testing.TB, ahead time.Duration) { set(func() { m.ahead = ahead }) },
				Bubble:   true,
				Corrupt: func(_ testing.TB, namespace, name string) func() {
					key := "lock\x00" + namespace + "\x00" + name
					set(func() { m.records[key] = []byte("0123456789 0123456789 012345 {}") })
					return func() { set(func() { delete(m.records, key) }) }
				},
			}
			if watch {
				h.OpenWithoutFallback = func(t testing.TB, namespace string) driver.Store {
					return wakeup.WithoutFallback(h.Open(t, namespace))
				}
			}
			drivertest.Run(t, h)
		})
	}
}

// counted is a Batch that counts its exchanges.
type counted struct {
	Batch
	exchanges int
}

func (b *counted) Exchange(ctx context.Context, changes []Change, keys []string) []Result {
	b.exchanges++
	return b.Batch.Exchange(ctx, changes, keys)
}

// TestFewRoundTrips: each call makes two exchanges, and two requests for each name of a storage without batches.
func TestFewRoundTrips(t *testing.T) {
	m := newMemory()
	b := &counted{Batch: single{&client{memory: m}}}
	e := NewEngine(b, Options{Notice: time.Hour}) // no check of the grants during the test
	defer e.Close(t.Context())
	after := func(call string, names, each int) {
		t.Helper()
		if b.exchanges != each || m.requests != each*names {
			t.Errorf("%s: %d exchanges and %d requests, want %d and %d", call, b.exchanges, m.requests, each, each*names)
		}
		b.exchanges, m.requests = 0, 0
	}
	var grants []driver.Grant
	for i := range batch {
		r := driver.Request{ID: fmt.Sprint(i), Name: fmt.Sprint(i), Limit: driver.Exclusive, TTL: time.Hour, From: noRequester{}}
		g, err := e.Acquire(t.Context(), r)
		must.Succeed(t, err)
		after("Acquire", 1, 2)
		grants = append(grants, g)
	}
	must.Succeed(t, e.Release(t.Context(), grants[0], 0))
	after("Release", 1, 2)
	for _, a := range e.Renew(t.Context(), grants[1:]) {
		if a.Err != nil {
			t.Fatal(a.Err)
		}
	}
	after("Renew", batch-1, 2)
}

// slow is a Batch without records that answers slowly.
type slow struct {
	Batch
	each time.Duration
}

func (b slow) Exchange(ctx context.Context, _ []Change, keys []string) []Result {
	results := make([]Result, len(keys))
	select {
	case <-time.After(b.each):
	case <-ctx.Done():
		results[0].Err = &driver.Error{Code: driver.CodeUnavailable, Err: ctx.Err()}
	}
	return results
}

func (slow) Close() error { return nil }

type lostTo struct {
	noRequester
	lost chan driver.Cause
}

func (l lostTo) Lost(cause driver.Cause, _ error) { l.lost <- cause }

// TestBreakIsNoticedOnSlowStorage: the client notices a broken grant although each request takes most of the
// interval between two checks.
func TestBreakIsNoticedOnSlowStorage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		interval := Options{}.checkInterval()
		e := NewEngine(slow{each: interval * 9 / 10}, Options{})
		l := lostTo{lost: make(chan driver.Cause, 1)}
		_, err := e.keep(driver.Request{From: l}, driver.Grant{ID: "id", Name: "n", Token: 1}, time.Now())
		must.Succeed(t, err)
		select {
		case <-l.lost:
		case <-time.After(2 * interval):
			t.Error("the holder is not notified")
		}
		must.Report(t, e.Close(t.Context()))
	})
}

// watched is a slow Batch that counts the calls of Watch.
type watched struct {
	slow
	calls chan error
}

func (w watched) Watch(ctx context.Context, changed func(key, id string)) error {
	changed("", "")
	<-ctx.Done()
	w.calls <- ctx.Err()
	return ctx.Err()
}

// TestWatchEndsAfterLastWaiter: the storage is watched as long as waiters follow one another, and a while
// longer.
func TestWatchEndsAfterLastWaiter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := watched{calls: make(chan error, 9)}
		e := NewEngine(w, Options{Poll: time.Second})
		for range 5 {
			_, stop, err := e.waiters.listen(t.Context(), "a", "id")
			must.Succeed(t, err)
			stop()
			time.Sleep(watchOn * 6 / 10)
		}
		synctest.Wait()
		if len(w.calls) != 0 {
			t.Error("the watch ended although another waiter came in time")
		}
		time.Sleep(watchOn)
		synctest.Wait()
		if len(w.calls) != 1 {
			t.Errorf("%d watches have ended, want 1", len(w.calls))
		}
		must.Report(t, e.Close(t.Context()))
	})
}

func TestValues(t *testing.T) {
	m := newMemory()
	drivertest.RunValues(t, func(_ testing.TB, namespace string) *Store {
		return m.open(&client{memory: m}, namespace)
	})
}

// coded is a client whose answers to Get and Put are lost, and replaced by errors with the codes.
type coded struct {
	*client
	get, put driver.Code
}

func (c *coded) Get(ctx context.Context, key string) (Object, error) {
	if c.get != 0 {
		return Object{}, driver.Errorf(c.get, "get")
	}
	return c.client.Get(ctx, key)
}

func (c *coded) Put(ctx context.Context, key string, data []byte, version string) (string, error) {
	next, err := c.client.Put(ctx, key, data, version)
	if c.put != 0 {
		err = driver.Errorf(c.put, "put")
	}
	return next, err
}

func request(id string) driver.Request {
	return driver.Request{ID: id, Name: "n", Limit: driver.Exclusive, TTL: time.Minute, From: noRequester{}}
}

// TestCodesWithoutMeaningAreNotReturned: after a code that a Storage does not return, a write has an unknown
// outcome, and a read was not done.
func TestCodesWithoutMeaningAreNotReturned(t *testing.T) {
	for _, code := range []driver.Code{driver.CodeBusy, driver.CodeWithdrawn, driver.CodeNotHeld, driver.CodeUnsupported,
		driver.CodeInvalid, driver.CodeClosed} {
		c := &coded{client: &client{memory: newMemory()}, put: code}
		s := c.open(c, "")
		if _, err := s.Acquire(t.Context(), request("a")); driver.CodeOf(err) != driver.CodeUnknown {
			t.Errorf("Acquire returns code %v after %v of Put", driver.CodeOf(err), code)
		}
		if _, err := s.Put(t.Context(), "v", nil, ""); driver.CodeOf(err) != driver.CodeUnknown {
			t.Errorf("Put of a value returns code %v after %v", driver.CodeOf(err), code)
		}
		c.get = code
		r := request("b")
		r.Wait = true
		if _, err := s.Acquire(t.Context(), r); driver.CodeOf(err) != driver.CodeUnavailable {
			t.Errorf("Acquire returns code %v after %v of Get", driver.CodeOf(err), code)
		}
		must.Report(t, s.Close(t.Context()))
	}
}

// silent is a client without an answer to Get of one key.
type silent struct {
	*client
	key string
}

func (s *silent) Get(ctx context.Context, key string) (Object, error) {
	if key == s.key {
		<-ctx.Done()
	}
	return s.client.Get(ctx, key)
}

// TestSilentRecordDelaysNoRenewal: requests that get no answer for one name delay no renewal of another.
func TestSilentRecordDelaysNoRenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &silent{client: &client{memory: newMemory()}}
		s := c.open(unwatched{c}, "")
		var grants []driver.Grant
		for i := range 2 * batch {
			r := request(fmt.Sprint("id", i))
			r.Name = fmt.Sprint("n", i)
			g, err := s.Acquire(t.Context(), r)
			must.Succeed(t, err)
			grants = append(grants, g)
		}
		c.key = s.key("n3")
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		for range 2 * batch {
			go func() { _, _ = s.Inspect(ctx, "n3") }()
		}
		synctest.Wait()
		for i, a := range s.Renew(ctx, grants) {
			if code := driver.CodeOf(a.Err); i != 3 && a.Err != nil || i == 3 && code != driver.CodeUnavailable {
				t.Errorf("the renewal of %s returns %v", grants[i].Name, a.Err)
			}
		}
		cancel()
		must.Report(t, s.Close(t.Context()))
	})
}

// unanswered is a client whose Watch does not begin.
type unanswered struct{ *client }

func (unanswered) Watch(ctx context.Context, _ func(key, id string)) error {
	<-ctx.Done()
	return ctx.Err()
}

// TestWaiterPollsBeforeWatchBegins: a waiter gets a free lock although the storage does not answer to Watch.
func TestWaiterPollsBeforeWatchBegins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		s := m.open(unanswered{&client{memory: m}}, "")
		g, err := s.Acquire(t.Context(), request("a"))
		must.Succeed(t, err)
		time.AfterFunc(time.Millisecond, func() { _ = s.Release(t.Context(), g, 0) })
		ctx, cancel := context.WithTimeout(t.Context(), 2*s.guarantees.Fallback)
		defer cancel()
		r := request("b")
		r.Wait = true
		if _, err := s.Acquire(ctx, r); err != nil {
			t.Error(err)
		}
		must.Report(t, s.Close(t.Context()))
	})
}

// waking is a client that reports changes itself.
type waking struct {
	*client
	woken []string
}

func (w *waking) Wake(key, _ string) { w.woken = append(w.woken, key) }

// TestClientReportsOnlyWakingChanges: a Waker reports a release, a break and a rollback, and neither a grant nor
// its renewal.
func TestClientReportsOnlyWakingChanges(t *testing.T) {
	m := newMemory()
	w := &waking{client: &client{memory: m}}
	s := m.open(w, "")
	woken := func(after string, want int) {
		t.Helper()
		if len(w.woken) != want || want > 0 && w.woken[want-1] != "lock\x00\x00"+request("a").Name {
			t.Errorf("after %s: %q, want %d keys", after, w.woken, want)
		}
	}
	grant := func() driver.Grant {
		t.Helper()
		g, err := s.Acquire(t.Context(), request("a"))
		must.Succeed(t, err)
		return g
	}
	g := grant()
	if a := s.Renew(t.Context(), []driver.Grant{g}); a[0].Err != nil {
		t.Error(a[0].Err)
	}
	woken("a grant and its renewal", 0)
	must.Report(t, s.Release(t.Context(), g, 0))
	woken("a release", 1)
	must.Report(t, s.Break(t.Context(), g.Name, grant().Token))
	woken("a break", 2)
	grant()
	must.Report(t, s.Undo(t.Context(), request("a")))
	woken("a rollback", 3)
	must.Report(t, s.Close(t.Context()))
}

// refusing is a client whose storage reports each write as a conflict: after it has applied the write, if apply is set.
type refusing struct {
	*client
	apply bool
}

func (r refusing) Put(ctx context.Context, key string, data []byte, old string) (string, error) {
	if r.apply {
		if _, err := r.client.Put(ctx, key, data, old); err != nil {
			return "", err
		}
	}
	return "", driver.Conflict(key)
}

// TestWriteThatConflictsWithItselfIsConfirmed: a proxy or a client library has repeated a write, and the second one is
// refused. The engine finds the write, and notifies waiters. If the record has the version that the write replaces, the
// outcome is unknown.
func TestWriteThatConflictsWithItselfIsConfirmed(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for _, apply := range []bool{true, false} {
		m := newMemory()
		w := &waking{client: &client{memory: m}}
		s := m.open(struct {
			Storage
			Watcher
			Waker
		}{refusing{w.client, apply}, w, w}, "")
		want := func(what string, err error) {
			t.Helper()
			if apply != (err == nil) || !apply && driver.CodeOf(err) != driver.CodeUnknown {
				t.Errorf("applied: %v, %s: %v", apply, what, err)
			}
		}
		g, err := s.Acquire(ctx, request("a"))
		want("Acquire", err)
		if apply {
			want("Release", s.Release(ctx, g, 0))
			if len(w.woken) != 1 {
				t.Errorf("%d notifications", len(w.woken))
			}
		}
		version, err := s.Put(ctx, "key", []byte("value"), "")
		want("Put", err)
		if _, found, err := s.Get(ctx, "key"); err != nil || found != version {
			t.Errorf("version %q, %v; Put has returned %q", found, err, version)
		}
		must.Report(t, s.Close(t.Context()))
	}
}

// TestRenewalStandsAlthoughSkewChanges: the client recognises its renewals while the measured skew changes.
func TestRenewalStandsAlthoughSkewChanges(t *testing.T) {
	skew := time.Second
	e := NewEngine(single{&client{memory: newMemory()}},
		Options{Skew: func() time.Duration { skew += time.Microsecond; return skew }})
	g, err := e.Acquire(t.Context(), request("a"))
	must.Succeed(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if a := e.Renew(ctx, []driver.Grant{g}); a[0].Err != nil {
		t.Error(a[0].Err)
	}
	must.Report(t, e.Close(t.Context()))
}

// beforePut is a client that calls a function before the next Put.
type beforePut struct {
	*client
	call func()
}

func (b *beforePut) Put(ctx context.Context, key string, data []byte, version string) (string, error) {
	if call := b.call; call != nil {
		b.call = nil
		call()
	}
	return b.client.Put(ctx, key, data, version)
}

// TestGrantOutlastsClockTick: a clock of a millisecond's precision needs no Skew.
func TestGrantOutlastsClockTick(t *testing.T) {
	if got, want := (&engine{}).lasts(time.Second), micros(time.Second+time.Millisecond); got < want {
		t.Errorf("a grant for a second lasts %d µs, want %d", got, want)
	}
}

// TestWaiterPollsCoarseClockSlowly: a waiter makes few requests in the last second of a grant, although the time
// left is short until the clock ticks.
func TestWaiterPollsCoarseClockSlowly(t *testing.T) {
	m := newMemory()
	m.tick = time.Second
	m.ahead = -time.Duration(m.now().Nanosecond()) // the tick begins now
	s := m.open(&client{memory: m}, "")
	r := request("a")
	r.TTL = time.Millisecond
	if _, err := s.Acquire(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	r = request("b")
	r.Wait = true
	if _, err := s.Acquire(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	must.Report(t, s.Close(t.Context()))
	if m.requests > 100 {
		t.Errorf("the waiter made %d requests", m.requests)
	}
}

// TestReleaseOfBrokenGrantIsRefused: an operator breaks a grant between the read and the write of its release.
func TestReleaseOfBrokenGrantIsRefused(t *testing.T) {
	m := newMemory()
	c := &beforePut{client: &client{memory: m}}
	s := m.open(unwatched{c}, "")
	defer s.Close(t.Context())
	for name, release := range map[string]func(driver.Grant) error{
		"Release": func(g driver.Grant) error { return s.Release(t.Context(), g, 0) },
		"Swap": func(g driver.Grant) (err error) {
			r := request("next")
			next, swapErr := s.Swap(t.Context(), g, r, func(released error) { err = released })
			return errors.Join(err, swapErr, s.Release(t.Context(), next, 0))
		},
	} {
		g, err := s.Acquire(t.Context(), request(name))
		must.Succeed(t, err)
		c.call = func() {
			must.Report(t, s.Break(t.Context(), g.Name, g.Token))
		}
		if err := release(g); driver.CodeOf(err) != driver.CodeNotHeld || err == nil {
			t.Errorf("%s returns %v, want not held", name, err)
		}
	}
}

// pages is a client whose lists have each key twice.
type pages struct {
	*client
	timeless bool
}

func (p *pages) List(ctx context.Context, prefix string) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		for range 2 {
			for entry, err := range p.client.List(ctx, prefix) {
				if p.timeless {
					entry.Now = time.Time{}
				}
				if !yield(entry, err) {
					return
				}
			}
		}
	}
}

// TestListYieldsNamesOnce: also if the storage lists a record twice. It refuses a record without a time, and the
// caller may close the store meanwhile.
func TestListYieldsNamesOnce(t *testing.T) {
	p := &pages{client: &client{memory: newMemory()}}
	s := p.open(unwatched{p}, "")
	if _, err := s.Acquire(t.Context(), request("a")); err != nil {
		t.Fatal(err)
	}
	list := func() (n int, err error) {
		for _, err = range s.List(t.Context(), "") {
			n++
			if err == nil {
				err = s.Close(t.Context())
			}
		}
		return n, err
	}
	p.timeless = true
	if _, err := list(); driver.CodeOf(err) != driver.CodeRefused || err == nil {
		t.Errorf("List returns %v for a record without a time", err)
	}
	p.timeless = false
	if n, err := list(); n != 1 || err != nil {
		t.Errorf("List yields %d names and %v, want 1", n, err)
	}
}

// TestGrantLastsFromItsWrite: the time of the read on which a grant or its renewal was decided was a minute old. The
// grant stands for its TTL nevertheless, and not for longer.
func TestGrantLastsFromItsWrite(t *testing.T) {
	m := newMemory()
	m.written = map[string]time.Time{}
	c := &beforePut{client: &client{memory: m}}
	s := m.open(unwatched{c}, "")
	defer s.Close(t.Context())
	standsForTTL := func(of string, r driver.Request) {
		t.Helper()
		for ahead, want := range map[time.Duration]int{r.TTL - time.Second: 1, r.TTL + time.Second: 0} {
			m.ahead = ahead
			st, err := s.Inspect(t.Context(), r.Name)
			must.Succeed(t, err)
			if len(st.Holders) != want {
				t.Errorf("after %s, %s has %d holders, want %d", ahead, of, len(st.Holders), want)
			}
		}
	}
	stale := func() { m.ahead, c.call = -time.Minute, func() { m.ahead = 0 } }
	r := request("a")
	stale()
	g, err := s.Acquire(t.Context(), r)
	must.Succeed(t, err)
	standsForTTL("the grant", r)
	m.ahead = 0
	stale()
	if a := s.Renew(t.Context(), []driver.Grant{g}); a[0].Err != nil {
		t.Fatal(a[0].Err)
	}
	standsForTTL("its renewal", r)
}

// TestWaiterDoesNotRenewADeadGrant: a tick of a coarse clock passes between each read and the write of a waiter's position. The
// grant of a dead client ends all the same.
func TestWaiterDoesNotRenewADeadGrant(t *testing.T) {
	m := newMemory()
	m.written, m.tick = map[string]time.Time{}, time.Second
	c := &beforePut{client: &client{memory: m}}
	s := m.open(unwatched{c}, "")
	dead, waiting := request("dead"), request("waiting")
	dead.TTL, waiting.TTL = 3*time.Second, time.Second
	if _, err := s.Acquire(t.Context(), dead); err != nil {
		t.Fatal(err)
	}
	for waited := time.Second; waited < 20*time.Second; waited += time.Second {
		tick := func() { m.ahead += time.Second }
		c.call, waiting.Waited = tick, waited
		if _, err := s.Acquire(t.Context(), waiting); err == nil {
			return
		}
		if c.call != nil { // nothing was written
			tick()
		}
	}
	t.Error("the grant stands for more than six times its TTL")
}

// TestLongestWaiterIsNext: the record keeps a free name for the request that has waited longest, until that request is
// granted, is undone, ends its wait, or is not heard of any more.
func TestLongestWaiterIsNext(t *testing.T) {
	m := newMemory()
	s := m.open(unwatched{&client{memory: m}}, "")
	acquire := func(id string, waited time.Duration, want driver.Code) (g driver.Grant, retry time.Duration) {
		t.Helper()
		r := request(id)
		r.Waited = waited
		g, err := s.Acquire(t.Context(), r)
		if (err == nil) != (want == 0) || err != nil && driver.CodeOf(err) != want {
			t.Fatalf("%s: %v, want code %v", id, err, want)
		}
		if busy, ok := errors.AsType[*driver.BusyError](err); ok {
			retry = busy.Retry
		}
		return g, retry
	}
	release := func(g driver.Grant) {
		t.Helper()
		must.Succeed(t, s.Release(t.Context(), g, 0))
	}
	const busy = driver.CodeBusy
	a, _ := acquire("a", 0, 0)
	if _, retry := acquire("young", time.Second, busy); retry == 0 {
		t.Error("the first waiter is not asked to try again soon")
	}
	acquire("old", time.Minute, busy)
	if _, retry := acquire("young", time.Second, busy); retry != 0 {
		t.Error("a waiter that is not the first is asked to try again soon")
	}
	release(a)
	acquire("new", 0, busy)
	acquire("young", time.Second, busy)
	old, _ := acquire("old", time.Minute, 0)
	acquire("young", time.Second, busy)
	release(old)
	acquire("new", 0, busy)
	must.Succeed(t, s.Undo(t.Context(), request("young")))
	next, _ := acquire("new", 0, 0)

	acquire("dead", time.Minute, busy)
	release(next)
	acquire("new", 0, busy)
	m.ahead += driver.PositionTime(time.Minute)
	next, _ = acquire("new", 0, 0)

	acquire("before the clock is set back", time.Minute, busy)
	release(next)
	m.ahead -= time.Hour
	next, _ = acquire("new", 0, 0)

	ctx, cancel := context.WithCancel(t.Context())
	queued := make(chan struct{}, 9)
	waiting := request("waiting")
	waiting.Wait, waiting.From = true, queuedAt{queued: queued}
	done := make(chan error)
	watched := m.open(&client{memory: m}, "")
	go func() {
		_, err := watched.Acquire(ctx, waiting)
		done <- err
	}()
	<-queued
	cancel()
	if err := <-done; driver.CodeOf(err) != driver.CodeWithdrawn {
		t.Fatal(err)
	}
	release(next)
	next, _ = acquire("last", 0, 0)
	release(next)
}

// relaying is a client whose notifications reach all watchers.
type relaying struct{ *client }

func (c relaying) Wake(key, id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for w := range c.watchers {
		w.changed(key, id)
	}
}

// TestReleaseWakesFirstWaiter: waiters of several clients are served in their order, and each release makes requests of
// the next one alone.
func TestReleaseWakesFirstWaiter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 8
		m := newMemory()
		m.quiet = true
		open := func() *Store {
			s := m.open(relaying{&client{memory: m}}, "")
			t.Cleanup(func() { must.Report(t, s.Close(context.Background())) })
			return s
		}
		held, err := open().Acquire(t.Context(), request("a"))
		must.Succeed(t, err)
		type granted struct {
			driver.Grant
			of *Store
			i  int
		}
		grants := make(chan granted)
		for i := range n {
			s, r := open(), request(fmt.Sprint(i))
			queued := make(chan struct{}, 9)
			r.Wait, r.From = true, queuedAt{queued: queued}
			go func() {
				g, err := wakeup.WithoutFallback(s).Acquire(t.Context(), r)
				must.Report(t, err)
				grants <- granted{g, s, i}
			}()
			<-queued
			time.Sleep(sameAge) // of the fake clock
		}
		synctest.Wait()
		before := m.requests
		release := func(s *Store, g driver.Grant) { must.Succeed(t, s.Release(t.Context(), g, 0)) }
		release(open(), held)
		for i := range n {
			g := <-grants
			if g.i != i {
				t.Errorf("waiter %d is granted, want %d", g.i, i)
			}
			synctest.Wait()
			release(g.of, g.Grant)
		}
		if each := (m.requests - before) / n; each > 6 { // a read and a write of each of the two
			t.Errorf("%d requests for each handoff", each)
		}
	})
}

// waiting returns the requests that the record of "n" has in its queue.
func (m *memory) waiting(t *testing.T) (all []string) {
	t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	c, why := decode(m.records["lock\x00\x00n"][prefixBytes:])
	if why != "" {
		t.Error(why)
	}
	for _, p := range c.Queue {
		all = append(all, p.ID)
	}
	return all
}

// TestFailedSwapLeavesNoQueueEntry: a Swap releases to the waiter of another client, and then its own request ends, or cannot
// reach the storage. Its queue entry does not keep the name from other requests.
func TestFailedSwapLeavesNoQueueEntry(t *testing.T) {
	for name, end := range map[string]func(m *memory, cancel func()){
		"withdrawn": func(_ *memory, cancel func()) { cancel() },
		"storage down": func(m *memory, _ func()) {
			m.mu.Lock()
			defer m.mu.Unlock()
			m.down = true
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMemory()
			s := m.open(relaying{&client{memory: m}}, "")
			g, err := s.Acquire(t.Context(), request("a"))
			must.Succeed(t, err)
			other, r := request("b"), request("swap")
			other.Waited = time.Minute
			if _, err := s.Acquire(t.Context(), other); driver.CodeOf(err) != driver.CodeBusy {
				t.Fatal(err)
			}
			h := s.held.Get("a")
			h.Handle = handle{since: time.Now().Add(-driver.HandoffTime)}
			r.Wait = true
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			_, err = s.Swap(ctx, g, r, func(err error) {
				must.Report(t, err)
				if p := m.waiting(t); !slices.Equal(p, []string{"b", "swap"}) {
					t.Errorf("the queue is %q", p)
				}
				end(m, cancel)
			})
			m.mu.Lock()
			m.down = false
			m.mu.Unlock()
			if driver.CodeOf(err) == driver.CodeUnknown { // the core undoes it
				must.Report(t, s.Undo(t.Context(), r))
			} else if driver.CodeOf(err) != driver.CodeWithdrawn {
				t.Errorf("Swap: %v", err)
			}
			if p := m.waiting(t); !slices.Equal(p, []string{"b"}) {
				t.Errorf("afterwards the queue is %q", p)
			}
			must.Report(t, s.Close(t.Context()))
		})
	}
}

// TestReleaseOfALostGrantIsNoSuccess: the storage has lost a grant, and another client has one. The release of the first one
// does not report that the grant stood.
func TestReleaseOfALostGrantIsNoSuccess(t *testing.T) {
	for _, next := range []bool{false, true} {
		m := newMemory()
		s, other := m.open(&client{memory: m}, ""), m.open(&client{memory: m}, "")
		g, err := s.Acquire(t.Context(), request("a"))
		must.Succeed(t, err)
		m.mu.Lock()
		m.records[s.key("n")] = append([]byte(strings.Repeat("0", prefixBytes)), encode(&content{Token: 1})...)
		m.mu.Unlock()
		if next {
			_, err = other.Acquire(t.Context(), request("b"))
			must.Succeed(t, err)
		}
		err = s.Release(t.Context(), g, 0)
		if next && err != nil && driver.CodeOf(err) == driver.CodeUnknown { // the core repeats it
			err = s.Release(t.Context(), g, 0)
		}
		if err == nil || driver.CodeOf(err) != driver.CodeNotHeld {
			t.Errorf("another grant: %v; the release returns %v", next, err)
		}
		must.Report(t, s.Close(t.Context()))
		must.Report(t, other.Close(t.Context()))
	}
}

// TestWaitThatDidNotBeginLeavesNothing: the storage cannot be reached, or the context of the wait ends at once. The outcome
// is known, and the client forgets the waiter.
func TestWaitThatDidNotBeginLeavesNothing(t *testing.T) {
	m := newMemory()
	s := m.open(relaying{&client{memory: m}}, "")
	_, stop, err := s.waiters.listen(t.Context(), "another", "id")
	must.Succeed(t, err)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for range 20 { // a wait whose context has ended may begin
		_, end, _ := s.waiters.listen(ended, s.key("n"), "x")
		end()
	}
	m.down = true
	r := request("a")
	r.Wait = true
	if _, err := s.Acquire(t.Context(), r); driver.CodeOf(err) != driver.CodeUnavailable {
		t.Errorf("Acquire: %v", err)
	}
	if n := len(s.waiters.byKey[s.key("n")]); n > 0 {
		t.Errorf("%d waiters are left", n)
	}
	stop()
	must.Report(t, s.Close(t.Context()))
}

// contended is a client beside another one, which writes before the first six writes of this client, and whenever time
// passes between a read and a write of it.
type contended struct {
	*client
	puts int
	read time.Time
}

func (c *contended) Get(ctx context.Context, key string) (Object, error) {
	c.read = time.Now()
	return c.client.Get(ctx, key)
}

func (c *contended) Put(ctx context.Context, key string, data []byte, version string) (string, error) {
	if c.puts++; c.puts <= 6 || time.Since(c.read) > 0 {
		c.mu.Lock()
		c.records[key] = append([]byte(rand.Text()[:prefixBytes]), encode(&content{})...)
		c.mu.Unlock()
	}
	return c.client.Put(ctx, key, data, version)
}

// TestNoPauseSeparatesReadAndWrite: after many conflicts the client pauses before a read, and not before the write that is
// decided on it.
func TestNoPauseSeparatesReadAndWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &contended{client: &client{memory: newMemory()}}
		s := c.open(c, "")
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, err := s.Acquire(ctx, request("a"))
		must.Report(t, err)
		if c.puts > 8 {
			t.Errorf("%d writes", c.puts)
		}
		must.Report(t, s.Close(t.Context()))
	})
}

// TestQueueHasTheOldestWaiters: a full queue has a queue entry only for a request that has waited longer than another one.
func TestQueueHasTheOldestWaiters(t *testing.T) {
	v := &view{now: 1e15}
	wait := func(id int, waited time.Duration) bool {
		r := request(fmt.Sprint(id))
		r.Waited = waited
		next := v.waits(&r, 0, maxQueue)
		if next != nil {
			v.content = *next
		}
		return next != nil
	}
	for i := range maxQueue {
		if !wait(i, time.Hour) {
			t.Fatalf("request %d has no queue entry", i)
		}
	}
	if wait(maxQueue, time.Hour) {
		t.Error("a request has a queue entry in a full queue")
	}
	if !wait(maxQueue, 2*time.Hour) || v.first() != fmt.Sprint(maxQueue) || len(v.Queue) != maxQueue || v.position(fmt.Sprint(maxQueue-1)) >= 0 {
		t.Errorf("the queue is %v", v.Queue)
	}
	v = &view{now: 1}
	if !wait(0, time.Hour) || v.content.impossible() != "" {
		t.Errorf("a request that has waited for longer than the clock: %s, %v", v.content.impossible(), v.Queue)
	}
}

// queuedAt reports each call of Queued.
type queuedAt struct {
	noRequester
	queued chan struct{}
}

func (q queuedAt) Queued([]driver.Holder) { q.queued <- struct{}{} }

// failing is a client whose Watch fails, and records when.
type failing struct {
	*client
	failed *[]time.Time
}

func (f failing) Watch(context.Context, func(key, id string)) error {
	*f.failed = append(*f.failed, time.Now())
	return errors.New("down")
}

// TestClientsDoNotWatchInStep: the storage of several clients is down.
func TestClientsDoNotWatchInStep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		times := map[time.Duration]bool{}
		holder := m.open(&client{memory: m}, "")
		_, err := holder.Acquire(t.Context(), request("a"))
		must.Succeed(t, err)
		for i := range 10 {
			var failed []time.Time
			s := m.open(failing{&client{memory: m}, &failed}, "")
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			r := request(fmt.Sprint("b", i))
			r.Wait = true
			began := time.Now()
			_, _ = s.Acquire(ctx, r)
			cancel()
			must.Report(t, s.Close(t.Context()))
			times[failed[1].Sub(began)] = true
		}
		must.Report(t, holder.Close(t.Context()))
		if len(times) < 5 {
			t.Errorf("the second attempts of 10 clients came after %d different times", len(times))
		}
	})
}
