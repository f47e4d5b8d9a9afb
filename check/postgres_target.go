//go:build linux || darwin

package check

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/check/servers"
)

func init() {
	for _, recipe := range []string{"", "advisory", "pessimistic", "optimistic"} {
		locals[dashed("postgres", recipe)] = func(ctx context.Context, _ string) (*Target, error) {
			return postgresTarget(ctx, recipe)
		}
	}
}

// postgres is a primary and a hot standby, each behind a proxy. The URL of the clients has both addresses.
// A switchover makes one of them the other, at the same address.
type postgres struct {
	*database
	proxies []*servers.Proxy
	rights  []string

	// One fault at a time changes these.
	primary, replica *servers.Postgres
	revoked          string
}

// postgresRights are the rights that a recipe needs, as docs/sql.md lists them.
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
	p.database = &database{driver: "pgx", server: p}
	defer func() {
		if err != nil {
			_ = p.Close()
		}
	}()
	// A crash may lose what the server has only acknowledged. Despite this setting a grant
	// must be on disk.
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
	// Clients may reach the replica at once, so it must accept them.
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
	// Grants end with their session: when the server or the connection fails. Leases do not.
	early := recipe != "optimistic"
	faults := []StoreFault{
		{Kind: "kill-server", Begin: p.kill, End: p.restart},
		{Kind: "crash-server", Begin: p.crash},
		{Kind: "pause-server", Begin: p.pause, End: p.cont},
		{Kind: "promote-replica", Begin: p.promote},
	}
	if len(p.rights) > 0 {
		faults = append(faults, StoreFault{Kind: "revoke-right", Begin: p.revoke, End: p.grant})
	}
	// A server may be down while its proxy injects a fault.
	faults = append(oneAtATime(faults), oneAtATime(proxyFaults(p.proxies...))...)
	faults = append(faults, StoreFault{Kind: "kill-session", Begin: p.killSession})
	for i := range faults {
		faults[i].Early = early && !slices.Contains([]string{"pause-server", "revoke-right", "delay-server"}, faults[i].Kind)
		faults[i].All = faults[i].Early
	}
	return &Target{
		URL:    storeURL(clientUser, p.proxies[0].Address(), p.proxies[1].Address()),
		Faults: faults,
		Left:   p.left,
		Close:  p.Close,
	}, nil
}

// The faults of one server apply to the primary.
func (p *postgres) Pause() error                      { return p.primary.Pause() }
func (p *postgres) Cont() error                       { return p.primary.Cont() }
func (p *postgres) Kill()                             { p.primary.Kill() }
func (p *postgres) Restart(ctx context.Context) error { return p.primary.Restart(ctx) }

// Close ends the servers and the proxies.
func (p *postgres) Close() error {
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
func (p *postgres) crash(ctx context.Context, f Fault) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	return errors.Join(p.kill(ctx, f), p.restart(ctx, f))
}

// promote does a switchover without a lost commit: the primary is shut down, the replica
// becomes the primary, and the old one comes back as its replica.
func (p *postgres) promote(ctx context.Context, _ Fault) error {
	// It runs to its end, because the next fault would otherwise find two replicas.
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

// revoke takes one of the documented rights away, and grant gives it back.
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
		"greatest(1, (SELECT count(*) FROM pg_stat_activity WHERE usename = '%[1]s')) LIMIT 1) s", clientUser, f.N)) // it may be unreachable
	return nil
}

// left lists the remaining sessions after the workers' end, without the coordinator's.
func (p *postgres) left(ctx context.Context) ([]string, error) {
	const coordinators = 3
	for deadline := time.Now().Add(15 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		var at [2]int
		for i, s := range []*servers.Postgres{p.primary, p.replica} {
			if err := p.query(ctx, s, fmt.Sprintf("SELECT count(*) FROM pg_stat_activity WHERE usename = '%s'", clientUser), &at[i]); err != nil {
				return nil, err
			}
		}
		if at[0] <= coordinators && at[1] == 0 {
			return nil, nil
		}
		if time.Now().After(deadline) {
			return []string{fmt.Sprintf("%d sessions at the primary and %d at the replica", at[0], at[1])}, nil
		}
	}
}

// exec runs statements as the administrator, without the proxies. Their changes are on disk,
// and on their way to the replica.
func (p *postgres) exec(ctx context.Context, s *servers.Postgres, statements ...string) error {
	db, err := sql.Open(p.driver, s.URL("postgres", "&synchronous_commit=on"))
	if err != nil {
		return err
	}
	defer db.Close()
	for _, statement := range statements {
		if _, err := db.ExecContext(ctx, statement); err != nil {
			return fmt.Errorf("check: %s: %w", statement, err)
		}
	}
	return nil
}

func (p *postgres) query(ctx context.Context, s *servers.Postgres, statement string, to any) error {
	db, err := sql.Open(p.driver, s.URL("postgres", ""))
	if err != nil {
		return err
	}
	defer db.Close()
	return db.QueryRowContext(ctx, statement).Scan(to)
}
