package sqlkit

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/must"
)

// testTimeout is longer than any timeout of the store, and shorter than TCP's.
const testTimeout = time.Minute

// silent is a link that stops answering.
type silent struct {
	countedLink
	answers int
	run     func(statements []string) Answers
}

func (l *silent) Run(ctx context.Context, statements ...string) (Answers, error) {
	if l.answers == 0 {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	l.answers--
	return l.run(statements), nil
}

// oneRow is a table of one name.
type oneRow struct {
	Table
	state string
}

func (*oneRow) Read([]byte, int) string                  { return "read" }
func (*oneRow) Insert(_ []byte, _ int, w Write) string   { return w.State }
func (*oneRow) Update(_ []byte, _ int64, w Write) string { return w.State }
func (*oneRow) Wake([]byte, string) string               { return "" }

func (r *oneRow) run(statements []string) Answers {
	if s := statements[0]; s != "read" {
		r.state = s
	}
	row := make(Row, 5)
	for i, v := range []string{"1000", "0", "1", "1", r.state} {
		row[i].String, row[i].Valid = v, r.state != "" || i < 2
	}
	return Answers{{row}}
}

// one is a requester with the ID "1".
type one struct{ noRequester }

func (one) Owner() driver.Owner { return driver.Owner{ID: "1"} }

// unwatched is a server that cannot be watched.
type unwatched struct{}

func (unwatched) Watch(context.Context, func(key, id string)) error {
	return driver.Errorf(driver.CodeUnsupported, "no notifications")
}

// uncertain reports for each error that the outcome is unknown.
type uncertain struct{}

func (uncertain) Sort(err error) (error, bool) {
	if _, ok := errors.AsType[*driver.Error](err); ok {
		return err, false
	}
	return &driver.Error{Code: driver.CodeUnknown, Err: err}, false
}

// TestWaiterLeavesSilentLink: a connection falls silent while a waiter reads the row again.
// The waiter gives up the connection, and the next request uses another one.
func TestWaiterLeavesSilentLink(t *testing.T) {
	held := encode(content{Holders: []holder{{ID: "x", Limit: 1, Token: 1, Expires: time.Hour.Microseconds()}}})
	for _, c := range []struct {
		name    string
		state   string
		answers int
	}{
		{name: "while it is held", state: held, answers: 2}, // the row may have its position
		{name: "while it is written", answers: 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				row := &oneRow{state: c.state}
				links := []*silent{{answers: c.answers, run: row.run}, {answers: 100, run: row.run}}
				dial := func(context.Context) (Link, error) {
					l := links[0]
					links = links[1:]
					return l, nil
				}
				o := NewOptimistic(NewPool(Idle{Min: 1, Max: 1}, dial), row, uncertain{}, unwatched{}, nil, "")
				defer o.Close(t.Context())
				ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
				defer cancel()
				r := driver.Request{ID: "1", Name: "n", Limit: driver.Exclusive, TTL: time.Hour, Wait: true, From: one{}}
				if _, err := o.Acquire(ctx, r); driver.CodeOf(err) != driver.CodeUnknown || ctx.Err() != nil {
					t.Fatalf("%v: %v; want %v", driver.CodeOf(err), err, driver.CodeUnknown)
				}
				row.state = ""
				if _, err := o.Acquire(ctx, r); err != nil {
					t.Fatal(err)
				}
				if !strings.Contains(row.state, `"id":"1"`) {
					t.Errorf("the row says %s", row.state)
				}
			})
		})
	}
}

// TestSilentPoolIsReplaced: the idle links of a pool fall silent together. One call ends by
// its deadline, and the next call gets an answer on a new link.
func TestSilentPoolIsReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		row := &oneRow{}
		answers := 1
		p := NewPool(Idle{Min: 2, Max: 8}, func(context.Context) (Link, error) {
			return &silent{answers: answers, run: row.run}, nil
		})
		defer p.Close()
		var all []Link
		for range 8 {
			l, _, err := p.Get(t.Context())
			must.Succeed(t, err)
			if _, err := l.Run(t.Context(), "read"); err != nil {
				t.Fatal(err)
			}
			all = append(all, l)
		}
		for _, l := range all {
			p.Put(l)
		}
		run := func() error {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_, err := p.Run(ctx, "read")
			return err
		}
		if err := run(); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("on a silent link: %v", err)
		}
		answers = 100
		if err := run(); err != nil {
			t.Errorf("after a silent link: %v", err)
		}
	})
}

