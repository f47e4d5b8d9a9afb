package postgres

import (
	"context"
	"database/sql"
	"fmt"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/e2e/conformance/requests"
	"github.com/holdfast-go/holdfast/e2e/conformance/sqltest"
	"github.com/holdfast-go/holdfast/e2e/servertest"
	"github.com/holdfast-go/holdfast/internal/servers"
	"github.com/holdfast-go/holdfast/pgstore"
)

// TestPoolOfOneConnection: the recipes with sessions refuse a pool of one connection. The
// recipe optimistic works on it.
func TestPoolOfOneConnection(t *testing.T) {
	database := postgres.Create(t)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for _, recipe := range pgstore.Recipes() {
		db := postgres.Pool(t, database)
		db.SetMaxOpenConns(1)
		cfg, err := pgxpool.ParseConfig(postgres.DSN(postgres.Server(t).Address, database))
		check(t, err)
		cfg.MaxConns = 1
		pool, err := pgxpool.NewWithConfig(ctx, cfg)
		check(t, err)
		defer pool.Close()
		for kind, open := range map[string]func() (*pgstore.Store, error){
			"sql.DB":       func() (*pgstore.Store, error) { return pgstore.New(ctx, db, pgstore.With(recipe)) },
			"pgxpool.Pool": func() (*pgstore.Store, error) { return pgstore.NewPool(ctx, pool, pgstore.With(recipe)) },
		} {
			t.Run(kind+"/"+string(recipe), func(t *testing.T) {
				s, err := store(open())
				if recipe != pgstore.Optimistic {
					if driver.CodeOf(err) != driver.CodeInvalid {
						t.Errorf("opened with %v, want a refusal", err)
					}
					return
				}
				check(t, err)
				defer sqltest.Close(t, s)
				g, _ := sqltest.Must(t, s, "one "+kind, driver.Exclusive, time.Minute)
				sqltest.Busy(t, s, "one "+kind, driver.Exclusive)
				sqltest.Release(t, s, g)
			})
		}
	}
}

// TestPoolOfOneConnectionUnseen: a pool has one connection left, and the store cannot see
// that. New returns without an error, and does not wait forever for a second connection.
func TestPoolOfOneConnectionUnseen(t *testing.T) {
	database := postgres.Create(t)
	db := postgres.Pool(t, database)
	db.SetMaxOpenConns(2)
	taken, err := db.Conn(t.Context())
	check(t, err)
	defer taken.Close()
	opened := make(chan error, 1)
	go func() {
		s, err := pgstore.New(context.Background(), db)
		if err == nil {
			err = s.Close(context.Background())
		}
		opened <- err
	}()
	check(t, requests.Receive(t, "the end of New, which waits for a second connection", opened))
}

// TestPoolerBackendStaysAsItWas: a store leaves nothing in a backend that a pooler gives to
// other clients.
func TestPoolerBackendStaysAsItWas(t *testing.T) {
	database := postgres.Create(t)
	pooler, err := servers.StartPgBouncer(t.Context(), postgres.Server(t).Address, "transaction", 1)
	servertest.Started(t, err)
	defer pooler.Close()
	db, err := sql.Open("pgx", pooler.URL(database, "&default_query_exec_mode=simple_protocol"))
	check(t, err)
	defer db.Close()
	state := func() (backend int, left string) {
		t.Helper()
		if err := db.QueryRow("SELECT pg_backend_pid(), current_setting('idle_session_timeout') || ' ' || current_setting('synchronous_commit') || ' ' || coalesce(current_setting('holdfast.probe', true), '') || "+
			"(SELECT count(*) FROM pg_listening_channels())").Scan(&backend, &left); err != nil {
			t.Fatal(err)
		}
		return backend, left
	}
	if _, err := db.Exec("SET idle_session_timeout = '7min'; SET synchronous_commit = off"); err != nil {
		t.Fatal(err)
	}
	backend, before := state()

	s, err := store(pgstore.Open(t.Context(), pooler.URL(database, "&recipe=optimistic")))
	check(t, err)
	g, _ := sqltest.Must(t, s, "pooled", driver.Exclusive, time.Minute)
	w := sqltest.Wait(t, t.Context(), s, "pooled", driver.Exclusive)
	sqltest.Release(t, s, g)
	sqltest.Release(t, s, w.Granted())
	sqltest.Close(t, s)

	same, after := state()
	if same != backend {
		t.Fatalf("backend %d instead of %d", same, backend)
	}
	if after != before {
		t.Errorf("the backend has %q, and had %q", after, before)
	}
}

// TestCallersReuseConnections: callers that lock names at the same time, again and
// again, open about one connection each.
func TestCallersReuseConnections(t *testing.T) {
	database := postgres.Create(t)
	const callers, rounds = 32, 10
	for _, recipe := range pgstore.Recipes() {
		t.Run(string(recipe), func(t *testing.T) {
			cfg, err := pgconn.ParseConfig(postgres.DSN(postgres.Server(t).Address, database))
			check(t, err)
			var dialled atomic.Int32
			dial := cfg.DialFunc
			cfg.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
				dialled.Add(1)
				return dial(ctx, network, address)
			}
			s, err := pgstore.OpenConfig(t.Context(), cfg, pgstore.With(recipe))
			check(t, err)
			defer sqltest.Close(t, s)
			check(t, s.Init(t.Context()))
			l, err := holdfast.New(s)
			check(t, err)
			defer l.Close(context.Background())
			for range rounds {
				var held [callers]*holdfast.Lock
				var locking, unlocking errgroup.Group
				for i := range callers {
					locking.Go(func() (err error) {
						held[i], err = l.Lock(t.Context(), fmt.Sprint("reuse ", i))
						return err
					})
				}
				check(t, locking.Wait())
				for _, k := range held {
					unlocking.Go(k.Unlock)
				}
				check(t, unlocking.Wait())
			}
			// If the machine stands still for seconds, idle connections end meanwhile.
			if n := dialled.Load(); n > 2*callers {
				t.Errorf("%d connections for %d callers", n, callers)
			}
		})
	}
}
