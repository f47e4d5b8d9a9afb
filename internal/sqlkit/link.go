package sqlkit

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Row is one row as text. A column that is not Valid is NULL.
type Row []sql.NullString

// Int returns column i as a number, 0 if it is NULL or missing.
func (r Row) Int(i int) int64 {
	n, _ := strconv.ParseInt(r.Text(i), 10, 64)
	return n
}

// Text returns column i, empty if it is NULL or missing.
func (r Row) Text(i int) string {
	if i >= len(r) {
		return ""
	}
	return r[i].String
}

// Null reports whether column i is NULL or missing.
func (r Row) Null(i int) bool { return i >= len(r) || !r[i].Valid }

// True reports whether column i is true, in any database's spelling.
func (r Row) True(i int) bool {
	switch r.Text(i) {
	case "1", "t", "true":
		return true
	}
	return false
}

// Rows are the rows of one statement.
type Rows []Row

// Answers has the rows of each statement of a script that returns rows, in the order of the
// statements.
type Answers []Rows

// Last returns the first row of the last answer, nil if there is none.
func (a Answers) Last() Row { return a.First(len(a) - 1) }

// First returns the first row of answer i, nil if there is none.
func (a Answers) First(i int) Row {
	if i < 0 || i >= len(a) {
		return nil
	}
	return a[i].First()
}

// First returns the first row, nil if there is none.
func (r Rows) First() Row {
	if len(r) == 0 {
		return nil
	}
	return r[0]
}

// Link is one connection to a database. One goroutine at a time uses it, except for Close
// and Gone.
type Link interface {
	// Run sends statements, in one round trip if the connection supports that, and returns
	// their rows. It stops at the first error. If ctx ends first, the link can no longer be
	// used.
	Run(ctx context.Context, statements ...string) (Answers, error)
	// Gone returns a channel that is closed when the connection has ended without Close.
	// The link notices that while a statement runs, and after Watch. The channel is nil if
	// only a statement can notice the end.
	Gone() <-chan struct{}
	// Watch makes the link notice its end while no statement runs, until the next Run.
	Watch()
	// Close ends the connection. It may be called at any time and more than once.
	Close()
}

// MapLink returns a link that replaces each statement by change(statement).
func MapLink(l Link, change func(statement string) string) Link { return &mappedLink{l, change} }

type mappedLink struct {
	Link
	change func(string) string
}

func (l *mappedLink) Run(ctx context.Context, statements ...string) (Answers, error) {
	changed := make([]string, len(statements))
	for i, s := range statements {
		changed[i] = l.change(s)
	}
	return l.Link.Run(ctx, changed...)
}

func (l *mappedLink) giveBack() { giveBack(l.Link) }

// Connection is a driver's connection, which is closed once, and not while a statement uses it. A [Link] embeds it.
type Connection struct {
	below *Conn  // the network connection; nil for one that the driver ends with the context of a statement
	end   func() // closes the driver's connection
	ender *ender // nil without below

	mu           sync.Mutex
	busy, closed bool
}

// NewConnection returns a connection that end closes. below is the network connection below it, or nil for one of a
// user's pool.
func NewConnection(below *Conn, end func()) *Connection {
	c := &Connection{below: below, end: end}
	if below != nil {
		c.ender = &ender{end: func() { _ = below.Close() }}
	}
	return c
}

// Gone implements [Link].
func (c *Connection) Gone() <-chan struct{} {
	if c.below == nil {
		return nil
	}
	return c.below.Gone()
}

// Watch implements [Link].
func (c *Connection) Watch() {
	if c.below != nil {
		c.below.Watch()
	}
}

// Close closes the driver's connection, which sends its termination message. If a statement runs, Close closes the
// connection below the driver, and Finish closes the driver's.
func (c *Connection) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.closed:
	case !c.busy:
		c.end()
	case c.below != nil:
		_ = c.below.Close()
	}
	c.closed = true
}

// Begin reserves the connection for a statement, and returns the context for the driver. At the end of ctx the ender
// ends the connection. A driver would do the same at a higher cost.
func (c *Connection) Begin(ctx context.Context) (context.Context, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, ErrUnsent
	}
	c.busy = true
	if c.ender == nil {
		return ctx, nil
	}
	c.ender.begin(ctx)
	return context.Background(), nil
}