// quiet is a recipe whose sessions wait for a lock, get it, and fall silent.
type quiet struct{ closing }

func (*quiet) Lock(_ context.Context, _ *Session, a *LockRequest) (Got, error) {
	a.Waiting()
	return Got{Token: 1, Slot: driver.NoSlot}, nil
}
func (*quiet) Survey(context.Context, Link, []byte, bool) (sights []Sight, missing, err error) {
	return nil, nil, nil
}
func (*quiet) Ping(ctx context.Context, _ *Session, _ *LockRequest) (bool, error) {
	<-ctx.Done()
	return false, ctx.Err()
}
func (*quiet) End(context.Context, Link, Identity) (bool, error) { return true, nil }

// TestSilentSessionIsClosed: a session falls silent after it got its lock, or never opens.
// The request fails within a timeout, and the engine closes the session.
func TestSilentSessionIsClosed(t *testing.T) {
	for _, ttl := range []time.Duration{time.Second, time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			l := &countedLink{}
			e := NewSessions(func(context.Context) (Link, error) { return l, nil }, &quiet{}, Idle{}, "")
			defer e.Close(t.Context())
			ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
			defer cancel()
			r := driver.Request{ID: "1", Name: "n", Limit: driver.Exclusive, TTL: ttl, Wait: true, From: noRequester{}}
			began := time.Now()
			_, err := e.Acquire(ctx, r)
			if driver.CodeOf(err) != driver.CodeUnknown || ctx.Err() != nil || time.Since(began) > ttl {
				t.Errorf("after %s: %v", time.Since(began), err)
			}
			if !l.closed.Load() {
				t.Error("the session stays open")
			}
			must.Report(t, e.Undo(ctx, r))
		})
	}
	synctest.Test(t, func(t *testing.T) {
		e := NewSessions(func(ctx context.Context) (Link, error) {
			<-ctx.Done()
			return nil, driver.Errorf(driver.CodeUnavailable, "%w", ctx.Err())
		}, &quiet{}, Idle{}, "")
		defer e.Close(t.Context())
		ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
		defer cancel()
		_, err := e.Acquire(ctx, driver.Request{ID: "1", Name: "n", Limit: driver.Exclusive, TTL: time.Hour, Wait: true, From: noRequester{}})
		if driver.CodeOf(err) != driver.CodeUnavailable || ctx.Err() != nil {
			t.Errorf("%v: %v", driver.CodeOf(err), err)
		}
	})
}

// silentRow is a RowLocker that answers a number of calls and then stops answering.
type silentRow struct {
	tries, switches int
	answer          error
}

func (r *silentRow) TryRow(ctx context.Context, _ *Session, _ *LockRequest, _ bool) (Got, error) {
	if r.tries == 0 {
		<-ctx.Done()
		return Got{}, ctx.Err()
	}
	r.tries--
	return Got{}, r.answer
}

func (r *silentRow) SwitchKind(ctx context.Context, _ *Session, _ *LockRequest) error {
	if r.switches == 0 {
		<-ctx.Done()
		return ctx.Err()
	}
	r.switches--
	return ErrBusy
}

func (r *silentRow) InsertRow(ctx context.Context, s *Session, a *LockRequest) error {
	return r.SwitchKind(ctx, s, a)
}

// TestPollLeavesSilentSession: a waiter that polls for a permit does not wait for a session
// that has fallen silent.
func TestPollLeavesSilentSession(t *testing.T) {
	for name, r := range map[string]*silentRow{
		"try":    {tries: 2, answer: ErrBusy},
		"switch": {tries: 2, switches: 1, answer: ErrKind},
		"insert": {tries: 2, switches: 1, answer: ErrRow},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
				defer cancel()
				_, err := LockRow(ctx, r, nil, &LockRequest{Request: driver.Request{Limit: 3, Wait: true}, Waiting: func() {}})
				if !errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil {
					t.Errorf("%v", err)
				}
			})
		})
	}
}

