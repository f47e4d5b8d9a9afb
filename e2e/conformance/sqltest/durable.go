package sqltest

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/e2e/conformance/requests"
)

// failedTokenWriteLeavesNothingLocked requires that a request leaves nothing locked if the session
// has got the lock and the write of the token fails.
func failedTokenWriteLeavesNothingLocked(t *testing.T, d *Database) {
	for _, waits := range []bool{false, true} {
		d.Each(t, d.Sessions, func(t *testing.T, params, database string) {
			begin := func(t *testing.T) *step { return d.step(t, d.Server(t).Address, database, params, "", waits) }
			t.Run("no table", func(t *testing.T) {
				d.Exec(t, database, "ALTER TABLE holdfast_floor RENAME TO hidden")
				defer d.Exec(t, database, "ALTER TABLE hidden RENAME TO holdfast_floor")
				begin(t).leavesNothing(driver.CodeRefused)
			})
			t.Run("no rows", func(t *testing.T) {
				d.Exec(t, database, "CREATE TABLE kept AS SELECT * FROM holdfast_floor")
				d.Exec(t, database, "DELETE FROM holdfast_floor")
				defer d.Exec(t, database, "DROP TABLE kept")
				defer d.Exec(t, database, "INSERT INTO holdfast_floor SELECT * FROM kept")
				begin(t).leavesNothing(driver.CodeRefused)
			})
			t.Run("interrupted", func(t *testing.T) {
				defer d.blockHighWaterMark(t, database)()
				p := begin(t)
				d.Exec(t, database, fmt.Sprintf(d.Interrupt, p.writing()))
				p.leavesNothing(driver.CodeUnavailable)
			})
			t.Run("ended", func(t *testing.T) {
				defer d.blockHighWaterMark(t, database)()
				p := begin(t)
				d.Exec(t, database, fmt.Sprintf(d.End, p.writing()))
				p.leavesNothing(driver.CodeUnavailable, driver.CodeUnknown)
			})
			t.Run("cancelled", func(t *testing.T) {
				defer d.blockHighWaterMark(t, database)()
				p := begin(t)
				p.writing()
				p.cancel()
				p.leavesNothing(driver.CodeWithdrawn, driver.CodeUnknown)
			})
		})
	}
	// The statement that writes the token fails, and the server receives nothing more on the
	// session that has the lock. So the client ends this session over another connection.
	t.Run("unheard", func(t *testing.T) {
		database := d.Create(t)
		proxy := d.proxy(t)
		defer d.blockHighWaterMark(t, database)()
		p := d.step(t, proxy.Address(), database, "recipe=pessimistic", d.LockTimeout, false)
		p.writing()
		proxy.Hold()
		p.leavesNothing(driver.CodeUnavailable)
	})
}

// DurableTokensOnSmallPoolDoNotDeadlock makes two requests that get their locks and then use all
// connections of the user's pool. Each needs another connection to write its token. The test
// requires that they do not wait for each other forever. open makes a store with durable tokens.
func DurableTokensOnSmallPoolDoNotDeadlock(t *testing.T, d *Database, open func(context.Context, *sql.DB) (Store, error)) {
	database := d.Create(t)
	other := d.Store(t, database, "recipe=pessimistic")
	db := d.Pool(t, database)
	db.SetMaxOpenConns(2)
	s, err := open(t.Context(), db)
	check(t, err)
	defer Close(t, s)
	var held []driver.Grant
	for _, name := range []string{"a", "a", "b", "b"} {
		g, _ := Must(t, other, name, 2, time.Minute)
		held = append(held, g)
	}
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	var waiters []*requests.Waiter
	for _, name := range []string{"a", "b"} {
		r, _ := Request(name, 2, 3*time.Second)
		waiters = append(waiters, requests.QueueWith(t, ctx, s, r))
	}
	for _, g := range held {
		Release(t, other, g)
	}
	for _, w := range waiters {
		_ = w.Ended()
		switch {
		case ctx.Err() != nil:
			t.Fatalf("the requests waited for each other: %v", w.Err)
		case w.Err == nil:
			Release(t, s, w.Grant)
		case s.Classify(w.Err) == driver.CodeUnknown: // the server ended the connection meanwhile
			requests.Undone(t, s, w.Request)
		case s.Classify(w.Err) != driver.CodeUnavailable:
			t.Errorf("%v: %v; want a grant, or unavailable", s.Classify(w.Err), w.Err)
		}
	}
	for _, name := range []string{"a", "b"} {
		g, _ := Must(t, other, name, driver.Exclusive, time.Minute)
		Release(t, other, g)
	}
}

// blockHighWaterMark locks the rows of the high-water marks, so that no client can write a
// durable token until end is called.
func (d *Database) blockHighWaterMark(t testing.TB, database string) (end func()) {
	t.Helper()
	tx, err := d.Pool(t, database).Begin()
	check(t, err)
	if _, err := tx.Exec("SELECT * FROM holdfast_floor FOR UPDATE"); err != nil {
		t.Fatal(err)
	}
	return func() { _ = tx.Rollback() }
}

// step is a request with a durable token for a free name, which runs on its own goroutine.
type step struct {
	t      *testing.T
	d      *Database
	store  Store
	other  Store // without durable tokens
	r      driver.Request
	cancel func()
	done   chan error
	db     *sql.DB
	// before are the sessions that match raise although they write no token.
	before []int64
}

// raise is a part of the statement that writes a durable token. d.running finds the session of a
// statement by this text.
const raise = "holdfast_floor SET token = GREATEST("

// step starts the request of a step. more are further parameters of its store. waits is the
// request's Wait.
func (d *Database) step(t *testing.T, address, database, params, more string, waits bool) *step {
	t.Helper()
	p := &step{t: t, d: d, db: d.Pool(t, database), done: make(chan error, 1),
		store: d.StoreAt(t, address, database, params+"&tokens=durable&"+more), other: d.Store(t, database, params)}
	p.before = d.running(t, p.db, raise)
	p.r, _ = Request("step", driver.Exclusive, time.Minute)
	p.r.Wait = waits
	ctx, cancel := context.WithCancel(t.Context())
	p.cancel = cancel
	go func() {
		_, err := p.store.Acquire(ctx, p.r)
		p.done <- err
	}()
	return p
}

// writing waits until the token is being written, and returns the session's number.
func (p *step) writing() int64 {
	p.t.Helper()
	for end := time.Now().Add(soon); ; time.Sleep(time.Millisecond) {
		for _, n := range p.d.running(p.t, p.db, raise) {
			if !slices.Contains(p.before, n) {
				return n
			}
		}
		if time.Now().After(end) {
			p.t.Fatal("no token is being written")
		}
	}
}

// leavesNothing waits for an error with one of the codes, and requires that the name is free.
func (p *step) leavesNothing(codes ...driver.Code) {
	p.t.Helper()
	defer p.cancel()
	err := requests.Receive(p.t, "the end of the request", p.done)
	code := p.store.Classify(err)
	if err == nil || !slices.Contains(codes, code) {
		p.t.Errorf("%v: %v; want one of %v", code, err, codes)
	}
	if code == driver.CodeUnknown {
		requests.Undone(p.t, p.store, p.r)
	}
	g, _ := Must(p.t, p.other, p.r.Name, driver.Exclusive, time.Minute)
	Release(p.t, p.other, g)
	Close(p.t, p.store)
	Close(p.t, p.other)
}
