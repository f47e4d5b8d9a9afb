// Package sqltest has the tests that the stores on SQL databases share. It also has what
// these tests need: a server, databases on it, and requesters of locks.
//
// A test package makes one [Database] and has a Test function for each of the tests here. Tests
// for only one kind of database are in the package of that kind.
package sqltest

import (
	"context"
	"database/sql"
	"encoding/hex"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/drivertest"
	"github.com/holdfast-go/holdfast/e2e/servertest"
	"github.com/holdfast-go/holdfast/internal/must"
	"github.com/holdfast-go/holdfast/internal/servers"
	"github.com/holdfast-go/holdfast/internal/wakeup"
)

// Store is a store under test.
type Store interface {
	driver.Store
	driver.Inspector
	driver.Breaker
	driver.Examiner
	driver.Swapper
	driver.Values
	Init(context.Context) error
	Sweep(context.Context, time.Duration) error
}

// Server is a server that a test has started.
type Server struct {
	Process
	Address string // HOST:PORT
}

// Process is the control of a server's process.
type Process interface {
	servertest.Clocked
	TrueClock(context.Context) error
	Pause() error
	Cont() error
	Kill()
	Restart(context.Context) error
	Close() error
}

// Database describes one kind of database and its store.
//
// Parameters are those of a store's URL, such as "recipe=optimistic&tokens=durable". Statements
// are formats; their comments name the arguments.
type Database struct {
	// AllDatabases is the recipe whose locks reach the clients of all databases of a server; empty if there is none.
	AllDatabases string
	// Start starts a server, with settings of its own kind.
	Start func(ctx context.Context, settings ...string) (Server, error)
	// Fast is a setting that makes a server fast, and forget data when it is killed.
	Fast string
	// Home is a database that exists on each server.
	Home string
	// Driver and DSN open a pool of database/sql, as in another program.
	Driver string
	DSN    func(address, database string) string
	// URL returns the URL of a store.
	URL func(address, database, params string) string
	// Open opens a store by its URL, and New over a pool.
	Open func(ctx context.Context, url, namespace string) (Store, error)
	New  func(ctx context.Context, pool *sql.DB, recipe string) (Store, error)

	// Recipes are all recipes, and Sessions those whose grants need a connection.
	Recipes, Sessions []string
	// SessionTTL is the TTL for tests of expiry with the recipes in Sessions.
	SessionTTL time.Duration

	// Holder selects the number of the session that has a grant. The argument is the
	// grant's token.
	Holder string
	// Running selects the numbers of other sessions in the same database whose statements contain
	// a text. The argument is that text.
	Running string
	// End ends a session, and Interrupt ends its statement. The argument is the session's
	// number.
	End, Interrupt string
	// Ended is the cause that a holder gets when End ends its session.
	Ended driver.Cause
	// Settings selects, as one text, the settings that a store changes in its sessions.
	Settings string
	// LockTimeout are parameters that set the lock timeout of a statement to a second.
	LockTimeout string
	// Parameter is the first placeholder of a statement.
	Parameter string
	// Forge sends a notification of waiters with any payload, its argument; empty if the store listens to none.
	Forge string

	once   sync.Once
	server Server
	err    error
	count  int // of databases made
	mu     sync.Mutex
}

// Names returns a store's recipes as texts.
func Names[R ~string](recipes ...R) (names []string) {
	for _, r := range recipes {
		names = append(names, string(r))
	}
	return names
}

// Main runs a package's tests, and ends its server.
func (d *Database) Main(m *testing.M) {
	code := m.Run()
	if d.server.Process != nil {
		_ = d.server.Close()
	}
	os.Exit(code)
}

// Server returns the server of the package. Without an installed server it skips the test, or
// fails it if HOLDFAST_REQUIRE_SERVERS is 1.
func (d *Database) Server(t testing.TB) Server {
	t.Helper()
	d.once.Do(func() { d.server, d.err = d.Start(context.Background(), d.Fast) })
	servertest.Started(t, d.err)
	return d.server
}

// Bare makes an empty database.
func (d *Database) Bare(t testing.TB) (name string) {
	t.Helper()
	d.mu.Lock()
	d.count++
	name = fmt.Sprintf("t%d", d.count)
	d.mu.Unlock()
	d.Exec(t, d.Home, "CREATE DATABASE "+name)
	return name
}

// Create makes a database with holdfast's tables.
func (d *Database) Create(t testing.TB) (name string) {
	t.Helper()
	name = d.Bare(t)
	s := d.Store(t, name, "recipe=optimistic")
	for range 2 { // Init can be repeated
		check(t, s.Init(t.Context()))
	}
	check(t, s.Close(t.Context()))
	return name
}

// Store opens a store on the package's server. It is closed at the end of the test, or before by the test.
func (d *Database) Store(t testing.TB, database, params string) Store {
	t.Helper()
	return d.StoreAt(t, d.Server(t).Address, database, params)
}

// StoreAt opens a store on another server, or through a proxy.
func (d *Database) StoreAt(t testing.TB, address, database, params string) Store {
	t.Helper()
	return d.OpenURL(t, d.URL(address, database, params))
}

// OpenURL opens a store by its URL.
func (d *Database) OpenURL(t testing.TB, url string) Store {
	t.Helper()
	s, err := d.Open(context.Background(), url, "")
	check(t, err)
	t.Cleanup(func() { Close(t, s) })
	return s
}

// Another starts another server with settings, which is closed at the end of the test.
func (d *Database) Another(t testing.TB, settings ...string) Server {
	t.Helper()
	d.Server(t) // skips, or fails
	server, err := d.Start(context.Background(), settings...)
	check(t, err)
	t.Cleanup(func() { _ = server.Close() })
	return server
}

