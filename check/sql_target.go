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

	"github.com/holdfast-go/holdfast/internal/servers"
)

// sqlServer is a server of a database. Admin returns the driver and the data source name for the administrator, which
// bypasses the proxies.
type sqlServer interface {
	serverProcess
	Admin() (driver, dsn string)
	Close() error
}

// database is a database whose faults affect the present primary, its first server. Only one fault at a time uses
// it.
type database[S sqlServer] struct {
	dialect
	servers []S
	// tables are the tables of the recipe, and rights the rights on them of the clients' user.
	tables, rights []string
	atReplica      int // the most sessions that may stay at the replica
}

// dialect has the words in which databases differ.
type dialect struct {
	user string // the clients' user, as in GRANT
	// sessions lists the clients' sessions, separated by commas. end ends a session, %s.
	sessions, end string
}

// clientUser is the clients' user on MariaDB and PostgreSQL. It has exactly the rights that
// docs/security.md lists. In particular, it cannot write on a read-only server.
const clientUser = "client"

// coordinators is the number of sessions of the run's own client.
const coordinators = 3

// privileges are the rights that the clients need on the tables of the recipes and of values, as docs/security.md
// lists them.
var privileges = map[string][]string{
	"holdfast_row":     {"SELECT", "INSERT", "UPDATE", "DELETE"},
	"holdfast_floor":   {"SELECT", "UPDATE"},
	"holdfast_name":    {"SELECT", "INSERT", "UPDATE"},
	"holdfast_slot":    {"SELECT", "INSERT", "UPDATE"},
	"holdfast_session": {"SELECT", "INSERT", "UPDATE", "DELETE"},
	"holdfast_value":   {"SELECT", "INSERT", "UPDATE"},
}

func rightsOn(tables ...string) (all []string) {
	for _, table := range tables {
		for _, p := range privileges[table] {
			all = append(all, p+" ON "+table)
		}
	}
	return all
}

// add adds a started server. If the start has failed, add returns its error.
func (d *database[S]) add(t *Target, s S, err error) error {
	if err == nil {
		d.servers = append(d.servers, s)
		t.onClose(func() { _ = s.Close() })
	}
	return err
}

// admit creates the clients' user with the rights that the recipe's tables and values need.
func (d *database[S]) admit(ctx context.Context, tables ...string) error {
	d.tables, d.rights = tables, rightsOn(tables...)
	statements := []string{"CREATE USER " + d.user}
	for _, r := range rightsOn(append(tables[:len(tables):len(tables)], "holdfast_value")...) {
		statements = append(statements, "GRANT "+r+" TO "+d.user)
	}
	return execSQL(ctx, d.servers[0], statements...)
}

// primaryFaults returns the faults that kill and stop the present primary.
func (d *database[S]) primaryFaults() []StoreFault {
	primary := present(&d.servers[0])
	return []StoreFault{
		killFault(faultKillServer, primary), pauseFault(faultPauseServer, primary), pauseFault(faultStall, primary),
	}
}

// revokeRight takes one of the documented rights away.
func (d *database[S]) revokeRight() StoreFault {
	change := func(words string) func(context.Context, Fault) error {
		return func(ctx context.Context, f Fault) error {
			return execSQL(ctx, d.servers[0], fmt.Sprintf(words, d.rights[f.N%len(d.rights)], d.user))
		}
	}
	return StoreFault{Kind: faultRevoke, Begin: change("REVOKE %s FROM %s"), End: change("GRANT %s TO %s")}
}

// clients lists the clients' sessions at a server.
func (d *database[S]) clients(ctx context.Context, s S) ([]string, error) {
	var list sql.NullString
	err := querySQL(ctx, s, d.sessions, &list)
	return strings.FieldsFunc(list.String, func(r rune) bool { return r == ',' }), err
}

// killSession ends a session of the clients at one of some servers, as an administrator does.
func (d *database[S]) killSession(some func() []S) StoreFault {
	return StoreFault{Kind: "kill-session", Begin: func(ctx context.Context, f Fault) error {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		all := some()
		s := all[f.N%len(all)]
		ids, err := d.clients(ctx, s)
		if err == nil && len(ids) > 0 {
			_ = execSQL(ctx, s, fmt.Sprintf(d.end, ids[f.N/len(all)%len(ids)])) // the session may have ended meanwhile
		}
		return nil // the server may be unreachable
	}}
}

