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
	*sqlkit.Connection
	conn       *pgconn.PgConn
	statements map[string]*pgconn.StatementDescription // only the goroutine that runs a prepared statement uses it
}

// newLink makes a link of a connection and the network connection below it; nil for one of a user's pool.
func newLink(c *pgconn.PgConn, below *sqlkit.Conn) *pgLink {
	return &pgLink{conn: c, Connection: sqlkit.NewConnection(below, func() {
		ended, cancel := context.WithCancel(context.Background())
		cancel()
		_ = c.Close(ended) // sends the termination message without waiting
		if below != nil {
			_ = below.Close()
		}
	})}
}

func (l *pgLink) Run(ctx context.Context, statements ...string) (_ sqlkit.Answers, err error) {
	unwatched, err := l.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer l.Finish(ctx, &err)
	return runPg(unwatched, l.conn, statements)
}

// begin calls Begin. It returns an error if pgx has closed the connection, which nothing else uses from here on.
func (l *pgLink) begin(ctx context.Context) (context.Context, error) {
	unwatched, err := l.Begin(ctx)
	if err == nil && l.conn.IsClosed() {
		err = sqlkit.ErrUnsent
		l.Finish(ctx, &err)
	}
	return unwatched, err
}

// prepared runs a statement, which is prepared the first time, and returns its first row. Preparing pays only if the link
// lasts, so links of a user's pool have no such method.
func (l *pgLink) prepared(ctx context.Context, statement string, args ...string) (_ sqlkit.Row, err error) {
	unwatched, err := l.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer l.Finish(ctx, &err)
	described, ok := l.statements[statement]
	if !ok {
		if described, err = l.prepare(unwatched, statement); err != nil {
			return nil, err
		}
	}
	values := make([][]byte, len(args))
	for i, a := range args {
		values[i] = []byte(a)
	}
	// With the description that Prepare returned, the server need not send one with each
	// result.
	r := l.conn.ExecStatement(unwatched, described, values, nil, nil)
	var row sqlkit.Row
	if r.NextRow() {
		row = rowOf(r.Values())
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

// rowOf copies a row.
func rowOf(values [][]byte) sqlkit.Row {
	row := make(sqlkit.Row, len(values))
	for i, v := range values {
		row[i] = sql.NullString{String: string(v), Valid: v != nil}
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
			set = append(set, rowOf(rr.Values()))
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
	return newLink(c, last), nil
}

// wrap makes a link of a connection of database/sql's pgx driver. It returns nil for
// another driver.
func wrap(dc any) sqlkit.Link {
	c, ok := dc.(*stdlib.Conn)
	if !ok {
		return nil
	}
	return newLink(c.Conn().PgConn(), nil)
}
