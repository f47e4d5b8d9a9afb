package mysql

import (
	"context"
	"database/sql"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/check/servers"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/e2e/conformance/sqltest"
)

// open opens n connections to a server. Each function that it returns runs a statement on one of
// them, and fails if the connection is closed.
func open(t *testing.T, m *servers.MySQL, n int) (alive []func() error) {
	t.Helper()
	db, err := sql.Open(mariadb.Driver, m.DSN(mariadb.Home, ""))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	for range n {
		c, err := db.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		alive = append(alive, func() error {
			_, err := c.ExecContext(context.Background(), "DO 1")
			return err
		})
	}
	return alive
}

// set executes a statement that changes a setting of a server.
func set(t *testing.T, m *servers.MySQL, statement string) {
	t.Helper()
	db, err := sql.Open(mariadb.Driver, m.DSN(mariadb.Home, ""))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.ExecContext(t.Context(), statement); err != nil {
		t.Fatal(err)
	}
}

// TestSwitchoverEndsHolders: the primary becomes read-only, and new connections lead to another
// server. Holders at the old server are notified, although their connections stay open and no
// client renews the grants. Stores with connections to the old server take their next locks at the
// new server.
func TestSwitchoverEndsHolders(t *testing.T) {
	mariadb.Server(t) // skips, or fails
	for _, recipe := range mariadb.Recipes {
		t.Run(recipe, func(t *testing.T) {
			old, next, r := startTwo(t)
			params := "recipe=" + recipe
			s := mariadb.StoreAt(t, r.Address(), mariadb.Home, params)
			defer sqltest.Close(t, s)
			var held []driver.Grant
			var requesters []*sqltest.Requester
			for _, name := range []string{"one", "two", "three"} {
				g, a := sqltest.Must(t, s, name, driver.Exclusive, time.Minute)
				held, requesters = append(held, g), append(requesters, a)
			}
			idle, _ := sqltest.Must(t, s, "idle", driver.Exclusive, time.Minute)
			sqltest.Release(t, s, idle) // its connection to the old server stays open
			other := mariadb.StoreAt(t, r.Address(), mariadb.Home, params)
			defer sqltest.Close(t, other)
			// A statement that waits for a row keeps the server from becoming read-only.
			waits := recipe == "named"
			var waiter *sqltest.Waiter
			if waits {
				waiter = sqltest.Wait(t, t.Context(), other, "one", driver.Exclusive)
			}
			set(t, old, "SET GLOBAL read_only = 1")
			r.Lead(next.Address)
			for i, a := range requesters {
				a.AwaitLoss(t)
				if err := s.Release(t.Context(), held[i], 0); err == nil {
					t.Error("the release of a lost grant succeeded")
				}
			}
			if waits {
				// The waiter at the old server gets its grant at the new one.
				sqltest.Release(t, other, waiter.Granted())
			}
			// Both stores, whose connections led to the old server, exclude each other.
			again, _ := sqltest.Must(t, s, "idle", driver.Exclusive, time.Minute)
			sqltest.Busy(t, other, "idle", driver.Exclusive)
			fresh := mariadb.StoreAt(t, next.Address, mariadb.Home, params)
			defer sqltest.Close(t, fresh)
			sqltest.Busy(t, fresh, "idle", driver.Exclusive)
			st, err := other.Inspect(t.Context(), "idle")
			if err != nil || len(st.Holders) != 1 || st.Holders[0].Token != again.Token {
				t.Errorf("Inspect shows %+v, %v; want token %d", st, err, again.Token)
			}
			sqltest.Release(t, s, again)
		})
	}
}

// TestReadOnlyServerRefuses: a server becomes read-only. The store refuses new requests, also on
// existing connections. They succeed again when the server is writable.
func TestReadOnlyServerRefuses(t *testing.T) {
	mariadb.Server(t) // skips, or fails
	m, err := servers.StartMySQL(t.Context(), mariadb.Fast)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	for _, recipe := range mariadb.Recipes {
		t.Run(recipe, func(t *testing.T) {
			s := mariadb.StoreAt(t, m.Address, mariadb.Home, "recipe="+recipe)
			defer sqltest.Close(t, s)
			if err := s.Init(t.Context()); err != nil {
				t.Fatal(err)
			}
			warm, _ := sqltest.Must(t, s, "warm", driver.Exclusive, time.Minute)
			sqltest.Release(t, s, warm)
			set(t, m, "SET GLOBAL read_only = 1")
			for range 3 {
				r, _ := sqltest.Request("warm", driver.Exclusive, time.Minute)
				if _, err := s.Acquire(t.Context(), r); s.Classify(err) != driver.CodeRefused {
					t.Errorf("Acquire: %v; want refused", err)
				}
			}
			set(t, m, "SET GLOBAL read_only = 0")
			again, _ := sqltest.Must(t, s, "warm", driver.Exclusive, time.Minute)
			sqltest.Release(t, s, again)
		})
	}
}

// neverQueued fails the test if the store reports its request as queued.
type neverQueued struct {
	*sqltest.Requester
	t *testing.T
}

func (q neverQueued) Queued([]driver.Holder) {
	q.t.Error("the store reports the request as queued")
}

// TestReplicaConfirmsNoWaiter: the primary hangs, and new connections lead to a replica that was not promoted
// yet. The store does not report a request at the primary as queued, because its caller would then wait
// without a timeout.
func TestReplicaConfirmsNoWaiter(t *testing.T) {
	mariadb.Server(t) // skips, or fails
	for _, recipe := range mariadb.Sessions {
		t.Run(recipe, func(t *testing.T) {
			old, next, r := startTwo(t)
			s := mariadb.StoreAt(t, r.Address(), mariadb.Home, "recipe="+recipe)
			defer sqltest.Close(t, s)
			g, _ := sqltest.Must(t, s, "one", driver.Exclusive, time.Minute)
			sqltest.Release(t, s, g)
			if err := old.Pause(); err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := old.Cont(); err != nil {
					t.Error(err)
				}
			}()
			set(t, next, "SET GLOBAL read_only = 1")
			r.Lead(next.Address)
			q, a := sqltest.Request("one", driver.Exclusive, time.Minute)
			q.Wait, q.From = true, neverQueued{a, t}
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			defer cancel()
			if g, err := s.Acquire(ctx, q); err == nil {
				t.Fatalf("a grant of a server that hangs: %+v", g)
			}
		})
	}
}