// complete completes a target of a recipe, with the faults of its servers and of their proxies. A server may be
// down while its proxy injects a fault. Grants of most recipes end with their session, when
// the server or the connection fails. The leases of the recipe optimistic do not.
func (d *database[S]) complete(t *Target, recipe string, ofServers []StoreFault, proxies ...*servers.Proxy) {
	t.Faults = append(OneAtATime(ofServers), OneAtATime(proxyFaults(proxies...))...)
	harmless := []string{faultPauseServer, faultStall, faultFull, faultRevoke, "lock-tables", faultDelayServer}
	for i, f := range t.Faults {
		if recipe != "optimistic" && !slices.Contains(harmless, f.Kind) {
			t.Faults[i] = early(f)
		}
	}
	t.Left = leftSoon(15*time.Second, func(ctx context.Context) (left []string, err error) {
		most := coordinators
		for i, s := range d.servers {
			ids, failed := d.clients(ctx, s)
			err = errors.Join(err, failed)
			if len(ids) > most {
				left = append(left, fmt.Sprintf("%d sessions at server %d of %d", len(ids), i+1, len(d.servers)))
			}
			most = d.atReplica
		}
		return left, err
	})
}

// heldFault returns a fault with a connection of the administrator to one server, which stays open until the end. The
// last action may be nil.
func heldFault[S sqlServer](
	kind string, which choice[S],
	begin func(context.Context, *adminConn, Fault) error, end func(context.Context, *adminConn) error,
) StoreFault {
	var c *adminConn
	return affect(kind, which, func(ctx context.Context, s S, f Fault) (err error) {
		if c, err = connect(ctx, s); err != nil {
			return err
		}
		return begin(ctx, c, f)
	}, func(ctx context.Context, _ S, _ Fault) (err error) {
		if c == nil {
			return nil // the server was not reached
		}
		if end != nil {
			err = end(ctx, c)
		}
		return errors.Join(err, c.close())
	})
}

// initialise prepares a store for its clients: with Init, or else with a first request.
func initialise(ctx context.Context, address string) error {
	s, err := opener(address, "")(ctx)
	if err != nil {
		return err
	}
	defer s.Close(context.WithoutCancel(ctx))
	if i, ok := s.(interface{ Init(context.Context) error }); ok {
		return i.Init(ctx)
	}
	_, err = s.Guarantees(ctx)
	return err
}

// adminConn is a connection of the administrator that bypasses the proxies.
type adminConn struct {
	*sql.Conn
	db *sql.DB
}

func connect(ctx context.Context, s sqlServer) (*adminConn, error) {
	db, err := sql.Open(s.Admin())
	if err != nil {
		return nil, err
	}
	c, err := db.Conn(ctx)
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return &adminConn{c, db}, nil
}

// close ends the connection, and the locks that it has at the server.
func (c *adminConn) close() error { return errors.Join(c.Close(), c.db.Close()) }

func (c *adminConn) exec(ctx context.Context, statements ...string) error {
	for _, statement := range statements {
		if _, err := c.ExecContext(ctx, statement); err != nil {
			return fmt.Errorf("check: %s: %w", statement, err)
		}
	}
	return nil
}

// execSQL runs statements on one connection of the administrator.
func execSQL(ctx context.Context, s sqlServer, statements ...string) error {
	c, err := connect(ctx, s)
	if err != nil {
		return err
	}
	defer c.close()
	return c.exec(ctx, statements...)
}

// awaitSQL waits, for at most d, until a query returns true.
func awaitSQL(ctx context.Context, d time.Duration, s sqlServer, query string) error {
	return servers.Within(ctx, d, func() error {
		holds := false
		err := querySQL(ctx, s, query, &holds)
		if err == nil && !holds {
			err = fmt.Errorf("check: false: %s", query)
		}
		return err
	})
}

// querySQL reads one value as the administrator.
func querySQL(ctx context.Context, s sqlServer, query string, to any) error {
	c, err := connect(ctx, s)
	if err != nil {
		return err
	}
	defer c.close()
	return c.QueryRowContext(ctx, query).Scan(to)
}
