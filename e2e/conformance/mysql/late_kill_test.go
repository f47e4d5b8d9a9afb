package mysql

import (
	"bytes"
	"context"
	"database/sql"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/e2e/conformance/requests"
	"github.com/holdfast-go/holdfast/e2e/conformance/sqltest"
	"github.com/holdfast-go/holdfast/mysqlstore"
)

// TestLateKillEndsNothing: a wait is cancelled, and its KILL statements arrive much later. By then the
// client has another grant and another waiter. They keep their sessions, and the statement of the
// waiter continues.
func TestLateKillEndsNothing(t *testing.T) {
	t.Parallel()
	schema := mariadb.Create(t)
	for _, recipe := range mariadb.Sessions {
		for _, granted := range []bool{false, true} { // whether the server grants before the wait ends
			t.Run(recipe+map[bool]string{true: " granted"}[granted], func(t *testing.T) {
				s, kills := delayed(t, mariadb.Server(t).Address, schema, recipe)
				other := mariadb.Store(t, schema, "recipe="+recipe)
				g, _ := sqltest.Must(t, other, "late", driver.Exclusive, time.Minute)
				release := func() { sqltest.Release(t, other, g) }
				if granted {
					cancelWait(t, s, kills, "late", release)
				} else {
					cancelWait(t, s, kills, "late", func() {})
					release()
				}
				next, a := sqltest.Must(t, s, "late", driver.Exclusive, time.Minute)
				waiter := sqltest.Wait(t, t.Context(), s, "late", driver.Exclusive)
				last := sqltest.Wait(t, t.Context(), other, "late", driver.Exclusive)
				kills.arrive(t, mariadb.Pool(t, schema))
				if r := s.Renew(t.Context(), []driver.Grant{next}); r[0].Err != nil {
					t.Error(r[0].Err)
				}
				a.Keeps(t)
				// A waiter that was interrupted would be behind the last one.
				sqltest.Release(t, s, next)
				sqltest.Release(t, s, waiter.Granted())
				sqltest.Release(t, other, last.Granted())
			})
		}
	}
}

// cancelWait cancels a wait for a name that is held, and begins to undo it, while KILL statements do not
// arrive. Then it undoes the wait. It calls sent when the client has sent a KILL.
func cancelWait(t *testing.T, s sqltest.Store, kills *delayedKills, name string, sent func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	w := sqltest.Wait(t, ctx, s, name, driver.Exclusive)
	kills.delay(true)
	cancel()
	requests.Eventually(t, "the client has sent a KILL", func() bool { return len(kills.sent()) > 0 })
	sent()
	r, err := w.Failed()
	if s.Classify(err) != driver.CodeUnknown {
		kills.delay(false)
		return
	}
	// The first Undo ends when it has sent a KILL, or when the server has ended the session by itself.
	undo, stop := context.WithCancel(t.Context())
	defer stop()
	var undone atomic.Bool
	go func() {
		_ = s.Undo(undo, r)
		undone.Store(true)
	}()
	before := len(kills.sent())
	requests.Eventually(t, "Undo has sent a KILL", func() bool { return undone.Load() || len(kills.sent()) > before })
	stop()
	kills.delay(false)
	requests.Undone(t, s, r)
}

// delayed opens a store whose KILL statements can be delayed in the network.
func delayed(t *testing.T, address, schema, recipe string) (sqltest.Store, *delayedKills) {
	t.Helper()
	cfg, err := mysql.ParseDSN(mariadb.DSN(address, schema))
	check(t, err)
	k := &delayedKills{}
	cfg.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := (&net.Dialer{}).DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return delayingConn{c, k}, nil
	}
	s, err := mysqlstore.OpenConfig(t.Context(), cfg, mysqlstore.With(mysqlstore.Recipe(recipe)))
	check(t, err)
	t.Cleanup(func() { sqltest.Close(t, s) })
	return s, k
}

// delayedKills are the KILL statements that the network has not delivered.
type delayedKills struct {
	mu         sync.Mutex
	on         bool
	statements []string
}

func (k *delayedKills) delay(on bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.on = on
}

func (k *delayedKills) sent() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.statements)
}

// arrive executes the statements, and requires that the server has no session for them.
func (k *delayedKills) arrive(t *testing.T, db *sql.DB) {
	t.Helper()
	for _, s := range k.sent() {
		if _, err := db.ExecContext(t.Context(), s); err == nil || !strings.Contains(err.Error(), "1094") {
			t.Errorf("%s, late: %v, want error 1094", s, err)
		}
	}
}

// delayingConn delays packets with a KILL.
type delayingConn struct {
	net.Conn
	k *delayedKills
}

func (c delayingConn) Write(b []byte) (int, error) {
	if _, statement, ok := bytes.Cut(b, []byte("\x03KILL ")); ok { // COM_QUERY
		c.k.mu.Lock()
		defer c.k.mu.Unlock()
		if c.k.on {
			c.k.statements = append(c.k.statements, "KILL "+string(statement))
			return len(b), nil
		}
	}
	return c.Conn.Write(b)
}
