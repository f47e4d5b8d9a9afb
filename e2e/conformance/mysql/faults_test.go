package mysql

import (
	"context"
	"database/sql"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/check/servers"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/mysqlstore"
)

var ids atomic.Int64

// asker is who asks, and hears.
type asker struct {
	id     string
	queued chan struct{}
	lost   chan driver.Cause
}

func (a *asker) Owner() driver.Owner { return driver.Owner{ID: a.id, Host: "here", PID: 1} }
func (a *asker) Queued([]driver.Holder) {
	select {
	case a.queued <- struct{}{}:
	default:
	}
}
func (a *asker) Lost(c driver.Cause, _ error) {
	select {
	case a.lost <- c:
	default:
	}
}

func request(name string, limit int, ttl time.Duration) (driver.Request, *asker) {
	a := &asker{id: fmt.Sprintf("f%d-%d", time.Now().UnixNano(), ids.Add(1)), queued: make(chan struct{}, 1), lost: make(chan driver.Cause, 1)}
	return driver.Request{ID: a.id, Name: name, Limit: limit, TTL: ttl, From: a}, a
}

func must(t testing.TB, s driver.Store, name string, limit int, ttl time.Duration) (driver.Grant, *asker) {
	t.Helper()
	r, a := request(name, limit, ttl)
	g, err := s.Acquire(t.Context(), r)
	if err != nil {
		t.Fatalf("Acquire(%q): %v", name, err)
	}
	return g, a
}

func busy(t testing.TB, s driver.Store, name string, limit int) {
	t.Helper()
	r, _ := request(name, limit, time.Minute)
	if g, err := s.Acquire(t.Context(), r); err == nil || s.Classify(err) != driver.Busy {
		t.Fatalf("Acquire(%q) answers %+v, %v; want busy", name, g, err)
	}
}

func release(t testing.TB, s driver.Store, g driver.Grant) {
	t.Helper()
	if err := s.Release(t.Context(), g, 0); err != nil {
		t.Fatalf("Release: %v", err)
	}
}

func closeStore(t testing.TB, s driver.Store) {
	if err := s.Close(context.Background()); err != nil {
		t.Errorf("Close: %v", err)
	}
}

// waiter waits on its own goroutine.
type waiter struct {
	t    testing.TB
	a    *asker
	done chan struct{}
	g    driver.Grant
	err  error
}

func wait(t testing.TB, ctx context.Context, s driver.Store, name string, limit int) *waiter {
	t.Helper()
	r, a := request(name, limit, time.Minute)
	r.Wait = true
	w := &waiter{t: t, a: a, done: make(chan struct{})}
	go func() {
		defer close(w.done)
		w.g, w.err = s.Acquire(ctx, r)
	}()
	select {
	case <-a.queued:
	case <-w.done:
		t.Fatalf("a wait for %q ended at once: %+v, %v", name, w.g, w.err)
	case <-time.After(20 * time.Second):
		t.Fatalf("a wait for %q was not queued", name)
	}
	return w
}

func (w *waiter) granted() driver.Grant {
	w.t.Helper()
	select {
	case <-w.done:
	case <-time.After(20 * time.Second):
		w.t.Fatal("a waiter was not granted")
	}
	if w.err != nil {
		w.t.Fatal(w.err)
	}
	return w.g
}

func hear(t testing.TB, a *asker, within time.Duration) driver.Cause {
	t.Helper()
	select {
	case c := <-a.lost:
		return c
	case <-time.After(within):
		t.Fatalf("the holder was not told within %s", within)
		return ""
	}
}

// sessionRecipes are those whose grants live on a connection.
var sessionRecipes = []mysqlstore.Recipe{mysqlstore.Pessimistic, mysqlstore.Named}

func each(t *testing.T, recipes []mysqlstore.Recipe, run func(t *testing.T, params, schema string)) {
	schema := schema(t)
	for _, r := range recipes {
		t.Run(string(r), func(t *testing.T) { run(t, "recipe="+string(r), schema) })
	}
}

