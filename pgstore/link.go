package pgstore

import (
	"context"
	"database/sql"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/internal/sqlkit"
)

// pgLink is a link over pgx's lowest layer. Run uses the simple protocol: a script is one
// round trip, and the server prepares nothing.
type pgLink struct {
	conn  *pgconn.PgConn
	gone  <-chan struct{}
	watch func()
	cut   func()        // closes the connection below pgx
	ender *sqlkit.Ender // nil for a connection of database/sql

	// Only the goroutine that runs a prepared statement uses these fields.
	statements map[string]*pgconn.StatementDescription
	text       []byte   // the arguments of a statement, and then its row
	values     [][]byte // the arguments: parts of text

	mu           sync.Mutex
	busy, closed bool
}

func (l *pgLink) Gone() <-chan struct{} { return l.gone }

func (l *pgLink) Watch() {
	if l.watch != nil {
		l.watch()
	}
}

func (l *pgLink) Run(ctx context.Context, statements ...string) (_ sqlkit.Answers, err error) {
	ctx, err = l.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer l.finish(&err)
	return runPg(ctx, l.conn, statements)
}

// begin marks the link busy for a statement, and returns the context for pgx. The ender
// closes the connection when ctx ends. pgx would do the same at a higher cost.
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

// finish ends the use of the link. If Close was called meanwhile, finish ends the connection. It sets err if
// the connection has ended although the answer came.
func (l *pgLink) finish(err *error) {
	if l.ender != nil {
		if late := l.ender.Stop(); *err == nil {
			*err = late
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.busy = false; l.closed {
		l.end()
	}
}

// preparer is a link that can keep statements prepared. Preparing pays only if the link
// lasts.
type preparer interface {
	// prepared runs a statement, which is prepared the first time, and returns its first
	// row.
	prepared(ctx context.Context, statement string, args ...string) (sqlkit.Row, error)
}

func (l *pgLink) prepared(ctx context.Context, statement string, args ...string) (_ sqlkit.Row, err error) {
	ctx, err = l.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer l.finish(&err)
	described, ok := l.statements[statement]
	if !ok {
		if described, err = l.prepare(ctx, statement); err != nil {
			return nil, err
		}
	}
	// With the description that Prepare returned, the server need not send one with each
	// result.
	r := l.conn.ExecStatement(ctx, described, l.arguments(args), nil, nil)
	var row sqlkit.Row
	if r.NextRow() {
		row = l.row(r.Values())
	}
	if _, err := r.Close(); err != nil {
		return nil, err
	}
	return row, nil
}

func (l *pgLink) prepare(ctx context.Context, statement string) (*pgconn.StatementDescription, error) {
	described, err := l.conn.Prepare(ctx, fmt.Sprintf("holdfast_%d", len(l.statements)+1), statement, nil)
	if err != nil {
		return nil, err
	}
	if l.statements == nil {
		l.statements = map[string]*pgconn.StatementDescription{}
	}
	l.statements[statement] = described
	return described, nil
}

// arguments copies the arguments of a statement. They are valid until the next call of arguments or row.
func (l *pgLink) arguments(args []string) [][]byte {
	l.text, l.values = l.text[:0], l.values[:0]
	for _, a := range args {
		l.text = append(l.text, a...)
	}
	rest := l.text
	for _, a := range args {
		l.values, rest = append(l.values, rest[:len(a)]), rest[len(a):]
	}
	return l.values
}

// row copies a row. Its columns share one string.
func (l *pgLink) row(values [][]byte) sqlkit.Row {
	l.text = l.text[:0]
	for _, v := range values {
		l.text = append(l.text, v...)
	}
	rest, row := string(l.text), make(sqlkit.Row, len(values))
	for i, v := range values {
		row[i] = sql.NullString{String: rest[:len(v)], Valid: v != nil}
		rest = rest[len(v):]
	}
	return row
}

// runPg executes statements as one script.
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

// Close closes the connection. If a statement runs, Close cuts the connection, and finish
// does the rest.
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

// lastHost is the host to which a store has connected last, HOST:PORT.
type lastHost struct {
	renew   func() (*pgconn.Config, error) // see config
	refused backoff.Refused
	mu      sync.Mutex
	last    string
}

// prefer makes the host of the last connection the first one of the configuration. Otherwise a host that does not
// answer would take its time of each connection. hostOf returns the host of an address, once pgx has resolved it.
func (h *lastHost) prefer(cfg *pgconn.Config) (hostOf func(address string) string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	all := append([]*pgconn.FallbackConfig{{Host: cfg.Host, Port: cfg.Port, TLSConfig: cfg.TLSConfig}}, cfg.Fallbacks...)
	rank := func(f *pgconn.FallbackConfig) int {
		if net.JoinHostPort(f.Host, strconv.Itoa(int(f.Port))) == h.last {
			return 0
		}
		return 1
	}
	slices.SortStableFunc(all, func(a, b *pgconn.FallbackConfig) int { return rank(a) - rank(b) })
	cfg.Host, cfg.Port, cfg.TLSConfig, cfg.Fallbacks = all[0].Host, all[0].Port, all[0].TLSConfig, all[1:]
	names := map[string]string{} // of the addresses
	lookup := cfg.LookupFunc
	cfg.LookupFunc = func(ctx context.Context, host string) ([]string, error) {
		found, err := lookup(ctx, host)
		for _, a := range found {
			names[a] = host
		}
		return found, err
	}
	return func(address string) string {
		ip, port, _ := net.SplitHostPort(address)
		return net.JoinHostPort(names[ip], port)
	}
}

func (h *lastHost) connected(host string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.last = host
}

// readFiles reads again what the parameters of the URL name on the disk: certificates, keys, and a file of passwords. They
// are renewed while locks are held. While they cannot be read, the former ones are used.
func (h *lastHost) readFiles(cfg *pgconn.Config) {
	if h.renew == nil {
		return
	}
	now, err := h.renew()
	if err != nil || len(now.Fallbacks) != len(cfg.Fallbacks) {
		return
	}
	cfg.Password, cfg.TLSConfig = now.Password, now.TLSConfig
	for i, f := range now.Fallbacks {
		cfg.Fallbacks[i].TLSConfig = f.TLSConfig
	}
}

// dialLink opens a connection that reports its end at once.
func dialLink(ctx context.Context, cfg *pgconn.Config, h *lastHost) (*pgLink, error) {
	return sqlkit.Login(&h.refused, func() (*pgLink, error) { return dialNow(ctx, cfg, h) })
}

func dialNow(ctx context.Context, cfg *pgconn.Config, h *lastHost) (*pgLink, error) {
	cfg = cfg.Copy()
	h.readFiles(cfg)
	hostOf := h.prefer(cfg)
	var mu sync.Mutex
	var dialled []*sqlkit.Conn
	dial := cfg.DialFunc
	cfg.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		if tcp, ok := c.(*net.TCPConn); ok {
			_ = tcp.SetKeepAliveConfig(sqlkit.KeepAlive) // pgx's own probes are minutes apart
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
	h.connected(hostOf(last.RemoteAddr().String()))
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
