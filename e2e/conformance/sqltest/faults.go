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
	"github.com/holdfast-go/holdfast/e2e/conformance/requests"
)

// killedSessionLosesGrant requires that the grant ends when an administrator ends its session, and that the store
// notifies the holder at once. The next grant must have a larger token.
func killedSessionLosesGrant(t *testing.T, d *Database) {
	d.Each(t, d.Sessions, func(t *testing.T, params, database string) {
		s := d.Store(t, database, params)
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
		requests.Rises(t, g, next)
		Release(t, s, next)
	})
}

// Terminate ends the session that has a grant, as an administrator does.
func (d *Database) Terminate(t testing.TB, db *sql.DB, s driver.Inspector, g driver.Grant) {
	t.Helper()
	Shown(t, s, g)
	var number int64
	err := sql.ErrNoRows
	Soon(func() bool {
		err = db.QueryRow(fmt.Sprintf(d.Holder, g.Token)).Scan(&number)
		return !errors.Is(err, sql.ErrNoRows)
	})
	check(t, err)
	if _, err := db.Exec(fmt.Sprintf(d.End, number)); err != nil {
		t.Fatal(err)
	}
}

// UserPoolNoticesLoss requires that a ping notices the end of a connection of a user's pool, and that a lock
// uses one connection. The store must not return a connection with a lock or with its own settings to the pool. open
// opens a store over a pool, and returns a function that counts the connections in use.
func UserPoolNoticesLoss(t *testing.T, d *Database, open func(t *testing.T, database, recipe string) (s Store, db *sql.DB, used func() int)) {
	database := d.Create(t)
	for _, recipe := range d.Recipes {
		t.Run(recipe, func(t *testing.T) {
			settings := func(db *sql.DB) (s string) {
				check(t, db.QueryRow(d.Settings).Scan(&s))
				return s
			}
			plain := d.Pool(t, database)
			before := settings(plain)
			s, db, used := open(t, database, recipe)
			clean := func() {
				t.Helper()
				if after := settings(db); after != before {
					t.Errorf("a connection of the pool has the settings %q, want %q", after, before)
				}
			}
			other := d.Store(t, database, "recipe="+recipe)
			g, a := Must(t, s, "pool", driver.Exclusive, time.Minute)
			Busy(t, s, "pool", driver.Exclusive)
			Busy(t, other, "pool", driver.Exclusive)
			limit, ttl := 0, time.Second // only its TTL ends the last lease
			if d.onSession(recipe) {
				limit, ttl = 1, time.Minute
			}
			if !Soon(func() bool { return used() <= limit }) {
				t.Errorf("a held lock uses %d connections, want %d", used(), limit)
			}
			if d.onSession(recipe) {
				d.Terminate(t, plain, s, g)
				a.AwaitLoss(t)
			}
			_ = s.Release(t.Context(), g, 0)
			again, _ := Must(t, s, "pool", driver.Exclusive, time.Minute)
			Release(t, s, again)
			clean()

			Must(t, s, "pool", driver.Exclusive, ttl)
			Close(t, s)
			clean()
			freed(t, other, "pool")
			if !Soon(func() bool { return used() == 0 }) {
				t.Errorf("the store has not returned %d connections to the pool", used())
			}
		})
	}
}

// OverSQL opens a store over a pool of database/sql, for [UserPoolNoticesLoss].
func (d *Database) OverSQL(t *testing.T, database, recipe string) (Store, *sql.DB, func() int) {
	db := d.Pool(t, database)
	s, err := d.New(t.Context(), db, recipe)
	check(t, err)
	return s, db, func() int { return db.Stats().InUse }
}

// silentHolderLosesLockAfterTTL requires that the server frees the locks of a client from which it hears nothing
// any more, not even the end of its connections. The server does so when the TTL of each lock has passed, and not
// sooner, although its session had a grant with a longer or a shorter TTL before.
func silentHolderLosesLockAfterTTL(t *testing.T, d *Database) {
	d.Each(t, d.Sessions, func(t *testing.T, params, database string) {
		proxy := d.proxy(t)
		s := d.StoreAt(t, proxy.Address(), database, params)
		other := d.Store(t, database, params)
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
		g, err := s.Swap(t.Context(), brief, r, func(error) {})
		check(t, err)
		grants = append(grants, g)
		check(t, proxy.Silence())
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

// restartEndsSessions requires that holders notice a restart of the server, and that it ends all grants on
// sessions. The next grant must have a larger token.
func restartEndsSessions(t *testing.T, d *Database) {
	server, err := d.Start(t.Context())
	if err != nil {
		d.Server(t) // skips, or fails
		t.Fatal(err)
	}
	defer server.Close()
	for _, recipe := range d.Recipes {
		t.Run(recipe, func(t *testing.T) {
			s := d.StoreAt(t, server.Address, d.Home, "recipe="+recipe)
			check(t, s.Init(t.Context()))
			ttl := time.Second
			if d.onSession(recipe) {
				ttl = time.Minute
			}
			g, a := Must(t, s, "restart", driver.Exclusive, ttl)
			server.Kill()
			if d.onSession(recipe) {
				a.AwaitLoss(t)
			}
			check(t, server.Restart(t.Context()))
			next := freed(t, s, "restart")
			requests.Rises(t, g, next)
		})
	}
}
