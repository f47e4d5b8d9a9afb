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
	tries    []error
	switches []error
	waited   []bool // whether each call waited
	switched int
}

func (r *rowScript) TryRow(_ context.Context, _ *Session, _ *LockRequest, wait bool) (Got, error) {
	r.waited = append(r.waited, wait)
	err := r.tries[0]
	if len(r.tries) > 1 {
		r.tries = r.tries[1:]
	}
	return Got{Token: uint64(len(r.waited))}, err
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
// again, up to five times. It switches a row that is shared as another kind.
func TestLockRowPollsForPermits(t *testing.T) {
	other := errors.New("other")
	for name, c := range map[string]struct {
		limit    int
		wait     bool
		tries    []error
		switches []error
		want     error
		waited   []bool // whether each try waited
		polls    int
	}{
		"free":                    {limit: 1, tries: []error{nil}, waited: []bool{false}},
		"waits":                   {limit: 1, wait: true, tries: []error{nil}, waited: []bool{true}},
		"busy":                    {limit: 1, tries: []error{ErrBusy}, want: ErrBusy, waited: []bool{false}},
		"cannot queue yet":        {limit: 1, wait: true, tries: []error{ErrBusy, ErrBusy, nil}, waited: []bool{true, true, true}, polls: 2},
		"no row":                  {limit: 1, tries: []error{ErrRow, ErrRow, nil}, waited: []bool{false, false, false}},
		"never a row":             {limit: 3, wait: true, tries: []error{ErrRow}, want: ErrRow, waited: make([]bool, 5)},
		"reader waits":            {limit: driver.Unlimited, wait: true, tries: []error{nil}, waited: []bool{true}},
		"reader, another kind":    {limit: driver.Unlimited, tries: []error{ErrKind, nil}, switches: []error{nil}, waited: []bool{false, false}},
		"permit polls":            {limit: 3, wait: true, tries: []error{ErrBusy, ErrBusy, nil}, waited: []bool{false, false, false}, polls: 2},
		"permit does not wait":    {limit: 3, tries: []error{ErrBusy}, want: ErrBusy, waited: []bool{false}},
		"permit, kind held":       {limit: 3, tries: []error{ErrKind}, switches: []error{ErrBusy}, want: ErrBusy, waited: []bool{false}},
		"permit waits for a kind": {limit: 3, wait: true, tries: []error{ErrKind, ErrKind, nil}, switches: []error{ErrBusy, nil}, waited: []bool{false, false, false}, polls: 1},
		"permit, an error":        {limit: 3, wait: true, tries: []error{other}, want: other, waited: []bool{false}},
		"permit, no switch":       {limit: 3, wait: true, tries: []error{ErrKind}, switches: []error{other}, want: other, waited: []bool{false}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := &rowScript{tries: c.tries, switches: c.switches}
				polls := 0
				a := &LockRequest{Request: driver.Request{Limit: c.limit, Wait: c.wait}, Waiting: func() { polls++ }}
				got, err := LockRow(t.Context(), r, nil, a)
				if err != c.want || err == nil && got.Token != uint64(len(c.waited)) {
					t.Errorf("%+v, %v; want %v", got, err, c.want)
				}
				if !slices.Equal(r.waited, c.waited) || polls != c.polls {
					t.Errorf("calls %v and polled %d times, want %v and %d", r.waited, polls, c.waited, c.polls)
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

// TestProbeRunsUntilAnswered: the client probes a server until the server has answered, and
// never again.
func TestProbeRunsUntilAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		refused := driver.Errorf(driver.CodeRefused, "a replica")
		answers := []error{driver.Errorf(driver.CodeUnavailable, "starting"), errors.New("lost"), refused, nil}
		tries := 0
		p := NewProbe(func(context.Context) (int, error) {
			tries++
			return tries, answers[tries-1]
		})
		if _, err := p.Wait(t.Context()); err != refused || tries != 3 {
			t.Errorf("the store tried %d times: %v", tries, err)
		}
		if f, known := p.Facts(); known {
			t.Errorf("the probe of a server that refuses reported the facts %d", f)
		}
		if err := p.Read(t.Context()); err != nil {
			t.Error(err)
		}
		if f, err := p.Wait(t.Context()); f != 4 || err != nil || tries != 4 {
			t.Errorf("%d, %v after %d answers", f, err, tries)
		}
		if f, known := p.Facts(); f != 4 || !known {
			t.Errorf("%d, %t", f, known)
		}
		never := NewProbe(func(context.Context) (int, error) { return 0, errors.New("lost") })
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := never.Wait(ctx); driver.CodeOf(err) != driver.CodeUnavailable {
			t.Errorf("a server that never answers: %v", err)
		}
	})
}
