package holdfast

import (
	"context"
	"errors"
	"iter"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/ticks"
)

// Lead takes part in the election of a leader of that name, until ctx ends: it waits for
// the lock, and runs f with the lock's context whenever this process leads. The
// candidates of all processes queue, as those of Lock do, and f runs at most once at a
// time.
//
// The context of f ends when the leadership does: by a loss, by MaxHold, which limits a term,
// or with ctx. Like every lock's context it ends before another candidate can lead, with the
// exceptions that the store's Guarantees name. [Token] returns the token of the term. If f
// returns because its leadership was lost or its term was over, Lead is a candidate again, at
// the end of the queue. It then ignores the error of f. If the store is unavailable or refuses,
// Lead tries again with backoff, up to 2 s between attempts; hooks report each failure.
//
// After MaxHold the candidates that wait come before this one. On a store without an order of
// waiters, this one waits for the store's Fallback, at least 100 ms, before it requests the lock again.
//
// At SIGTERM end ctx. The lock is held until f has returned, or for [Drain] at most. Then the
// next candidate leads at once, with no TTL to wait for.
//
// Lead returns the error of f, or nil, as soon as f returns while it leads: f resigns by
// returning. Otherwise Lead returns when ctx has ended, with an error that matches
// ctx.Err() and that of a last term that was over by then. Or it returns when no later
// attempt can succeed: with ErrClosed after Close, ErrInvalid, ErrUnsupported or
// ErrSelfDeadlock. Wait and Sticky have no effect; Shared, Limit and Reentrant are invalid.
func (l *Locker) Lead(ctx context.Context, name string, f func(context.Context) error, o ...LockOption) error {
	set, err := l.cfg.resolve(o)
	if err != nil {
		return err
	}
	if set.limit != driver.Exclusive || set.reentrant {
		return invalid("Lead(%q): Shared, Limit and Reentrant are not for a leader", name)
	}
	o = append(o[:len(o):len(o)], func(s *settings) { s.hasWait, s.sticky = false, 0 })
	waiting, stop := set.waiting(ctx)
	defer stop()
	for r := (retry{}); ; {
		k, err := l.Lock(ctx, name, o...)
		if began := time.Now(); err == nil {
			var over bool
			if over, err = k.term(f); !over {
				return err
			}
			if ctx.Err() != nil {
				return &failure{name: name, store: l.where, kind: contextError(ctx), err: err}
			}
			if limited := *k.ended.Load() == ErrHoldLimit; limited || time.Since(began) > set.ttl {
				r.reset()
				if limited { // the other candidates come first in any case
					if g := l.guarantees.Load(); g.Order == driver.OrderNone {
						sleep(waiting, l.ctx, max(g.Fallback, termPause))
					}
					continue
				}
			}
		} else if waiting.Err() != nil || permanent(err) {
			return err
		}
		if !sleep(waiting, l.ctx, r.delay()) && waiting.Err() != nil {
			return &failure{name: name, store: l.where, err: contextError(waiting)}
		}
	}
}

// termPause is the least pause after a term that MaxHold has ended, where the store has no order of waiters. A candidate
// whose wait the store notifies leads by then.
const termPause = 100 * time.Millisecond

// term runs f under the lock, and reports whether the lock had ended when f returned.
func (k *Lock) term(f func(context.Context) error) (over bool, err error) {
	err = k.do(func(ctx context.Context) error {
		err := f(ctx)
		over = !k.held()
		return err
	})
	return over, err
}

// permanent reports whether no later attempt can succeed after err.
func permanent(err error) bool {
	for _, kind := range []error{ErrInvalid, ErrUnsupported, ErrClosed, ErrSelfDeadlock} {
		if errors.Is(err, kind) {
			return true
		}
	}
	return false
}

// sleep waits for d. It reports false if one of the contexts has ended first.
func sleep(ctx, other context.Context, d time.Duration) bool {
	if c := ticks.ClockOf(ctx); c != nil {
		return c.Sleep(d)
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
	case <-other.Done():
	}
	return false
}

// Leader is the leader of an election as an observer sees it. Its Token is 0 if there is
// none.
type Leader struct {
	Holder
	// Self reports whether the leader is a candidate of this Locker.
	Self bool
}

// Leader returns the leader of the election of that name, to a candidate of Lead or to
// any other observer. The zero Leader means that there is none, or that its grant is too young
// to be shown; see Inspect. The leader may have changed by the time that Leader returns: a
// resource compares tokens.
func (l *Locker) Leader(ctx context.Context, name string) (Leader, error) {
	st, err := l.Inspect(ctx, name)
	if err != nil {
		return Leader{}, err
	}
	return l.leaderOf(st), nil
}

func (l *Locker) leaderOf(st State) Leader {
	if len(st.Holders) == 0 {
		return Leader{}
	}
	h := st.Holders[len(st.Holders)-1]
	return Leader{Holder: h, Self: strings.HasPrefix(h.ID, l.idPrefix)}
}

// Leaders yields the leader of the election of that name now and after each change,
// until ctx ends: the zero Leader while there is none, or its grant is too young to be shown.
// It may leave out a leader that led only for a moment. If the store is unavailable it yields
// the error once, continues with backoff, and yields the leader again afterwards. An error that
// no later attempt can change, such as ErrClosed, ends it.
func (l *Locker) Leaders(ctx context.Context, name string) iter.Seq2[Leader, error] {
	return func(yield func(Leader, error) bool) {
		down := false // the error of this outage was yielded
		for r := (retry{}); ; {
			var last *Leader
			var failed error
			for st, err := range l.Watch(ctx, name) {
				if err != nil {
					failed = err
					break
				}
				r.reset()
				down = false
				now := l.leaderOf(st)
				if last == nil || last.Token != now.Token || last.ID != now.ID {
					last = &now
					if !yield(now, nil) {
						return
					}
				}
			}
			news := failed != nil && (!down || permanent(failed))
			if ctx.Err() != nil || news && !yield(Leader{}, failed) || permanent(failed) {
				return
			}
			down = down || failed != nil
			if !sleep(ctx, l.ctx, r.delay()) {
				return
			}
		}
	}
}
