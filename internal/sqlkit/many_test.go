package sqlkit

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// meeting is a server that answers no script before it has received several. It refuses the script
// with the name bad.
type meeting struct {
	mu     sync.Mutex
	coming int
	all    chan struct{} // closed when the server has received meetingSize scripts
}

const meetingSize = 4

var errBad = errors.New("refused")

func (m *meeting) Run(ctx context.Context, statements ...string) (Answers, error) {
	m.mu.Lock()
	if m.coming++; m.coming == meetingSize {
		close(m.all)
	}
	m.mu.Unlock()
	select {
	case <-m.all:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if strings.Contains(strings.Join(statements, " "), "bad") {
		return nil, errBad
	}
	answers := make(Answers, len(statements)) // no name has a row
	for i, s := range statements {
		if strings.HasPrefix(s, "read ") {
			answers[i] = Rows{make(Row, 6)}
		}
	}
	return answers, nil
}

func (*meeting) Gone() <-chan struct{} { return nil }
func (*meeting) Watch()                {}
func (*meeting) Close()                {}

type named struct{ Table }

func (named) Read(name []byte, _ int) string { return "read " + string(name) }
func (named) Find(names [][]byte) string     { return "find " + string(bytes.Join(names, []byte(" "))) }

// TestManyGrantsAreRenewedTogether: a client renews many grants by several scripts at the same time. If
// one script fails, the others succeed.
func TestManyGrantsAreRenewedTogether(t *testing.T) {
	m := &meeting{all: make(chan struct{})}
	dial := func(context.Context) (Link, error) { return m, nil }
	o := NewOptimistic(NewPool(Idle{Min: 1, Max: 8}, dial), named{}, certain{}, nil, "")
	defer o.Close(t.Context())
	grants := make([]driver.Grant, meetingSize*batch)
	for i := range grants {
		grants[i] = driver.Grant{ID: fmt.Sprint(i), Name: fmt.Sprint("n", i), TTL: time.Minute}
	}
	grants[0].Name = "bad"
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	failed := 0
	for _, a := range o.Renew(ctx, grants) {
		switch {
		case errors.Is(a.Err, errBad):
			failed++
		case driver.CodeOf(a.Err) != driver.CodeNotHeld: // the row has no grant
			t.Fatalf("%v: scripts wait for one another", a.Err)
		}
	}
	if failed != batch {
		t.Errorf("%d grants have the error of one script, want %d", failed, batch)
	}
}

// TestConnectionsRunOut: a server that accepts fewer connections than there are scripts renews all grants.
func TestConnectionsRunOut(t *testing.T) {
	const accepts = 3
	m := &meeting{all: make(chan struct{})}
	full := make(chan struct{}) // closed when a connection was refused
	var dialled atomic.Int32
	dial := func(context.Context) (Link, error) {
		switch n := dialled.Add(1); {
		case n <= accepts:
			return &crowd{m, full}, nil
		case n == accepts+1:
			close(full)
		}
		return nil, driver.Errorf(driver.CodeUnavailable, "%w", ErrTooMany)
	}
	close(m.all)
	m.coming = meetingSize
	o := NewOptimistic(NewPool(Idle{Min: accepts, Max: accepts}, dial), named{}, certain{}, nil, "")
	defer o.Close(t.Context())
	grants := make([]driver.Grant, 100*batch)
	for i := range grants {
		grants[i] = driver.Grant{ID: fmt.Sprint(i), Name: fmt.Sprint("n", i), TTL: time.Minute}
	}
	for _, a := range o.Renew(t.Context(), grants) {
		if driver.CodeOf(a.Err) != driver.CodeNotHeld { // the row has no grant
			t.Fatal(a.Err)
		}
	}
}

// crowd is a link that answers only after the server has refused a connection.
type crowd struct {
	*meeting
	full chan struct{}
}

func (c *crowd) Run(ctx context.Context, statements ...string) (Answers, error) {
	<-c.full
	return c.meeting.Run(ctx, statements...)
}

// tabled is a server with a row for each name. It counts the statements of each kind.
type tabled struct {
	meeting
	state    map[string]string // by name
	readOnly bool              // what Find answers
	find     int
	read     []string
}

func (l *tabled) Run(_ context.Context, statements ...string) (Answers, error) {
	text := func(s string) sql.NullString { return sql.NullString{String: s, Valid: true} }
	answers := make(Answers, len(statements))
	for i, s := range statements {
		kind, names, _ := strings.Cut(s, " ")
		for name := range strings.FieldsSeq(strings.ReplaceAll(names, "\x00", "")) {
			state, is := l.state[name]
			switch {
			case kind == "read":
				l.read = append(l.read, name)
				answers[i] = Rows{{text("1"), text("1"), sql.NullString{String: "1", Valid: is}, text("1"), sql.NullString{String: state, Valid: is}, text("0")}}
			case is:
				answers[i] = append(answers[i], Row{text("1"), text(hex.EncodeToString([]byte("\x00" + name))), text("1"), text("1"), text(state), text(map[bool]string{true: "1", false: "0"}[l.readOnly])})
			}
		}
		if kind == "find" {
			l.find++
		}
	}
	return answers, nil
}

type tabledNames struct{ Table }

func (tabledNames) Read(name []byte, _ int) string { return "read " + string(name[1:]) }
func (tabledNames) Find(names [][]byte) string {
	return "find " + string(bytes.Join(names, []byte(" ")))
}

// TestHeldGrantsAreCheckedByOneStatement: one statement finds all grants that stand. The rows of the
// others are read, and their holders are notified. On a read-only server the row of every grant is read.
func TestHeldGrantsAreCheckedByOneStatement(t *testing.T) {
	l := &tabled{state: map[string]string{}}
	o := NewOptimistic(NewPool(Idle{Min: 1, Max: 1}, func(context.Context) (Link, error) { return l, nil }), tabledNames{}, certain{}, nil, "")
	defer o.Close(t.Context())
	var some []*kept
	lost := make(chan driver.Cause, 3)
	for i := range batch {
		g := driver.Grant{ID: fmt.Sprint("id-", i), Name: fmt.Sprint("n", i), Token: uint64(i + 1)}
		k := &kept{g: g, from: lostTo(lost)}
		some, o.held[g.ID] = append(some, k), k
		l.state[g.Name] = Encode(&content{Holders: []holder{{Owner: Owner{ID: g.ID}, Limit: 1, Token: g.Token, Expires: 1 << 50}}})
	}
	if !o.checkHeld(t.Context(), some) || l.find != 1 || len(l.read) != 0 || len(lost) != 0 {
		t.Errorf("%d statements to find and %d to read rows, %d holders notified; want 1, 0 and 0", l.find, len(l.read), len(lost))
	}
	delete(l.state, "n1")              // the row is gone
	l.state["n2"] = Encode(&content{}) // the grant is gone
	l.state["n3"] = Encode(&content{Taken: []taken{{Token: 4, Until: 1 << 50}}})
	if !o.checkHeld(t.Context(), some) || l.find != 2 || !slices.Equal(l.read, []string{"n1", "n2", "n3"}) {
		t.Errorf("%d statements to find; rows read: %q, want those of n1, n2 and n3", l.find, l.read)
	}
	if len(lost) != 3 || <-lost != driver.CauseGone || <-lost != driver.CauseGone || <-lost != driver.CauseTaken {
		t.Errorf("%d holders were notified, want 3: gone, gone and taken", len(lost))
	}
	l.readOnly, l.read = true, nil
	if !o.checkHeld(t.Context(), some[4:]) || len(l.read) != batch-4 {
		t.Errorf("%d rows read on a server that is read-only, want %d", len(l.read), batch-4)
	}
}

// slow is a link that delays each statement.
type slow struct {
	Link
	each time.Duration
}

func (s slow) Run(ctx context.Context, statements ...string) (Answers, error) {
	select {
	case <-time.After(s.each):
		return s.Link.Run(ctx, statements...)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// TestBreakIsNoticedOnSlowServer: the client notices a broken grant although each statement
// takes most of the interval between two checks.
func TestBreakIsNoticedOnSlowServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := slow{&tabled{state: map[string]string{}}, checkInterval * 6 / 10}
		o := NewOptimistic(NewPool(Idle{Min: 1, Max: 1}, func(context.Context) (Link, error) { return l, nil }), tabledNames{}, certain{}, nil, "")
		lost := make(chan driver.Cause, 1)
		_, err := o.keep(driver.Request{From: lostTo(lost)}, driver.Grant{ID: "id", Name: "n", Token: 1}) // its row is gone
		if err != nil {
			t.Fatal(err)
		}
		select {
		case <-lost:
		case <-time.After(3 * checkInterval):
			t.Error("the holder is not notified")
		}
		if err := o.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

type lostTo chan driver.Cause

func (lostTo) Queued([]driver.Holder)             {}
func (lostTo) Owner() driver.Owner                { return driver.Owner{} }
func (c lostTo) Lost(cause driver.Cause, _ error) { c <- cause }
