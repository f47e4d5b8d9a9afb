package pgstore

import (
	"context"
	"database/sql"
	"fmt"
	"net"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/holdfast-go/holdfast/internal/sqlkit"
)

// pgLink is a link over pgx's lowest layer, in the simple protocol: a script is one round
// trip, and nothing is prepared.
type pgLink struct {
	conn *pgconn.PgConn
	gone <-chan struct{}
	cut  func()

	watch func()
	ender *sqlkit.Ender     // nil for a connection of database/sql
	names map[string]string // of prepared statements; used by the goroutine that runs one

	mu           sync.Mutex
	busy, closed bool
}

func (l *pgLink) Gone() <-chan struct{} { return l.gone }

func (l *pgLink) Watch() {
	if l.watch != nil {
		l.watch()
	}
}

func (l *pgLink) Run(ctx context.Context, statements ...string) (sqlkit.Answers, error) {
	ctx, err := l.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer l.finish()
	return runPg(ctx, l.conn, statements)
}

// begin begins a statement, and returns the context for pgx. The end of ctx ends the
// connection; pgx would do the same with more effort.
func (l *pgLink) begin(ctx context.Context) (context.Context, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || l.conn.IsClosed() {
		return nil, sqlkit.ErrUnsent
	}
	l.busy = true
	if l.ender == nil {
		return ctx, nil
	}
	l.ender.Begin(ctx)
	return context.Background(), nil
}

func (l *pgLink) finish() {
	if l.ender != nil {
		l.ender.Stop()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.busy = false; l.closed {
		l.end()
	}
}

// preparer is a link that can keep statements prepared. Only a lasting link should.
type preparer interface {
	// prepared runs a statement, which is prepared the first time, and returns its first
	// row.
	prepared(ctx context.Context, statement string, args ...string) (sqlkit.Row, error)
}

func (l *pgLink) prepared(ctx context.Context, statement string, args ...string) (sqlkit.Row, error) {
	ctx, err := l.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer l.finish()
	name, ok := l.names[statement]
	if !ok {
		name = fmt.Sprintf("holdfast_%d", len(l.names)+1)
		if _, err := l.conn.Prepare(ctx, name, statement, nil); err != nil {
			return nil, err
		}
		if l.names == nil {
			l.names = map[string]string{}
		}
		l.names[statement] = name
	}
	values := make([][]byte, len(args))
	for i, a := range args {
		values[i] = []byte(a)
	}
	r := l.conn.ExecPrepared(ctx, name, values, nil, nil).Read()
	if r.Err != nil || len(r.Rows) == 0 {
		return nil, r.Err
	}
	row := make(sqlkit.Row, len(r.Rows[0]))
	for i, v := range r.Rows[0] {
		row[i] = sql.NullString{String: string(v), Valid: v != nil}
	}
	return row, nil
}

func runPg(ctx context.Context, c *pgconn.PgConn, statements []string) (sqlkit.Answers, error) {
	var all sqlkit.Answers
	m := c.Exec(ctx, strings.Join(statements, ";"))
	for m.NextResult() {
		rr := m.ResultReader()
		set := sqlkit.Rows{}
		columns := len(rr.FieldDescriptions())
		for rr.NextRow() {
			row := make(sqlkit.Row, columns)
			for i, v := range rr.Values() {
				row[i] = sql.NullString{String: string(v), Valid: v != nil}
			}
			set = append(set, row)
		}
		if _, err := rr.Close(); err != nil {
			_ = m.Close()
			return all, err
		}
		if columns > 0 {
			all = append(all, set)
		}
	}
	return all, m.Close()
}

// Close leaves the rest to the statement that runs, if there is one.
func (l *pgLink) Close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	l.closed = true
	if l.busy {
		l.cut()
	} else {
		l.end()
	}
}

// end closes the connection. It sends the termination message without waiting.
func (l *pgLink) end() {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_ = l.conn.Close(ctx)
	l.cut()
}

// dialLink opens a connection that reports its end at once.
func dialLink(ctx context.Context, cfg *pgconn.Config) (*pgLink, error) {
	cfg = cfg.Copy()
	var mu sync.Mutex
	var dialled []*sqlkit.Conn
	dial := cfg.DialFunc
	cfg.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		if tcp, ok := c.(*net.TCPConn); ok {
			_ = tcp.SetKeepAliveConfig(sqlkit.KeepAlive) // pgx's own are minutes apart
		}
		w := sqlkit.NewConn(c)
		mu.Lock()
		defer mu.Unlock()
		dialled = append(dialled, w)
		return w, nil
	}
	c, err := pgconn.ConnectConfig(ctx, cfg)
	mu.Lock()
	defer mu.Unlock()
	if err != nil {
		for _, w := range dialled {
			w.Close()
		}
		return nil, unreached(err)
	}
	// pgx tries several hosts, and uses the last connection.
	last := dialled[len(dialled)-1]
	for _, w := range dialled[:len(dialled)-1] {
		w.Close()
	}
	cut := func() { last.Close() }
	return &pgLink{conn: c, gone: last.Gone(), watch: last.Watch, cut: cut, ender: sqlkit.NewEnder(cut)}, nil
}

// wrap makes a link of a connection of database/sql's pgx driver. It returns nil for
// another driver.
func wrap(dc any) sqlkit.Link {
	c, ok := dc.(*stdlib.Conn)
	if !ok {
		return nil
	}
	return &pgLink{conn: c.Conn().PgConn(), cut: func() {}}
}
