package postgres

import (
	"context"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/e2e/conformance/requests"
	"github.com/holdfast-go/holdfast/e2e/conformance/sqltest"
	"github.com/holdfast-go/holdfast/internal/servers"
)

// TestFailoverToALaggingReplicaEndsTheGrant: the primary crashes, and a replica is promoted that has not
// received the last grant. The holder of that lease is notified, and the next grant has a larger token.
func TestFailoverToALaggingReplicaEndsTheGrant(t *testing.T) {
	t.Parallel()
	postgres.Server(t) // skips, or fails
	primary, err := servers.StartPostgres(t.Context(), postgres.Fast)
	check(t, err)
	defer primary.Close()
	tables := postgres.StoreAt(t, primary.Address, postgres.Home, "recipe=optimistic")
	check(t, tables.Init(t.Context()))
	sqltest.Close(t, tables)
	replica, err := servers.StartPostgresReplica(t.Context(), primary, postgres.Fast)
	check(t, err)
	defer replica.Close()
	there := postgres.PoolAt(t, replica.Address, postgres.Home)
	for _, statement := range []string{"ALTER SYSTEM SET primary_conninfo = ''", "SELECT pg_reload_conf()"} {
		if _, err := there.ExecContext(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	for receivers := 1; receivers > 0; time.Sleep(20 * time.Millisecond) {
		check(t, there.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM pg_stat_wal_receiver").Scan(&receivers))
	}

	s := postgres.StoreAt(t, primary.Address+","+replica.Address, postgres.Home, "recipe=optimistic")
	g, a := sqltest.Must(t, s, "lag", driver.Exclusive, time.Hour)
	primary.Kill()
	if _, err := there.ExecContext(t.Context(), "SELECT pg_promote(true, 60)"); err != nil {
		t.Fatal(err)
	}
	if c := a.AwaitLoss(t); c != driver.CauseGone {
		t.Errorf("cause %q, want %q", c, driver.CauseGone)
	}
	next, _ := sqltest.Must(t, s, "lag", driver.Exclusive, time.Minute)
	requests.Rises(t, g, next)
	sqltest.Release(t, s, next)
}

// TestTwoPrimariesGrantTheSameLock: an administrator promotes a replica while the primary still runs.
// Clients of both servers get the lock, and both can renew it. A note in the guarantees warns of this.
func TestTwoPrimariesGrantTheSameLock(t *testing.T) {
	t.Parallel()
	postgres.Server(t) // skips, or fails
	primary, err := servers.StartPostgres(t.Context(), postgres.Fast)
	check(t, err)
	defer primary.Close()
	one := postgres.StoreAt(t, primary.Address, postgres.Home, "recipe=optimistic")
	check(t, one.Init(t.Context()))
	replica, err := servers.StartPostgresReplica(t.Context(), primary, postgres.Fast)
	check(t, err)
	defer replica.Close()
	if _, err := postgres.PoolAt(t, replica.Address, postgres.Home).ExecContext(t.Context(), "SELECT pg_promote(true, 60)"); err != nil {
		t.Fatal(err)
	}
	two := postgres.StoreAt(t, replica.Address, postgres.Home, "recipe=optimistic")
	g, _ := sqltest.Must(t, one, "twice", driver.Exclusive, time.Hour)
	h, _ := sqltest.Must(t, two, "twice", driver.Exclusive, time.Hour)
	for s, g := range map[driver.Store]driver.Grant{one: g, two: h} {
		if a := s.Renew(t.Context(), []driver.Grant{g})[0]; a.Err != nil {
			t.Errorf("the grant of one of two primaries cannot be renewed: %v", a.Err)
		}
		sqltest.Release(t, s, g)
	}
}

// TestSilentHostIsPassedOver: the first host of the URL accepts connections and never answers. Clients use the
// second one.
func TestSilentHostIsPassedOver(t *testing.T) {
	t.Parallel()
	address := postgres.Server(t).Address
	silent, err := servers.NewProxy(address)
	check(t, err)
	defer silent.Close()
	check(t, silent.Silence())
	database := postgres.Create(t)
	for _, recipe := range postgres.Recipes {
		t.Run(recipe, func(t *testing.T) {
			s := postgres.StoreAt(t, silent.Address()+","+address, database, "recipe="+recipe)
			if !sqltest.Soon(func() bool {
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				defer cancel()
				r, _ := sqltest.Request("silent", driver.Exclusive, time.Minute)
				g, err := s.Acquire(ctx, r)
				if err == nil {
					sqltest.Release(t, s, g)
				} else if s.Classify(err) == driver.CodeUnknown {
					requests.Undone(t, s, r)
				}
				return err == nil
			}) {
				t.Error("no lock within two attempts")
			}
		})
	}
}
