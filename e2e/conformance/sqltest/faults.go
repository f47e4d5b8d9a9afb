package sqltest

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// KilledSessionLosesGrant requires that the grant ends when an administrator ends its session, and that the store
// notifies the holder at once. The next grant must have a larger token.
func KilledSessionLosesGrant(t *testing.T, d *Database) {
	d.Each(t, d.Sessions, func(t *testing.T, params, database string) {
		s := d.Store(t, database, params)
		defer Close(t, s)
		g, a := Must(t, s, "kill", driver.Exclusive, time.Minute)
		d.Terminate(t, d.Pool(t, database), s, g)
		if c := a.AwaitLoss(t); c != d.Ended {
			t.Errorf("cause %q, want %q", c, d.Ended)
		}
		if r := s.Renew(t.Context(), []driver.Grant{g}); s.Classify(r[0].Err) != driver.CodeNotHeld {
			t.Errorf("Renew of the ended grant: %v, want not held", r[0].Err)
		}
		if err := s.Release(t.Context(), g, 0); s.Classify(err) != driver.CodeNotHeld {
			t.Errorf("Release of the ended grant: %v, want not held", err)
		}
		next, _ := Must(t, s, "kill", driver.Exclusive, time.Minute)
		Rises(t, g, next)
		Release(t, s, next)
	})
}