// Pool returns a pool of database/sql, such as another program uses.
func (d *Database) Pool(t testing.TB, database string) *sql.DB {
	t.Helper()
	return d.PoolAt(t, d.Server(t).Address, database)
}

// PoolAt is Pool on another server.
func (d *Database) PoolAt(t testing.TB, address, database string) *sql.DB {
	t.Helper()
	db, err := sql.Open(d.Driver, d.DSN(address, database))
	check(t, err)
	t.Cleanup(func() { _ = db.Close() })
	return db
}

// Exec runs a statement on a new connection.
func (d *Database) Exec(t testing.TB, database, query string, args ...any) {
	t.Helper()
	db := d.Pool(t, database)
	defer db.Close()
	if _, err := db.ExecContext(t.Context(), query, args...); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
}

// proxied opens a store through a proxy, which is closed at the end of the test.
func (d *Database) proxied(t testing.TB, database, params string) (Store, *servers.Proxy) {
	t.Helper()
	proxy := d.proxy(t)
	return d.StoreAt(t, proxy.Address(), database, params), proxy
}

// proxy starts a proxy of the server, which is closed at the end of the test.
func (d *Database) proxy(t testing.TB) *servers.Proxy {
	t.Helper()
	proxy, err := servers.NewProxy(d.Server(t).Address)
	check(t, err)
	t.Cleanup(proxy.Close)
	return proxy
}

// as returns the URL of a store for another user.
func as(user, url string) string {
	scheme, rest, _ := strings.Cut(url, "://")
	_, rest, _ = strings.Cut(rest, "@")
	return scheme + "://" + user + "@" + rest
}

// Each runs a test for some recipes, on one new database.
func (d *Database) Each(t *testing.T, recipes []string, run func(t *testing.T, params, database string)) {
	database := d.Create(t)
	for _, r := range recipes {
		t.Run(r, func(t *testing.T) { run(t, "recipe="+r, database) })
	}
}

// onSession reports whether a recipe's grants need a connection.
func (d *Database) onSession(recipe string) bool { return slices.Contains(d.Sessions, recipe) }

// running returns the numbers of other sessions whose statements contain a text.
func (d *Database) running(t testing.TB, db *sql.DB, text string) (numbers []int64) {
	t.Helper()
	query := fmt.Sprintf(d.Running, text)
	rows, err := db.Query(query)
	if err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	defer rows.Close()
	for rows.Next() {
		var n int64
		check(t, rows.Scan(&n))
		numbers = append(numbers, n)
	}
	check(t, rows.Err())
	return numbers
}

// Conformance runs the conformance suite for every recipe. In short mode, of the recipes with sessions it takes only
// the first, since the other has the same code with statements of its own.
func Conformance(t *testing.T, d *Database) {
	for _, recipe := range d.Recipes {
		if testing.Short() && d.onSession(recipe) && recipe != d.Recipes[0] {
			continue
		}
		t.Run(recipe, func(t *testing.T) {
			server := d.Server(t)
			database := d.Create(t)
			proxy := d.proxy(t)
			params := "recipe=" + recipe
			if d.onSession(recipe) {
				params += "&max_conns=250" // the suite holds many locks at the same time
			}
			at := func(t testing.TB, address, ns string) driver.Store {
				s, err := d.Open(context.Background(), d.URL(address, database, params), ns)
				check(t, err)
				return s
			}
			h := drivertest.Harness{
				Open: func(t testing.TB, ns string) driver.Store { return at(t, proxy.Address(), ns) },
				Stop: func(t testing.TB) {
					t.Cleanup(func() { _ = server.Cont() }) // also after a failure
					must.Report(t, server.Pause())
				},
				Start: func(t testing.TB) {
					must.Report(t, server.Cont())
				},
			}
			other := d.Create(t)
			edge := func(t testing.TB, ns string) driver.Store {
				s, err := d.Open(context.Background(), d.URL(server.Address, other, params), ns)
				check(t, err)
				return s
			}
			if d.AllDatabases == recipe {
				h.Within = edge
			} else {
				h.Outside = edge
			}
			servertest.Disturb(&h, func(t testing.TB, addresses []string) driver.Store { return at(t, addresses[0], "") }, proxy)
			h.OpenWithoutFallback = func(t testing.TB, ns string) driver.Store { return wakeup.WithoutFallback(h.Open(t, ns)) }
			if d.onSession(recipe) {
				// No clock is set: tokens are times of the server's clock, and fall if it is set back.
				h.TTL = d.SessionTTL
				h.OpenWithoutFallback = h.Open // the server queues
				h.WatchesWaiters = true
			} else {
				servertest.Clock(t, &h, server.Process)
				if h.SetClock != nil { // later tests use the server, too
					t.Cleanup(func() {
						must.Report(t, server.TrueClock(context.Background()))
					})
				}
				if d.Forge != "" {
					h.Forge = func(t testing.TB, name string, ids []string, _ uint64) {
						for _, id := range ids {
							valid := hex.EncodeToString([]byte(id + "\x00\x00" + name))
							for _, payload := range []string{id, valid, strings.ToUpper(valid), valid + "00", "zz", strings.Repeat("f", 7999)} {
								d.Exec(t, database, d.Forge, payload)
							}
						}
					}
				}
				h.Corrupt = func(t testing.TB, namespace, name string) func() {
					return d.corrupt(t, database, namespace, name, `{"holders":[{}]}`)
				}
			}
			drivertest.Run(t, h)
		})
	}
}
