//go:build linux || darwin

package check

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/check/servers"
	"github.com/holdfast-go/holdfast/driver"
)

// The databases, by recipe. Without a recipe the store uses its default.
func init() {
	for _, recipe := range []string{"", "pessimistic", "optimistic", "named"} {
		locals[dashed("mysql", recipe)] = func(ctx context.Context, _ string) (*Target, error) {
			return mysqlTarget(ctx, recipe)
		}
	}
}

func dashed(a, b string) string {
	if b == "" {
		return a
	}
	return a + "-" + b
}

// database is a server of this run, with its proxy.
type database struct {
	server interface {
		Pause() error
		Cont() error
		Kill()
		Restart(context.Context) error
		Close() error
	}
	proxy *servers.Proxy
	// driver and dsn open it for an administrator without the proxy; sessions lists the
	// clients' sessions and end ends one.
	driver, dsn, sessions, end string

	mu     sync.Mutex // one fault of the server at a time
	spoilt *Fault     // the present fault of the proxy
}

// mysqlTarget is one MySQL server. The faults of two servers are mariadbTarget's.
func mysqlTarget(ctx context.Context, recipe string) (*Target, error) {
	s, err := servers.StartMySQL(ctx, "--innodb-flush-log-at-trx-commit=1")
	if err != nil {
		return nil, err
	}
	if s.MariaDB {
		return nil, errors.Join(fmt.Errorf("check: mysqld is %w: give its directory in %s", servers.ErrNotInstalled, servers.Dirs), s.Close())
	}
	d := &database{server: s, driver: "mysql", dsn: s.DSN("test", ""),
		sessions: "SELECT id FROM information_schema.processlist WHERE id <> CONNECTION_ID() AND command <> 'Daemon'", end: "KILL %d"}
	return d.target(ctx, recipe, s.Address, func(address string) string {
		return "mysql://root@" + address + "/test?recipe=" + recipe
	})
}

func (d *database) target(ctx context.Context, recipe, address string, storeURL func(string) string) (_ *Target, err error) {
	defer func() {
		if err != nil {
			err = errors.Join(err, d.close())
		}
	}()
	if d.proxy, err = servers.NewProxy(address); err != nil {
		return nil, err
	}
	if err := initialise(ctx, storeURL(address)); err != nil {
		return nil, err
	}
	// Grants end with their session: when the server or the connection fails. Leases do not.
	early := recipe != "optimistic"
	return &Target{
		URL: storeURL(d.proxy.Address()),
		Faults: []StoreFault{
			{Kind: "kill-server", Early: early, All: true, Begin: d.kill, End: d.restart},
			{Kind: "pause-server", Begin: d.pause, End: d.cont},
			{Kind: "cut-server", Early: early, All: true, Begin: d.disturb(func(Fault) error { d.proxy.Cut(); return nil }), End: d.heal},
			{Kind: "silence-server", Early: early, All: true, Begin: d.disturb(func(Fault) error { return d.proxy.Silence() }), End: d.heal},
			{Kind: "drop-server-answers", Early: early, All: true, Begin: d.disturb(func(Fault) error { return d.proxy.DropAnswers() }), End: d.heal},
			{Kind: "delay-server", Begin: d.disturb(func(f Fault) error { return d.proxy.Delay(f.For / 4) }), End: d.heal},
			{Kind: "kill-session", Early: early, All: true, Begin: d.killSession},
		},
		Left:  d.left,
		Close: d.close,
	}, nil
}

// initialise creates the tables.
func initialise(ctx context.Context, raw string) error {
	u, err := url.Parse(raw)
	if err != nil {
		return err
	}
	open, ok := driver.OpenerOf(u.Scheme)
	if !ok {
		return badConfig("", "scheme %q is not linked in", u.Scheme)
	}
	s, err := open(ctx, u, "")
	if err != nil {
		return err
	}
	defer s.Close(context.WithoutCancel(ctx))
	i, ok := s.(interface{ Init(context.Context) error })
	if !ok {
		return fmt.Errorf("check: the store of scheme %s has no Init", u.Scheme)
	}
	return i.Init(ctx)
}

// disturb begins a fault of the server's proxy, unless it has one already.
func (d *database) disturb(f func(Fault) error) func(context.Context, Fault) error {
	return func(_ context.Context, fault Fault) error {
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.spoilt != nil {
			return nil
		}
		d.spoilt = &fault
		return f(fault)
	}
}

func (d *database) heal(_ context.Context, fault Fault) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.spoilt == nil || *d.spoilt != fault {
		return nil
	}
	d.spoilt = nil
	return d.proxy.Heal()
}

func (d *database) kill(context.Context, Fault) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.server.Kill()
	return nil
}

func (d *database) restart(ctx context.Context, _ Fault) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.server.Restart(ctx)
}

// pause and cont do nothing while another fault has the server down.
func (d *database) pause(context.Context, Fault) error { return d.unlessDown(d.server.Pause) }
func (d *database) cont(context.Context, Fault) error  { return d.unlessDown(d.server.Cont) }

func (d *database) unlessDown(f func() error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := f(); !errors.Is(err, servers.ErrNotRunning) {
		return err
	}
	return nil
}

// killSession ends a client's connection, like an administrator.
func (d *database) killSession(ctx context.Context, f Fault) error {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	ids, err := d.clients(ctx)
	if err != nil || len(ids) == 0 {
		return nil // it may be unreachable
	}
	db, err := sql.Open(d.driver, d.dsn)
	if err != nil {
		return err
	}
	defer db.Close()
	_, _ = db.ExecContext(ctx, fmt.Sprintf(d.end, ids[f.N%len(ids)])) // it may have ended meanwhile
	return nil
}

func (d *database) clients(ctx context.Context) (ids []int64, err error) {
	db, err := sql.Open(d.driver, d.dsn)
	if err != nil {
		return nil, err
	}
	defer db.Close()
	rows, err := db.QueryContext(ctx, d.sessions)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var id int64
		if err := rows.Scan(&id); err != nil {
			return nil, err
		}
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids, rows.Err()
}

// left lists the remaining sessions after the workers' end, without the coordinator's.
func (d *database) left(ctx context.Context) ([]string, error) {
	const coordinators = 3
	deadline := time.Now().Add(15 * time.Second)
	for {
		ids, err := d.clients(ctx)
		if err == nil && len(ids) <= coordinators {
			return nil, nil
		}
		if time.Now().After(deadline) {
			if err != nil {
				return nil, err
			}
			return []string{fmt.Sprintf("%d sessions at the server", len(ids))}, nil
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func (d *database) close() error {
	if d.proxy != nil {
		d.proxy.Close()
	}
	return d.server.Close()
}
