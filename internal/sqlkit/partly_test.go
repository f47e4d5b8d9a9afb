package sqlkit

import (
	"context"
	sqldriver "database/sql/driver"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// exhausted is a database that executes a write and then returns an error, because it has reached a
// quota.
type exhausted struct {
	sqldriver.Conn
	written bool
}

var errExhausted = errors.New("quota exceeded")

func (c *exhausted) QueryContext(_ context.Context, query string, _ []sqldriver.NamedValue) (sqldriver.Rows, error) {
	if c.written {
		return nil, errExhausted
	}
	r := &answer{}
	for i, s := range strings.Split(query, ";") {
		switch s {
		case "write":
			c.written = true
			r.sets = append(r.sets, nil)
		case "read":
			if c.written && i > 0 {
				r.fails = true
				return r, nil
			}
			r.sets = append(r.sets, []sqldriver.Value{int64(1), int64(0), nil, nil, nil})
		}
	}
	return r, nil
}

func (*exhausted) Close() error { return nil }

// answer has one result set, of one row, for each statement with a result.
type answer struct {
	sets  [][]sqldriver.Value
	read  bool
	fails bool // the answer ends with an error after the rows
}

func (r *answer) Columns() []string { return make([]string, len(r.sets[0])) }
func (r *answer) Close() error      { return nil }

func (r *answer) Next(to []sqldriver.Value) error {
	if r.read {
		return io.EOF
	}
	r.read = true
	copy(to, r.sets[0])
	return nil
}

func (r *answer) HasNextResultSet() bool { return len(r.sets) > 1 || r.fails }

func (r *answer) NextResultSet() error {
	if len(r.sets) == 1 {
		return errExhausted
	}
	r.sets, r.read = r.sets[1:], false
	return nil
}

type plain struct{ Table }

func (plain) Read([]byte, int) string          { return "read" }
func (plain) Insert([]byte, int, Write) string { return "write" }
func (plain) Wake([]byte, string) string       { return "" }

// certain is a Faults that reports for each error that the statement had no effect.
type certain struct{}

func (certain) Sort(err error) (error, bool) {
	if errors.Is(err, errExhausted) {
		return &driver.Error{Code: driver.CodeUnavailable, Err: err}, false
	}
	return err, false
}

// TestErrorAfterWriteIsUnknown: the statement that reads a write back returns an error. The write may
// have succeeded, so the outcome is unknown.
func TestErrorAfterWriteIsUnknown(t *testing.T) {
	for name, multi := range map[string]bool{"one by one": false, "at once": true} {
		t.Run(name, func(t *testing.T) {
			below, other := pipe(t)
			defer other.Close()
			defer below.Close()
			dial := func(context.Context) (Link, error) { return SQLLink(&exhausted{}, multi, below), nil }
			o := NewOptimistic(NewPool(Idle{Min: 1, Max: 1}, dial), plain{}, certain{}, nil, nil, "")
			defer o.Close(t.Context())
			_, err := o.Acquire(t.Context(), driver.Request{ID: "1", Name: "n", Limit: driver.Exclusive, TTL: time.Minute, From: noRequester{}})
			if code := driver.CodeOf(err); err == nil || code != driver.CodeUnknown || !errors.Is(err, errExhausted) {
				t.Errorf("%v (%v), want an unknown outcome: the grant stands", err, code)
			}
		})
	}
}

// delayed is a database whose answer arrives when the link has ended the connection.
type delayed struct {
	exhausted
	below *Conn
}

func (c *delayed) QueryContext(ctx context.Context, query string, args []sqldriver.NamedValue) (sqldriver.Rows, error) {
	_, _ = c.below.Read(make([]byte, 1)) // until the end of the connection
	return c.exhausted.QueryContext(ctx, query, args)
}

// TestAnswerAtTheDeadlineIsNoGrant: the answer to a statement comes when the deadline of the request has ended its
// connection, and with it a lock of the session.
func TestAnswerAtTheDeadlineIsNoGrant(t *testing.T) {
	below, other := pipe(t)
	defer other.Close()
	l := SQLLink(&delayed{below: below}, false, below)
	defer l.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if a, err := l.Run(ctx, "read"); !partly(err) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v, %v, want an error of a statement that the server may have executed", a, err)
	}
}

// demoted is a server that becomes read-only after a number of scripts.
type demoted struct{ scripts int }

func (d *demoted) Run(_ context.Context, statements ...string) (Answers, error) {
	row := Row{{String: "1", Valid: true}, {String: "0", Valid: true}, {}, {}, {}, {String: "0", Valid: true}}
	if d.scripts--; d.scripts < 0 {
		row[5].String = "1"
	}
	answers := make(Answers, len(statements))
	for i := range answers {
		answers[i] = Rows{row}
	}
	return answers, nil
}

func (*demoted) Gone() <-chan struct{} { return nil }
func (*demoted) Watch()                {}
func (*demoted) Close()                {}

// TestWriteBeforeADemotionIsUnknown: the server becomes read-only between a write and the statement
// that reads it back. The grant may stand, also at the new primary, so the outcome is unknown. If the
// server becomes read-only before the write, the request is refused.
func TestWriteBeforeADemotionIsUnknown(t *testing.T) {
	for scripts, want := range map[int]driver.Code{0: driver.CodeRefused, 1: driver.CodeUnknown} {
		d := &demoted{scripts}
		o := NewOptimistic(NewPool(Idle{Min: 1, Max: 1}, func(context.Context) (Link, error) { return d, nil }), plain{}, certain{}, nil, nil, "")
		_, err := o.Acquire(t.Context(), driver.Request{ID: "1", Name: "n", Limit: driver.Exclusive, TTL: time.Minute, From: noRequester{}})
		if code := driver.CodeOf(err); code != want || !errors.Is(err, ErrReadOnly) {
			t.Errorf("read-only after %d scripts: %v (%v), want %v", scripts, err, code, want)
		}
		_ = o.Close(t.Context())
	}
}