// TestKill: an administrator's KILL ends the grant, its holder hears at once, and
// the next one is granted with a larger token.
func TestKill(t *testing.T) {
	each(t, sessionRecipes, func(t *testing.T, params, schema string) {
		s := open(t, mariadb(t).Address, schema, params)
		defer closeStore(t, s)
		g, a := must(t, s, "kill", driver.Exclusive, time.Minute)
		terminate(t, plain(t, schema), s, g)
		if c := hear(t, a, 20*time.Second); c != driver.SessionEnded {
			t.Errorf("cause %q", c)
		}
		if r := s.Renew(t.Context(), []driver.Grant{g}); s.Classify(r[0].Err) != driver.NotHeld {
			t.Errorf("renewing what was killed: %v", r[0].Err)
		}
		if err := s.Release(t.Context(), g, 0); s.Classify(err) != driver.NotHeld {
			t.Errorf("releasing what was killed: %v", err)
		}
		next, _ := must(t, s, "kill", driver.Exclusive, time.Minute)
		if next.Token <= g.Token {
			t.Errorf("token %d after %d", next.Token, g.Token)
		}
		release(t, s, next)
	})
}

// terminate is what an administrator does to the session that has a grant.
func terminate(t testing.TB, db *sql.DB, s driver.Inspector, g driver.Grant) {
	t.Helper()
	if _, err := s.Inspect(t.Context(), g.Name); err != nil { // it is written down then
		t.Fatal(err)
	}
	var conn int64
	if err := db.QueryRow("SELECT conn FROM holdfast_session WHERE token = ?", g.Token).Scan(&conn); err != nil {
		t.Fatal(err)
	}
	if _, err := db.Exec(fmt.Sprintf("KILL %d", conn)); err != nil {
		t.Fatal(err)
	}
}

// TestUserPool: on a pool of the user's own the end of the connection is noticed by
// a ping, a lock costs one connection, and none is left with our settings.
func TestUserPool(t *testing.T) {
	schema := schema(t)
	for _, recipe := range mysqlstore.Recipes() {
		t.Run(string(recipe), func(t *testing.T) {
			db := plain(t, schema)
			s, err := mysqlstore.New(t.Context(), db, mysqlstore.With(recipe))
			if err != nil {
				t.Fatal(err)
			}
			defer closeStore(t, s)
			g, a := must(t, s, "pool", driver.Exclusive, time.Minute)
			busy(t, s, "pool", driver.Exclusive)
			most := map[bool]int{true: 0, false: 1}[recipe == mysqlstore.Optimistic]
			if n := db.Stats().InUse; n > most {
				t.Errorf("a held lock costs %d connections, want %d", n, most)
			}
			if recipe != mysqlstore.Optimistic {
				terminate(t, db, s, g)
				hear(t, a, 20*time.Second)
			}
			_ = s.Release(t.Context(), g, 0)
			again, _ := must(t, s, "pool", driver.Exclusive, time.Minute)
			release(t, s, again)
			var zone string
			var timeout int
			if err := db.QueryRow("SELECT @@time_zone, @@wait_timeout").Scan(&zone, &timeout); err != nil {
				t.Fatal(err)
			}
			if zone != "SYSTEM" || timeout != 28800 {
				t.Errorf("a connection of the pool has time zone %s and wait_timeout %d", zone, timeout)
			}
			if n := db.Stats().InUse; n != 0 {
				t.Errorf("%d connections are not given back", n)
			}
		})
	}
}

// TestSilentHolder: a holder that goes on living and is not heard any more is freed
// by the server when its TTL has passed, not sooner, and its trust ends before.
func TestSilentHolder(t *testing.T) {
	each(t, sessionRecipes, func(t *testing.T, params, schema string) {
		proxy, err := servers.NewProxy(mariadb(t).Address)
		if err != nil {
			t.Fatal(err)
		}
		defer proxy.Close()
		s := open(t, proxy.Address(), schema, params)
		other := open(t, mariadb(t).Address, schema, params)
		defer closeStore(t, other)
		g, _ := must(t, s, "silent", driver.Exclusive, 2*time.Second)
		if err := proxy.Silence(); err != nil {
			t.Fatal(err)
		}
		next := wait(t, t.Context(), other, "silent", driver.Exclusive).granted()
		if stood, _ := g.SentAt.Elapsed(); stood < g.TTL {
			t.Errorf("freed after %s of %s", stood, g.TTL)
		}
		release(t, other, next)
		_ = proxy.Heal()
		closeStore(t, s)
	})
}

