package mysql

import (
	"context"
	"database/sql"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/e2e/conformance/requests"
	"github.com/holdfast-go/holdfast/e2e/conformance/sqltest"
	"github.com/holdfast-go/holdfast/internal/servers"
)

// open opens n connections to a server. Each function that it returns runs a statement on one of
// them, and fails if the connection is closed.
func open(t *testing.T, m *servers.MySQL, n int) (alive []func() error) {
	t.Helper()
	db, err := sql.Open(mariadb.Driver, m.DSN(mariadb.Home, ""))
	check(t, err)
	t.Cleanup(func() { _ = db.Close() })
	for range n {
		c, err := db.Conn(t.Context())
		check(t, err)
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
	check(t, err)
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
	t.Parallel()
	for _, recipe := range mariadb.Recipes {
		t.Run(recipe, func(t *testing.T) {
			t.Parallel()
			old, next, r := startTwo(t)
			params := "recipe=" + recipe
			s := mariadb.StoreAt(t, r.Address(), mariadb.Home, params)
			var held []driver.Grant
			var requesters []*requests.Recorder
			for _, name := range []string{"one", "two", "three"} {
				g, a := sqltest.Must(t, s, name, driver.Exclusive, time.Minute)
				held, requesters = append(held, g), append(requesters, a)
			}
			idle, _ := sqltest.Must(t, s, "idle", driver.Exclusive, time.Minute)
			sqltest.Release(t, s, idle) // its connection to the old server stays open
			other := mariadb.StoreAt(t, r.Address(), mariadb.Home, params)
			// A statement that waits for a row keeps the server from becoming read-only.
			waits := recipe == "named"
			var waiter *requests.Waiter
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
			sqltest.Busy(t, fresh, "idle", driver.Exclusive)
			sqltest.Shown(t, other, again)
			sqltest.Release(t, s, again)
		})
	}
}

// TestReadOnlyServerRefuses: a server becomes read-only. The store refuses new requests, also on
// existing connections. They succeed again when the server is writable.
func TestReadOnlyServerRefuses(t *testing.T) {
	m := another(t, mariadb.Fast)
	for _, recipe := range mariadb.Recipes {
		t.Run(recipe, func(t *testing.T) {
			s := mariadb.StoreAt(t, m.Address, mariadb.Home, "recipe="+recipe)
			check(t, s.Init(t.Context()))
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

// TestFactsBelongToTheServer: after a switchover the store treats the new server as it is: it reads tokens
// differently with --sysdate-is-now, and refuses settings with which its recipe would not be safe.
func TestFactsBelongToTheServer(t *testing.T) {
	t.Parallel()
	first, odd := another(t), another(t, "--sysdate-is-now")
	unsafe := another(t, "--log-bin=log", "--server-id=1", "--binlog-format=STATEMENT")
	for _, m := range []*servers.MySQL{first, odd} {
		s := mariadb.StoreAt(t, m.Address, mariadb.Home, "recipe=optimistic")
		check(t, s.Init(t.Context()))
		sqltest.Close(t, s)
	}
	for _, recipe := range mariadb.Sessions {
		t.Run(recipe, func(t *testing.T) {
			r, err := servers.NewProxy(first.Address)
			check(t, err)
			defer r.Close()
			s := mariadb.StoreAt(t, r.Address(), mariadb.Home, "recipe="+recipe)
			r.Lead(odd.Address)
			sqltest.TokenIsReadAfterTheWait(t, s, driver.Exclusive)
			check(t, r.Redirect(unsafe.Address))
			for try := 0; ; try++ {
				q, _ := sqltest.Request("unsafe", driver.Exclusive, time.Minute)
				_, err := s.Acquire(t.Context(), q)
				if code := s.Classify(err); code == driver.CodeRefused && strings.Contains(err.Error(), "binlog_format") {
					return
				}
				if try == 3 { // the first may use a connection that has ended
					t.Fatalf("Acquire: %v; want refused for binlog_format", err)
				}
			}
		})
	}
}

// TestOtherDefaultSchemaIsRefused: other code of the program changes the default schema of a connection in the pool
// that the store uses. The store does not lock in that schema.
func TestOtherDefaultSchemaIsRefused(t *testing.T) {
	first, second := mariadb.Create(t), mariadb.Create(t)
	for _, recipe := range mariadb.Recipes {
		t.Run(recipe, func(t *testing.T) {
			pool := mariadb.Pool(t, first)
			pool.SetMaxIdleConns(1)
			s, err := mariadb.New(t.Context(), pool, recipe)
			check(t, err)
			defer sqltest.Close(t, s)
			g, _ := sqltest.Must(t, s, "x", driver.Exclusive, time.Minute)
			sqltest.Release(t, s, g)
			if _, err := pool.ExecContext(t.Context(), "USE "+second); err != nil {
				t.Fatal(err)
			}
			r, _ := sqltest.Request("x", driver.Exclusive, time.Minute)
			if _, err := s.Acquire(t.Context(), r); s.Classify(err) != driver.CodeRefused || !strings.Contains(err.Error(), second) {
				t.Errorf("Acquire: %v; want refused, with the schema %s", err, second)
			}
		})
	}
}

// neverQueued fails the test if the store reports its request as queued.
type neverQueued struct {
	*requests.Recorder
	t *testing.T
}

func (q neverQueued) Queued([]driver.Holder) {
	q.t.Error("the store reports the request as queued")
}

// TestReplicaConfirmsNoWaiter: the primary hangs, and new connections lead to a replica that was not promoted
// yet. The store does not report a request at the primary as queued, because its caller would then wait
// without a timeout.
func TestReplicaConfirmsNoWaiter(t *testing.T) {
	t.Parallel()
	for _, recipe := range mariadb.Sessions {
		t.Run(recipe, func(t *testing.T) {
			t.Parallel()
			old, next, r := startTwo(t)
			s := mariadb.StoreAt(t, r.Address(), mariadb.Home, "recipe="+recipe)
			g, _ := sqltest.Must(t, s, "one", driver.Exclusive, time.Minute)
			sqltest.Release(t, s, g)
			check(t, old.Pause())
			defer func() { check(t, old.Cont()) }()
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
