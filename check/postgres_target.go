//go:build linux || darwin

package check

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/internal/servers"
)

// postgres is a primary and a hot standby, each behind a proxy. The URL of the clients has
// both addresses. A switchover exchanges the two roles, and each server keeps its address.
type postgres struct{ database[*servers.Postgres] }

// postgresTables are the tables that a recipe needs beside that of values.
var postgresTables = map[string][]string{
	"optimistic":  {"holdfast_row", "holdfast_floor"},
	"pessimistic": {"holdfast_name", "holdfast_slot"},
}

func postgresTarget(recipe string) starter {
	return func(ctx context.Context, _ string, t *Target) error {
		p := &postgres{database[*servers.Postgres]{dialect: dialect{
			user:     clientUser,
			sessions: "SELECT string_agg(pid::text, ',' ORDER BY pid) FROM pg_stat_activity WHERE usename = '" + clientUser + "'",
			end:      "SELECT pg_terminate_backend(%s)",
		}}}
		return p.start(ctx, t, recipe)
	}
}

func (p *postgres) start(ctx context.Context, t *Target, recipe string) error {
	// With these settings a crash may lose acknowledged commits. The store must put a grant
	// on disk all the same.
	settings := []string{"synchronous_commit=off", "wal_writer_delay=10s", "wal_retrieve_retry_interval=100ms"}
	s, err := servers.StartPostgres(ctx, settings...)
	if err = p.add(t, s, err); err != nil {
		return err
	}
	s, err = servers.StartPostgresReplica(ctx, p.servers[0], settings...)
	if err = p.add(t, s, err); err != nil {
		return err
	}
	storeURL := func(user string, addresses ...string) string {
		return fmt.Sprintf("postgres://%s@%s/postgres?sslmode=disable&recipe=%s", user, strings.Join(addresses, ","), recipe)
	}
	if err := initialise(ctx, storeURL("postgres", p.servers[0].Address)); err != nil {
		return err
	}
	if err := p.admit(ctx, postgresTables[recipe]...); err != nil {
		return err
	}
	// Clients may connect to the replica at once, so it must have their user.
	const known = "SELECT EXISTS (SELECT 1 FROM pg_roles WHERE rolname = '" + clientUser + "')"
	if err := awaitSQL(ctx, time.Minute, p.servers[1], known); err != nil {
		return err
	}
	proxies, hosts, err := t.proxies(p.servers[0].Address, p.servers[1].Address)
	if err != nil {
		return err
	}
	t.URL = storeURL(clientUser, hosts...)
	faults := append(p.primaryFaults(),
		StoreFault{Kind: "crash-server", Begin: p.crash}, StoreFault{Kind: "promote-replica", Begin: p.promote},
		p.killSession(func() []*servers.Postgres { return p.servers[:1] }),
		StoreFault{Kind: faultFull, Begin: p.limitConnections("1"), End: p.limitConnections("-1")})
	if len(p.rights) > 0 {
		faults = append(faults, p.revokeRight())
	}
	p.complete(t, recipe, faults, proxies...)
	return nil
}

// crash kills the primary and starts it again at once, while earlier grants are valid.
func (p *postgres) crash(ctx context.Context, _ Fault) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	return p.servers[0].Restart(ctx)
}

// promote does a switchover without a lost commit. It shuts the primary down, promotes the
// replica, and restarts the old primary as the replica of the new one.
func (p *postgres) promote(ctx context.Context, _ Fault) error {
	// The switchover must complete. Otherwise the next fault would find two replicas.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	old, next := p.servers[0], p.servers[1]
	const follows = "SELECT EXISTS (SELECT 1 FROM pg_stat_replication WHERE state = 'streaming')"
	if err := awaitSQL(ctx, time.Minute, old, follows); err != nil {
		return err
	}
	err := old.Demote(ctx, func(ctx context.Context) error { return execSQL(ctx, next, "SELECT pg_promote(true, 30)") }, next)
	slices.Reverse(p.servers)
	return err
}

// limitConnections limits the connections of the clients' user. Present ones stay.
func (p *postgres) limitConnections(n string) func(context.Context, Fault) error {
	return func(ctx context.Context, _ Fault) error {
		return execSQL(ctx, p.servers[0], "ALTER ROLE "+clientUser+" CONNECTION LIMIT "+n)
	}
}