// TestLateRequest: what was undone cannot appear when the network delivers it at
// last.
func TestLateRequest(t *testing.T) {
	each(t, mysqlstore.Recipes(), func(t *testing.T, params, schema string) {
		proxy, err := servers.NewLateProxy(mariadb(t).Address)
		if err != nil {
			t.Fatal(err)
		}
		defer proxy.Close()
		s := open(t, proxy.Address(), schema, params)
		defer closeStore(t, s)
		watcher := open(t, mariadb(t).Address, schema, params)
		defer closeStore(t, watcher)
		for _, known := range []bool{false, true} { // the name has a row already
			name := fmt.Sprintf("late-%t", known)
			warm, _ := must(t, s, "warm", driver.Exclusive, time.Minute)
			release(t, s, warm) // an idle connection is there
			if known {
				g, _ := must(t, s, name, driver.Exclusive, time.Minute)
				release(t, s, g)
			}
			proxy.Hold()
			r, _ := request(name, driver.Exclusive, time.Minute)
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			_, err := s.Acquire(ctx, r)
			cancel()
			if err == nil {
				t.Fatal("granted without an answer")
			}
			if s.Classify(err) == driver.Unknown {
				undo(t, s, r)
			}
			proxy.Deliver()
			// It has arrived when the server has ended the session that carried it.
			db := plain(t, schema)
			for end := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
				var n int
				if err := db.QueryRow("SELECT COUNT(*) FROM information_schema.processlist WHERE info LIKE '%" + r.ID + "%' AND id <> CONNECTION_ID()").Scan(&n); err != nil {
					t.Fatal(err)
				}
				if n == 0 {
					break
				}
				if time.Now().After(end) {
					t.Fatal("the late request goes on")
				}
			}
			g, _ := must(t, watcher, name, driver.Exclusive, time.Minute)
			release(t, watcher, g)
		}
	})
}

func undo(t testing.TB, s driver.Store, r driver.Request) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		err := s.Undo(ctx, r)
		cancel()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("Undo: %v", err)
		}
	}
}

// TestRestart: the server goes away and comes back; holders hear of it, nothing of
// before stands, and tokens go on rising.
func TestRestart(t *testing.T) {
	server, err := servers.StartMariaDB(t.Context())
	if err != nil {
		mariadb(t) // skips, or fails
		t.Fatal(err)
	}
	defer server.Close()
	for _, recipe := range mysqlstore.Recipes() {
		t.Run(string(recipe), func(t *testing.T) {
			s := open(t, server.Address, "test", "recipe="+string(recipe))
			defer closeStore(t, s)
			if err := s.Init(t.Context()); err != nil {
				t.Fatal(err)
			}
			ttl := time.Minute
			if recipe == mysqlstore.Optimistic {
				ttl = time.Second
			}
			g, a := must(t, s, "restart", driver.Exclusive, ttl)
			server.Kill()
			if recipe != mysqlstore.Optimistic {
				hear(t, a, 20*time.Second)
			}
			if err := server.Restart(t.Context()); err != nil {
				t.Fatal(err)
			}
			var next driver.Grant
			for end := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
				r, _ := request("restart", driver.Exclusive, time.Minute)
				if next, err = s.Acquire(t.Context(), r); err == nil {
					break
				}
				if time.Now().After(end) {
					t.Fatal(err)
				}
			}
			if next.Token <= g.Token {
				t.Errorf("token %d after %d", next.Token, g.Token)
			}
			release(t, s, next)
		})
	}
}