// Finish ends the use by the statement whose context is ctx. It sets its error if the connection has ended although the
// answer came.
func (c *Connection) Finish(ctx context.Context, err *error) {
	if c.ender != nil {
		if late := c.ender.stop(); *err == nil {
			*err = late
		}
		if *err != nil && ctx.Err() != nil {
			*err = fmt.Errorf("%w: %w", ctx.Err(), *err)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.busy = false; c.closed {
		c.end()
	}
}

// SQLLink makes a link of a connection of a database/sql driver and the network connection
// below it. With multi the driver accepts several statements at once.
func SQLLink(c driver.Conn, multi bool, below *Conn) Link {
	return &sqlLink{NewConnection(below, func() { _ = c.Close() }), c, multi}
}

type sqlLink struct {
	*Connection
	conn  driver.Conn
	multi bool
}

func (l *sqlLink) Run(ctx context.Context, statements ...string) (_ Answers, err error) {
	unwatched, err := l.Begin(ctx)
	if err != nil {
		return nil, err
	}
	defer l.Finish(ctx, &err)
	return runAll(unwatched, l.conn, l.multi, statements)
}

// runAll executes statements, as one script if multi.
func runAll(ctx context.Context, c driver.Conn, multi bool, statements []string) (all Answers, err error) {
	if multi {
		return run(ctx, c, nil, strings.Join(statements, ";"))
	}
	for i, s := range statements {
		if all, err = run(ctx, c, all, s); err != nil {
			if i > 0 {
				err = &partlyError{err}
			}
			return all, err
		}
	}
	return all, nil
}

// partlyError is the error of a script that the server has executed in part. The inner
// error is about the rest.
type partlyError struct{ error }

func (e *partlyError) Unwrap() error { return e.error }

// partly reports whether the server has executed a part of a script.
func partly(err error) bool {
	_, ok := errors.AsType[*partlyError](err)
	return ok
}

// run executes a script and appends its answers to all.
func run(ctx context.Context, c driver.Conn, all Answers, script string) (_ Answers, err error) {
	q, ok := c.(driver.QueryerContext)
	if !ok {
		return nil, fmt.Errorf("the database/sql driver's %T cannot query without preparing", c)
	}
	rows, err := q.QueryContext(ctx, script, nil)
	if err != nil {
		return all, err
	}
	defer func() {
		if cerr := rows.Close(); err == nil && cerr != nil {
			err = cerr
		}
		if err != nil {
			err = &partlyError{err} // the first statement was executed
		}
	}()
	for {
		if columns := len(rows.Columns()); columns > 0 {
			set, err := readSet(rows, columns)
			if err != nil {
				return all, err
			}
			all = append(all, set)
		}
		more, ok := rows.(driver.RowsNextResultSet)
		if !ok || !more.HasNextResultSet() {
			return all, nil
		}
		if err := more.NextResultSet(); errors.Is(err, io.EOF) {
			return all, nil
		} else if err != nil {
			return all, err
		}
	}
}

// readSet reads the rows of one statement.
func readSet(rows driver.Rows, columns int) (set Rows, err error) {
	for {
		values := make([]driver.Value, columns)
		if err := rows.Next(values); err == io.EOF {
			return set, nil
		} else if err != nil {
			return nil, err
		}
		row := make(Row, columns)
		for i, v := range values {
			row[i] = text(v)
		}
		set = append(set, row)
	}
}

// text returns a value of a driver as text.
func text(v driver.Value) sql.NullString {
	switch v := v.(type) {
	case nil:
		return sql.NullString{}
	case []byte:
		return sql.NullString{String: string(v), Valid: true}
	case string:
		return sql.NullString{String: v, Valid: true}
	case int64:
		return sql.NullString{String: strconv.FormatInt(v, 10), Valid: true}
	case bool:
		return sql.NullString{String: strconv.FormatBool(v), Valid: true}
	case time.Time:
		return sql.NullString{String: v.Format(time.RFC3339Nano), Valid: true}
	}
	return sql.NullString{String: fmt.Sprint(v), Valid: true}
}