// Terminate ends the session that has a grant, as an administrator does.
func (d *Database) Terminate(t testing.TB, db *sql.DB, s driver.Inspector, g driver.Grant) {
	t.Helper()
	if _, err := s.Inspect(t.Context(), g.Name); err != nil { // waits until the grant is recorded
		t.Fatal(err)
	}
	var number int64
	err := sql.ErrNoRows
	Soon(func() bool {
		err = db.QueryRow(fmt.Sprintf(d.Holder, g.Token)).Scan(&number)
		return !errors.Is(err, sql.ErrNoRows)
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := db.Exec(fmt.Sprintf(d.End, number)); err != nil {
		t.Fatal(err)
	}
}

// UserPoolNoticesLoss requires that a ping notices the end of a connection of a user's pool, and that a lock
// uses one connection. The store must not return a connection with its own settings to the pool.
func UserPoolNoticesLoss(t *testing.T, d *Database) {
	database := d.Create(t)
	for _, recipe := range d.Recipes {
		t.Run(recipe, func(t *testing.T) {
			db := d.Pool(t, database)
			settings := func() (s string) {
				if err := db.QueryRow(d.Settings).Scan(&s); err != nil {
					t.Fatal(err)
				}
				return s
			}
			before := settings()
			s, err := d.New(t.Context(), db, recipe)
			if err != nil {
				t.Fatal(err)
			}
			defer Close(t, s)
			g, a := Must(t, s, "pool", driver.Exclusive, time.Minute)
			Busy(t, s, "pool", driver.Exclusive)
			limit := map[bool]int{false: 0, true: 1}[d.onSession(recipe)]
			if !Soon(func() bool { return db.Stats().InUse <= limit }) {
				t.Errorf("a held lock uses %d connections, want %d", db.Stats().InUse, limit)
			}
			if d.onSession(recipe) {
				d.Terminate(t, db, s, g)
				a.AwaitLoss(t)
			}
			_ = s.Release(t.Context(), g, 0)
			again, _ := Must(t, s, "pool", driver.Exclusive, time.Minute)
			Release(t, s, again)
			if after := settings(); after != before {
				t.Errorf("a connection of the pool has the settings %q, want %q", after, before)
			}
			if !Soon(func() bool { return db.Stats().InUse == 0 }) {
				t.Errorf("the store has not returned %d connections to the pool", db.Stats().InUse)
			}
		})
	}
}

// SilentHolderLosesLockAfterTTL requires that the server frees the locks of a client from which it hears nothing
// any more, not even the end of its connections. The server does so when the TTL of each lock has passed, and not
// sooner, although its session had a grant with a longer or a shorter TTL before.
func SilentHolderLosesLockAfterTTL(t *testing.T, d *Database) {
	d.Each(t, d.Sessions, func(t *testing.T, params, database string) {
		proxy, err := newLateProxy(d.Server(t).Address)
		if err != nil {
			t.Fatal(err)
		}
		defer proxy.Close()
		s := d.StoreAt(t, proxy.Address(), database, params)
		other := d.Store(t, database, params)
		defer Close(t, other)
		var grants []driver.Grant
		for name, before := range map[string]time.Duration{"after a longer TTL": time.Hour, "after a shorter TTL": time.Second} {
			// The next grant usually gets this session. On a busy machine the shorter TTL may pass first.
			warm, _ := Must(t, s, "warm "+name, driver.Exclusive, before)
			_ = s.Release(t.Context(), warm, 0)
			g, _ := Must(t, s, name, driver.Exclusive, 3*time.Second)
			grants = append(grants, g)
		}
		// A swap usually keeps the session.
		brief, _ := Must(t, s, "swapped", driver.Exclusive, time.Second)
		r, _ := Request("swapped", driver.Exclusive, 3*time.Second)
		r.Wait = true
		g, err := s.(driver.Swapper).Swap(t.Context(), brief, r, func(error) {})
		if err != nil {
			t.Fatal(err)
		}
		grants = append(grants, g)
		proxy.Refuse()
		proxy.Hold()
		var all sync.WaitGroup
		for _, g := range grants {
			all.Go(func() {
				next, err := eventually(t, other, g.Name)
				if stood, _ := g.SentAt.Elapsed(); stood < g.TTL {
					t.Errorf("%s: the server freed the lock after %s, want %s or later", g.Name, stood, g.TTL)
				}
				if err != nil {
					t.Errorf("%s: %v", g.Name, err)
				} else if err := other.Release(t.Context(), next, 0); err != nil {
					t.Errorf("%s: Release: %v", g.Name, err)
				}
			})
		}
		all.Wait()
		_ = s.Close(context.Background()) // it cannot reach the server
	})
}

// eventually acquires a lock, which may be free or held.
func eventually(t testing.TB, s driver.Store, name string) (driver.Grant, error) {
	r, _ := Request(name, driver.Exclusive, time.Minute)
	r.Wait = true
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	return s.Acquire(ctx, r)
}

// UnansweredReleaseIsUnknown requires that a release whose answer is lost with the connection is not
// confirmed, and leaves nothing of the grant.
func UnansweredReleaseIsUnknown(t *testing.T, d *Database) {
	d.Each(t, d.Sessions, func(t *testing.T, params, database string) {
		s, proxy := d.proxied(t, database, params)
		defer Close(t, s)
		other := d.Store(t, database, params)
		defer Close(t, other)
		warm, _ := Must(t, s, "warm", driver.Exclusive, time.Minute)
		Release(t, s, warm) // from now on the connection has its prepared statements
		g, _ := Must(t, s, "unanswered", driver.Exclusive, time.Minute)
		if r := s.Renew(t.Context(), []driver.Grant{g}); r[0].Err != nil { // the last statement before the release
			t.Fatal(r[0].Err)
		}
		waiter := Wait(t, t.Context(), other, "unanswered", driver.Exclusive)
		if err := proxy.DropAnswers(); err != nil {
			t.Fatal(err)
		}
		released := make(chan error, 1)
		go func() { released <- s.Release(t.Context(), g, 0) }()
		next := waiter.Granted()
		proxy.Cut() // if the answer has not reached the proxy yet, the proxy has not dropped it
		if err := proxy.Heal(); err != nil {
			t.Fatal(err)
		}
		if err := <-released; err == nil || s.Classify(err) != driver.CodeUnknown {
			t.Errorf("Release: %v, want an unknown outcome", err)
		}
		if err := s.Release(t.Context(), g, 0); s.Classify(err) != driver.CodeNotHeld {
			t.Errorf("a second Release: %v, want not held", err)
		}
		Release(t, other, next)
	})
}

// LateRequestGetsNoGrant requires that a request which was undone gets no grant when the network delivers it
// late.
func LateRequestGetsNoGrant(t *testing.T, d *Database) {
	d.Each(t, d.Recipes, func(t *testing.T, params, database string) {
		proxy, err := newLateProxy(d.Server(t).Address)
		if err != nil {
			t.Fatal(err)
		}
		defer proxy.Close()
		s := d.StoreAt(t, proxy.Address(), database, params)
		defer Close(t, s)
		watcher := d.Store(t, database, params)
		defer Close(t, watcher)
		for _, hasRow := range []bool{false, true} { // whether the name already has a row
			name := fmt.Sprintf("late-%t", hasRow)
			warm, _ := Must(t, s, "warm", driver.Exclusive, time.Minute)
			Release(t, s, warm) // leaves an idle connection
			if hasRow {
				g, _ := Must(t, s, name, driver.Exclusive, time.Minute)
				Release(t, s, g)
			}
			proxy.Hold()
			r, _ := Request(name, driver.Exclusive, time.Minute)
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			_, err := s.Acquire(ctx, r)
			cancel()
			if err == nil {
				t.Fatal("a request without an answer got a grant")
			}
			if s.Classify(err) == driver.CodeUnknown {
				Undo(t, s, r)
			}
			proxy.Deliver()
			// The server ends the session of the request after the request has arrived.
			db := d.Pool(t, database)
			for end := time.Now().Add(soon); len(d.running(t, db, r.ID)) > 0; time.Sleep(5 * time.Millisecond) {
				if time.Now().After(end) {
					t.Fatal("the late request did not end")
				}
			}
			g, _ := Must(t, watcher, name, driver.Exclusive, time.Minute)
			Release(t, watcher, g)
		}
	})
}

// RestartEndsSessions requires that holders notice a restart of the server, and that it ends all grants on
// sessions. The next grant must have a larger token.
func RestartEndsSessions(t *testing.T, d *Database) {
	server, err := d.Start(t.Context())
	if err != nil {
		d.Server(t) // skips, or fails
		t.Fatal(err)
	}
	defer server.Close()
	for _, recipe := range d.Recipes {
		t.Run(recipe, func(t *testing.T) {
			s := d.StoreAt(t, server.Address, d.Home, "recipe="+recipe)
			defer Close(t, s)
			if err := s.Init(t.Context()); err != nil {
				t.Fatal(err)
			}
			ttl := time.Second
			if d.onSession(recipe) {
				ttl = time.Minute
			}
			g, a := Must(t, s, "restart", driver.Exclusive, ttl)
			server.Kill()
			if d.onSession(recipe) {
				a.AwaitLoss(t)
			}
			if err := server.Restart(t.Context()); err != nil {
				t.Fatal(err)
			}
			var next driver.Grant
			for end := time.Now().Add(soon); ; time.Sleep(5 * time.Millisecond) {
				r, _ := Request("restart", driver.Exclusive, time.Minute)
				if next, err = s.Acquire(t.Context(), r); err == nil {
					break
				}
				if s.Classify(err) == driver.CodeUnknown {
					Undo(t, s, r) // otherwise it may block the next request
				}
				if time.Now().After(end) {
					t.Fatal(err)
				}
			}
			Rises(t, g, next)
			Release(t, s, next)
		})
	}
}