// stuck is a recipe with a session that falls silent while it waits. Another link gets the answer err to a
// search of the queue.
type stuck struct {
	quiet
	err error
}

func (*stuck) Lock(ctx context.Context, _ *Session, _ *LockRequest) (Got, error) {
	<-ctx.Done()
	return Got{}, ctx.Err()
}
func (r *stuck) Survey(context.Context, Link, []byte, bool) (sights []Sight, missing, err error) {
	return nil, nil, r.err
}
func (*stuck) End(context.Context, Link, Identity) (bool, error) { return false, nil }

// queuing is a requester that counts calls of Queued.
type queuing struct {
	noRequester
	calls *atomic.Int32
}

func (q queuing) Queued([]driver.Holder) { q.calls.Add(1) }

// TestQueuedNeedsServerOfSession: a request whose session is silent is not reported as queued because
// another server, a demoted primary or a replica, refuses to show its queue.
func TestQueuedNeedsServerOfSession(t *testing.T) {
	replica := driver.Errorf(driver.CodeRefused, "a replica")
	for _, c := range []struct {
		name       string
		dial, seen error
		queued     bool
	}{
		{name: "the server is read-only", seen: ErrReadOnly},
		{name: "no connection is accepted", dial: replica, seen: replica},
		{name: "no right to see the queue", seen: driver.Errorf(driver.CodeRefused, "denied"), queued: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				dialled := false
				e := NewSessions(func(context.Context) (Link, error) {
					if dialled && c.dial != nil {
						return nil, c.dial
					}
					dialled = true
					return &countedLink{}, nil
				}, &stuck{err: c.seen}, Idle{}, "")
				defer e.Close(t.Context())
				ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
				defer cancel()
				q := queuing{calls: &atomic.Int32{}}
				_, err := e.Acquire(ctx, driver.Request{ID: "1", Name: "n", Limit: driver.Exclusive, TTL: time.Hour, Wait: true, From: q})
				if driver.CodeOf(err) != driver.CodeUnknown {
					t.Errorf("the request: %v", err)
				}
				if queued := q.calls.Load() > 0; queued != c.queued {
					t.Errorf("reported as queued: %t", queued)
				}
			})
		})
	}
}

// answered is a recipe whose session runs no statement any more, although no answer has come. If again is set, this is
// so before the second statement.
type answered struct {
	stuck
	again bool
}

func (*answered) Runs(context.Context, Link, Identity) (bool, error) { return false, nil }
func (r *answered) Lock(_ context.Context, s *Session, a *LockRequest) (Got, error) {
	if r.again && a.Label.Waited == 0 {
		time.Sleep(time.Second)
		return Got{}, ErrWaitAgain
	}
	for !s.Link.(*countedLink).closed.Load() {
		time.Sleep(time.Millisecond)
	}
	if r.again {
		return Got{}, ErrUnsent
	}
	return Got{}, errors.New("the connection has ended")
}

// TestWaiterLeavesDeadLink: the answer to a statement that waited is lost, and the connection stays open. The engine
// closes it, and the request ends with an unknown outcome if the session may have got the lock.
func TestWaiterLeavesDeadLink(t *testing.T) {
	for _, again := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			r := &answered{again: again}
			r.err = driver.Errorf(driver.CodeRefused, "denied") // the user has no right to see the queue
			e := NewSessions(func(context.Context) (Link, error) { return &countedLink{}, nil }, r, Idle{}, "")
			defer e.Close(t.Context())
			ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
			defer cancel()
			began := time.Now()
			_, err := e.Acquire(ctx, driver.Request{ID: "1", Name: "n", Limit: driver.Exclusive, TTL: time.Hour, Wait: true, From: noRequester{}})
			if driver.CodeOf(err) != driver.CodeUnknown || time.Since(began) > 5*time.Second {
				t.Errorf("after %s: %v: %v", time.Since(began), driver.CodeOf(err), err)
			}
		})
	}
}
