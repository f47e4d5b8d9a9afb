package sqlkit

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
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

// batch is the number of names in one exchange of the engine.
const batch = 32

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
	o := NewOptimistic(NewPool(Idle{Min: 1, Max: 8}, dial), named{}, certain{}, nil, nil, "")
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
	o := NewOptimistic(NewPool(Idle{Min: accepts, Max: accepts}, dial), named{}, certain{}, nil, nil, "")
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

// tabled is a server with a row for each name. It counts the statements that find rows.
type tabled struct {
	meeting
	state    map[string]string // by name
	readOnly int               // this many answers show that the server is read-only
	find     int
}

func (l *tabled) Run(_ context.Context, statements ...string) (Answers, error) {
	var found Rows
	for name := range strings.FieldsSeq(strings.Join(statements, " ")) {
		if state, is := l.state[name]; is {
			key := hex.EncodeToString([]byte("\x00" + name))
			found = append(found, textRow("1", key, "1", "1", state, strconv.FormatBool(l.readOnly > 0)))
		}
	}
	l.find++
	l.readOnly--
	return Answers{found}, nil
}

type tabledNames struct{ Table }

func (tabledNames) Find(names [][]byte) string {
	return strings.ReplaceAll(string(bytes.Join(names, []byte(" "))), "\x00", "")
}

// TestRowsAreFoundByOneStatement: one statement reads all rows. If the server is read-only, the client reads
// them again on another connection.
func TestRowsAreFoundByOneStatement(t *testing.T) {
	l := &tabled{state: map[string]string{}}
	r := &rows{NewPool(Idle{Min: 1, Max: 1}, func(context.Context) (Link, error) { return l, nil }), tabledNames{}, certain{}}
	keys := make([]string, batch)
	for i := range keys {
		name := fmt.Sprint("n", i)
		keys[i], l.state[name] = "\x00"+name, name
	}
	delete(l.state, "n1")
	for demoted, statements := range map[int]int{0: 1, 1: 2} {
		l.readOnly, l.find = demoted, 0
		for i, o := range r.Exchange(t.Context(), nil, keys) {
			if want := l.state[keys[i][1:]]; string(o.Data) != want || (o.Version == "") != (want == "") || o.Err != nil {
				t.Errorf("%q: %+v", keys[i], o)
			}
		}
		if l.find != statements {
			t.Errorf("%d statements find rows, want %d", l.find, statements)
		}
	}
	l.readOnly = 100
	if o := r.Exchange(t.Context(), nil, keys)[0]; !errors.Is(o.Err, ErrReadOnly) {
		t.Errorf("a server that stays read-only: %+v", o)
	}
}
