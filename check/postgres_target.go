//go:build linux || darwin

package check

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/check/servers"
)

// postgres is a primary and a hot standby, each behind a proxy. The URL of the clients has
// both addresses. A switchover exchanges the two roles, and each server keeps its address.
type postgres struct {
	proxies []*servers.Proxy
	rights  []string

	// One fault at a time changes these.
	primary, replica *servers.Postgres
	revoked          string
}

// postgresRights returns the rights that a recipe needs, as docs/sql.md lists them.
func postgresRights(recipe string) []string {
	switch recipe {
	case "optimistic":
		return []string{"SELECT ON holdfast_row", "INSERT ON holdfast_row", "UPDATE ON holdfast_row", "DELETE ON holdfast_row", "SELECT ON holdfast_floor", "UPDATE ON holdfast_floor"}
	case "pessimistic":
		return []string{"SELECT ON holdfast_name", "INSERT ON holdfast_name", "UPDATE ON holdfast_name", "SELECT ON holdfast_slot", "INSERT ON holdfast_slot", "UPDATE ON holdfast_slot"}
	}
	return nil
}

func postgresTarget(ctx context.Context, recipe string) (_ *Target, err error) {
	p := &postgres{rights: postgresRights(recipe)}
	defer func() {
		if err != nil {
			_ = p.close()
		}
	}()
	// With these settings a crash may lose acknowledged commits. The store must put a grant
	// on disk all the same.
	settings := []string{"synchronous_commit=off", "wal_writer_delay=10s", "wal_retrieve_retry_interval=100ms"}
	if p.primary, err = servers.StartPostgres(ctx, settings...); err != nil {
		return nil, err
	}
	if p.replica, err = servers.StartPostgresReplica(ctx, p.primary, settings...); err != nil {
		return nil, err
	}
	storeURL := func(user string, addresses ...string) string {
		return fmt.Sprintf("postgres://%s@%s/postgres?sslmode=disable&recipe=%s", user, strings.Join(addresses, ","), recipe)
	}
	if err := initialise(ctx, storeURL("postgres", p.primary.Address)); err != nil {
		return nil, err
	}
	statements := []string{"CREATE USER " + clientUser}
	for _, r := range p.rights {
		statements = append(statements, fmt.Sprintf("GRANT %s TO %s", r, clientUser))
	}
	if err := p.exec(ctx, p.primary, statements...); err != nil {
		return nil, err
	}
	// Clients may connect to the replica at once, so it must have their user.
	for known := false; !known; {
		if err := p.query(ctx, p.replica, fmt.Sprintf("SELECT EXISTS (SELECT 1 FROM pg_roles WHERE rolname = '%s')", clientUser), &known); err != nil {
			return nil, err
		}
	}
	for _, s := range []*servers.Postgres{p.primary, p.replica} {
		proxy, err := servers.NewProxy(s.Address)
		if err != nil {
			return nil, err
		}
		p.proxies = append(p.proxies, proxy)
	}
	faults := append(primaryFaults(func() primary { return p.primary }),
		StoreFault{Kind: "crash-server", Begin: p.crash}, StoreFault{Kind: "promote-replica", Begin: p.promote},
		StoreFault{Kind: "kill-session", Begin: p.killSession})
	if len(p.rights) > 0 {
		faults = append(faults, StoreFault{Kind: "revoke-right", Begin: p.revoke, End: p.grant})
	}
	return &Target{
		URL:    storeURL(clientUser, p.proxies[0].Address(), p.proxies[1].Address()),
		Faults: sqlFaults(recipe, faults, p.proxies...),
		Left: sessionsLeft(0, func(ctx context.Context) (primary, replica int, err error) {
			count := fmt.Sprintf("SELECT count(*) FROM pg_stat_activity WHERE usename = '%s'", clientUser)
			err = errors.Join(p.query(ctx, p.primary, count, &primary), p.query(ctx, p.replica, count, &replica))
			return primary, replica, err
		}),
		Close: p.close,
	}, nil
}

// close ends the servers and the proxies.
func (p *postgres) close() error {
	var errs []error
	for _, proxy := range p.proxies {
		proxy.Close()
	}
	for _, s := range []*servers.Postgres{p.primary, p.replica} {
		if s != nil {
			errs = append(errs, s.Close())
		}
	}
	return errors.Join(errs...)
}

// crash kills the primary and starts it again at once, while earlier grants are valid.
func (p *postgres) crash(ctx context.Context, _ Fault) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	p.primary.Kill()
	return p.primary.Restart(ctx)
}

// promote does a switchover without a lost commit. It shuts the primary down, promotes the
// replica, and restarts the old primary as the replica of the new one.
func (p *postgres) promote(ctx context.Context, _ Fault) error {
	// The switchover must complete. Otherwise the next fault would find two replicas.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	old, next := p.primary, p.replica
	for following := false; !following; {
		if err := p.query(ctx, old, "SELECT EXISTS (SELECT 1 FROM pg_stat_replication WHERE state = 'streaming')", &following); err != nil {
			return err
		}
	}
	err := old.Demote(ctx, func(ctx context.Context) error { return p.exec(ctx, next, "SELECT pg_promote(true, 30)") }, next)
	p.primary, p.replica = next, old
	return err
}

// revoke takes one of the documented rights away. grant gives it back.
func (p *postgres) revoke(ctx context.Context, f Fault) error {
	p.revoked = p.rights[f.N%len(p.rights)]
	return p.exec(ctx, p.primary, fmt.Sprintf("REVOKE %s FROM %s", p.revoked, clientUser))
}

func (p *postgres) grant(ctx context.Context, _ Fault) error {
	return p.exec(ctx, p.primary, fmt.Sprintf("GRANT %s TO %s", p.revoked, clientUser))
}

// killSession ends a client's connection, as an administrator does.
func (p *postgres) killSession(ctx context.Context, f Fault) error {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	_ = p.exec(ctx, p.primary, fmt.Sprintf("SELECT pg_terminate_backend(pid) FROM (SELECT pid FROM pg_stat_activity WHERE usename = '%s' ORDER BY pid OFFSET %d %% "+
		"greatest(1, (SELECT count(*) FROM pg_stat_activity WHERE usename = '%[1]s')) LIMIT 1) s", clientUser, f.N)) // the server may be unreachable
	return nil
}

// exec runs statements as the administrator. Before it returns, the primary has their
// changes on disk and sends them to the replica.
func (p *postgres) exec(ctx context.Context, s *servers.Postgres, statements ...string) error {
	return execSQL(ctx, "pgx", s.URL("postgres", "&synchronous_commit=on"), statements...)
}

func (p *postgres) query(ctx context.Context, s *servers.Postgres, statement string, to any) error {
	return querySQL(ctx, "pgx", s.URL("postgres", ""), statement, to)
}
