//go:build linux || darwin

package check

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/check/servers"
)

// init adds each database with each of its recipes. The empty recipe selects the store's
// default.
func init() {
	for name, start := range map[string]func(ctx context.Context, recipe string) (*Target, error){
		"mysql": mysqlTarget, "mariadb": mariadbTarget, "postgres": postgresTarget,
	} {
		own := "named"
		if name == "postgres" {
			own = "advisory"
		}
		for _, recipe := range []string{"", "pessimistic", "optimistic", own} {
			locals[strings.TrimSuffix(name+"-"+recipe, "-")] = func(ctx context.Context, _ string) (*Target, error) { return start(ctx, recipe) }
		}
	}
}

// clientUser is the clients' user on MariaDB and PostgreSQL. It has exactly the rights that
// docs/sql.md lists. In particular, it cannot write on a read-only server.
const clientUser = "client"

// primary is the present primary of a database.
type primary interface {
	Pause() error
	Cont() error
	Kill()
	Restart(context.Context) error
}

// primaryFaults returns the faults that kill and stop the present primary, which now
// returns.
func primaryFaults(now func() primary) []StoreFault {
	return []StoreFault{
		{Kind: faultKillServer, Begin: func(context.Context, Fault) error { now().Kill(); return nil },
			End: func(ctx context.Context, _ Fault) error { return now().Restart(ctx) }},
		{Kind: faultPauseServer, Begin: func(context.Context, Fault) error { return now().Pause() },
			End: func(context.Context, Fault) error { return now().Cont() }},
	}
}

// sqlFaults joins the faults of the servers with those of their proxies. A server may be
// down while its proxy injects a fault. Grants of most recipes end with their session, when
// the server or the connection fails. The leases of the recipe optimistic do not.
func sqlFaults(recipe string, ofServers []StoreFault, proxies ...*servers.Proxy) []StoreFault {
	all := append(oneAtATime(ofServers), oneAtATime(proxyFaults(proxies...))...)
	for i := range all {
		early := recipe != "optimistic" && !slices.Contains([]string{"pause-server", "revoke-right", "lock-tables", "delay-server"}, all[i].Kind)
		all[i].Early, all[i].All = early, early
	}
	return all
}

func initialise(ctx context.Context, address string) error {
	s, err := opener(address, "")(ctx)
	if err != nil {
		return err
	}
	defer s.Close(context.WithoutCancel(ctx))
	i, ok := s.(interface{ Init(context.Context) error })
	if !ok {
		return fmt.Errorf("check: the store %s has no Init", s)
	}
	return i.Init(ctx)
}

// execSQL runs statements on one connection that bypasses the proxy.
func execSQL(ctx context.Context, driver, dsn string, statements ...string) error {
	db, err := sql.Open(driver, dsn)
	if err != nil {
		return err
	}
	defer db.Close()
	c, err := db.Conn(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	for _, statement := range statements {
		if _, err := c.ExecContext(ctx, statement); err != nil {
			return fmt.Errorf("check: %s: %w", statement, err)
		}
	}
	return nil
}

// querySQL reads one value on a connection that bypasses the proxy.
func querySQL(ctx context.Context, driver, dsn, query string, to any) error {
	db, err := sql.Open(driver, dsn)
	if err != nil {
		return err
	}
	defer db.Close()
	return db.QueryRowContext(ctx, query).Scan(to)
}

// coordinators is the number of sessions of the run's own client.
const coordinators = 3

// sessionsLeft returns a Target's Left. It waits until the primary has only the run's own
// sessions, and the replica at most most sessions. count returns the two numbers.
func sessionsLeft(most int, count func(context.Context) (primary, replica int, err error)) func(context.Context) ([]string, error) {
	return leftSoon(15*time.Second, func(ctx context.Context) ([]string, error) {
		primary, replica, err := count(ctx)
		if err != nil || primary <= coordinators && replica <= most {
			return nil, err
		}
		return []string{fmt.Sprintf("%d sessions at the primary and %d at the replica", primary, replica)}, nil
	})
}
