package sqlkit

import (
	"context"
	"errors"
	"testing"
	"time"
)

// dated is the context of a request, as the core makes it.
type dated struct {
	context.Context // the caller's
	at              time.Time
}

func (d dated) Caller() context.Context     { return d.Context }
func (d dated) Deadline() (time.Time, bool) { return d.at, true }

// TestEnderEndsWithContext: the deadline of a statement ends its connection, and so does the
// end of the caller's context.
func TestEnderEndsWithContext(t *testing.T) {
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	later := time.Now().Add(time.Hour)
	expired, stop := context.WithDeadline(t.Context(), time.Now())
	defer stop()
	for name, ctx := range map[string]context.Context{
		"deadline":                 dated{context.Background(), time.Now()},
		"caller of a request":      dated{cancelled, later},
		"deadline of the caller":   dated{expired, time.Now()},
		"context without deadline": cancelled,
	} {
		ended := make(chan struct{})
		e := &ender{end: func() { close(ended) }}
		e.begin(ctx)
		select {
		case <-ended:
		case <-time.After(time.Minute):
			t.Errorf("%s: not ended", name)
		}
		requireEnded(t, e, name)
	}
}

// requireEnded requires that the present statement was ended, and the next one is not.
func requireEnded(t *testing.T, e *ender, name string) {
	t.Helper()
	if err := e.stop(); !partly(err) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%s: %v, want an error of a statement that the server may have executed", name, err)
	}
	e.begin(context.Background())
	if err := e.stop(); err != nil {
		t.Errorf("%s: %v after the next statement", name, err)
	}
}

// TestEnderIgnoresLateTimer: a timer that fires late, after the statement of its deadline has
// ended, does not end the connection of the next one.
func TestEnderIgnoresLateTimer(t *testing.T) {
	ends := 0
	e := &ender{end: func() { ends++ }}
	caller, cancel := context.WithCancel(t.Context())
	for range 2 {
		e.begin(dated{caller, time.Now().Add(time.Hour)})
		e.expired()
		e.stop()
		e.expired()
	}
	cancel()
	e.begin(dated{context.Background(), time.Now().Add(time.Hour)})
	e.stop()
	if ends != 0 {
		t.Errorf("ended %d times", ends)
	}
}

// TestEnderTimerServesManyStatements: the timer that a statement has left behind does not make the
// end of the next statement too early or too late.
func TestEnderTimerServesManyStatements(t *testing.T) {
	for name, first := range map[string]time.Duration{"earlier": time.Millisecond, "later": time.Hour} {
		ended := make(chan time.Time, 1)
		e := &ender{end: func() { ended <- time.Now() }}
		e.begin(dated{context.Background(), time.Now().Add(first)})
		e.stop()
		at := time.Now().Add(50 * time.Millisecond)
		e.begin(dated{context.Background(), at})
		select {
		case end := <-ended:
			if early := at.Sub(end); early > 0 {
				t.Errorf("%s: ended %s before the deadline", name, early)
			}
		case <-time.After(time.Minute):
			t.Errorf("%s: not ended", name)
		}
		requireEnded(t, e, name)
	}
}
