package sqlkit

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// meeting is a server whose answers wait until several scripts are on their way. It refuses the script
// with the name bad.
type meeting struct {
	mu     sync.Mutex
	coming int
	all    chan struct{} // closed when meetingSize scripts have come
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
	answers := make(Answers, len(statements))
	for i := range answers {
		answers[i] = Rows{make(Row, 6)} // a name without a row
	}
	return answers, nil
}

func (*meeting) Gone() <-chan struct{} { return nil }
func (*meeting) Watch()                {}
func (*meeting) Close()                {}

type named struct{ Table }

func (named) Read(name []byte, _ int) string { return "read " + string(name) }

// TestManyGrantsAreRenewedTogether: the scripts of a renewal of many grants are on their way at the same
// time. One that fails leaves the others alone.
func TestManyGrantsAreRenewedTogether(t *testing.T) {
	m := &meeting{all: make(chan struct{})}
	dial := func(context.Context) (Link, error) { return m, nil }
	o := NewOptimistic(NewPool(Idle{Least: 1, Most: 8}, dial), named{}, certain{}, nil, "")
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
	o := NewOptimistic(NewPool(Idle{Least: accepts, Most: accepts}, dial), named{}, certain{}, nil, "")
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

// crowd answers when the server has refused a connection.
type crowd struct {
	*meeting
	full chan struct{}
}

func (c *crowd) Run(ctx context.Context, statements ...string) (Answers, error) {
	<-c.full
	return c.meeting.Run(ctx, statements...)
}
