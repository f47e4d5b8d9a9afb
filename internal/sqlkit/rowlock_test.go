package sqlkit

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// rowScript is a RowLocker with a list of answers. It repeats the last answer.
type rowScript struct {
	tries              []error
	switches           []error
	insert             error  // the answer of each InsertRow
	waited             []bool // whether each call waited
	switched, inserted int
}

func (r *rowScript) TryRow(_ context.Context, _ *Session, _ *LockRequest, wait bool) (Got, error) {
	r.waited = append(r.waited, wait)
	err := r.tries[0]
	if len(r.tries) > 1 {
		r.tries = r.tries[1:]
	}
	return Got{Token: uint64(len(r.waited))}, err
}

func (r *rowScript) InsertRow(context.Context, *Session, *LockRequest) error {
	r.inserted++
	return r.insert
}

func (r *rowScript) SwitchKind(context.Context, *Session, *LockRequest) error {
	r.switched++
	err := r.switches[0]
	if len(r.switches) > 1 {
		r.switches = r.switches[1:]
	}
	return err
}

// TestLockRowPollsForPermits: a waiter for a semaphore polls. LockRow tries a missing row
// again, up to five times. It switches a row that is shared as another kind. After that it tries a locked row again.
func TestLockRowPollsForPermits(t *testing.T) {
	other := errors.New("other")
	for name, c := range map[string]struct {
		limit    int
		wait     bool
		first    bool
		tries    []error
		switches []error
		insert   error
		want     error
		inserts  int
		waited   []bool // whether each try waited
		polls    int
	}{
		"free":             {limit: 1, tries: []error{nil}, waited: []bool{false}},
		"waits":            {limit: 1, wait: true, tries: []error{nil}, waited: []bool{true}},
		"busy":             {limit: 1, tries: []error{ErrBusy}, want: ErrBusy, waited: []bool{false}},
		"cannot queue yet": {limit: 1, wait: true, tries: []error{ErrBusy, ErrBusy, nil}, waited: []bool{true, true, true}, polls: 2},
		"no row":           {limit: 1, tries: []error{ErrRow, ErrRow, nil}, inserts: 2, waited: []bool{false, false, false}},
		"never a row":      {limit: 3, wait: true, tries: []error{ErrRow}, want: ErrRow, inserts: mostMissing - 1, waited: make([]bool, 5)},
		"permit, an open insert": {limit: 3, wait: true, tries: []error{ErrRow, ErrRow, ErrRow, ErrRow, ErrRow, nil}, insert: ErrBusy,
			inserts: mostMissing, waited: make([]bool, 6), polls: mostMissing},
		"reader waits":            {limit: driver.Unlimited, wait: true, tries: []error{nil}, waited: []bool{true}},
		"reader, another kind":    {limit: driver.Unlimited, tries: []error{ErrKind, nil}, switches: []error{nil}, waited: []bool{false, false}},
		"permit polls":            {limit: 3, wait: true, tries: []error{ErrBusy, ErrBusy, nil}, waited: []bool{false, false, false}, polls: 2},
		"permit does not wait":    {limit: 3, tries: []error{ErrBusy}, want: ErrBusy, waited: []bool{false}},
		"permit, kind held":       {limit: 3, tries: []error{ErrKind}, switches: []error{ErrBusy}, want: ErrBusy, waited: make([]bool, 1+kindTries)},
		"first, kind held":        {limit: 3, first: true, tries: []error{ErrKind}, switches: []error{ErrBusy}, want: ErrBusy, waited: []bool{false}},
		"permit, row met":         {limit: 3, tries: []error{ErrRow, ErrBusy, nil}, inserts: 1, waited: []bool{false, false, false}},
		"permit waits for a kind": {limit: 3, wait: true, tries: []error{ErrKind, ErrKind, nil}, switches: []error{ErrBusy, nil}, waited: []bool{false, false, false}, polls: 1},
		"permit, an error":        {limit: 3, wait: true, tries: []error{other}, want: other, waited: []bool{false}},
		"permit, no switch":       {limit: 3, wait: true, tries: []error{ErrKind}, switches: []error{other}, want: other, waited: []bool{false}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := &rowScript{tries: c.tries, switches: c.switches, insert: c.insert}
				polls := 0
				a := &LockRequest{Request: driver.Request{Limit: c.limit, Wait: c.wait, First: c.first}, Waiting: func() { polls++ }}
				got, err := LockRow(t.Context(), r, nil, a)
				if err != c.want || err == nil && got.Token != uint64(len(c.waited)) {
					t.Errorf("%+v, %v; want %v", got, err, c.want)
				}
				if !slices.Equal(r.waited, c.waited) || polls != c.polls || r.inserted != c.inserts {
					t.Errorf("calls %v, polled %d times and inserted %d, want %v, %d and %d", r.waited, polls, r.inserted, c.waited, c.polls, c.inserts)
				}
			})
		})
	}
}

// TestLockRowEndsWithContext: LockRow polls at least every 100 ms, and stops when its
// context ends.
func TestLockRowEndsWithContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		polls := 0
		_, err := LockRow(ctx, &rowScript{tries: []error{ErrBusy}}, nil, &LockRequest{Request: driver.Request{Limit: 3, Wait: true}, Waiting: func() { polls++ }})
		if driver.CodeOf(err) != driver.CodeUnavailable || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v", err)
		}
		if polls < 100 || polls > 250 {
			t.Errorf("polled %d times in 10s", polls)
		}
	})
}

// TestLockRowIsBusyBeforeContextEnds: a request that has little time does not try again, because the end of its context
// during a transaction would cost the session.
func TestLockRowIsBusyBeforeContextEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 60*time.Millisecond)
		defer cancel()
		r := &rowScript{tries: []error{ErrKind}, switches: []error{ErrBusy}}
		if _, err := LockRow(ctx, r, nil, &LockRequest{Request: driver.Request{Limit: 3}}); err != error(ErrBusy) || len(r.waited) != 1 {
			t.Errorf("%v after %d tries", err, len(r.waited))
		}
	})
}

// TestProbeRunsUntilAnswered: each call probes the server once, until the server has answered, and never again.
func TestProbeRunsUntilAnswered(t *testing.T) {
	refused := driver.Errorf(driver.CodeRefused, "a replica")
	answers := []error{driver.Errorf(driver.CodeUnavailable, "starting"), errors.New("lost"), refused, nil}
	tries := 0
	p := NewProbe(func(context.Context) (int, error) {
		tries++
		return tries, answers[tries-1]
	})
	for i, code := range []driver.Code{driver.CodeUnavailable, driver.CodeUnavailable, driver.CodeRefused} {
		if _, err := p.Read(t.Context()); driver.CodeOf(err) != code || !errors.Is(err, answers[i]) || tries != i+1 {
			t.Errorf("call %d has tried %d times: %v", i, tries, err)
		}
		if f, known := p.Facts(); known {
			t.Errorf("a probe that failed reported the facts %d", f)
		}
	}
	for range 2 {
		if f, err := p.Read(t.Context()); f != 4 || err != nil || tries != 4 {
			t.Errorf("%d, %v after %d answers", f, err, tries)
		}
	}
	if f, known := p.Facts(); f != 4 || !known {
		t.Errorf("%d, %t", f, known)
	}
}
