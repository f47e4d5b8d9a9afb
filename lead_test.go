package holdfast_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/must"
	"github.com/holdfast-go/holdfast/memstore"
)

// TestLeadCampaignsAgain: Lead campaigns again after a loss, after the limit of a term, and
// after an outage longer than a campaign.
func TestLeadCampaignsAgain(t *testing.T) {
	for name, end := range map[string]func(memstore.Script){
		"loss":   func(s memstore.Script) { _ = s.Lose("leader", driver.CauseTaken) },
		"limit":  func(memstore.Script) { time.Sleep(time.Hour) },
		"outage": func(s memstore.Script) { s.Stop(); time.Sleep(time.Hour); s.Start() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := memstore.New()
				l := newLocker(t, s)
				ctx, cancel := context.WithCancel(bg)
				terms := make(chan uint64)
				done := make(chan error)
				go func() {
					done <- l.Lead(ctx, "leader", func(ctx context.Context) error {
						terms <- holdfast.Token(ctx, "leader")
						<-ctx.Done()
						return ctx.Err()
					}, holdfast.MaxHold(30*time.Minute), holdfast.Wait(time.Millisecond))
				}()
				token := <-terms
				for range 5 {
					go end(s.Script())
					next := <-terms
					if next <= token {
						t.Errorf("token %d after %d", next, token)
					}
					token = next
				}
				cancel()
				if err := <-done; !errors.Is(err, context.Canceled) {
					t.Error(err)
				}
				time.Sleep(2 * time.Hour) // by now each call of end has had its effect
				unlock(t, mustLock(t, l, "leader"))
			})
		})
	}
}

// TestLeaderStepsDownAtOnce: the successor leads as soon as the leader's function has
// returned, and not before.
func TestLeaderStepsDownAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		ctx, sigterm := context.WithCancel(bg)
		first, second := make(chan error), make(chan error)
		leading := make(chan struct{})
		var steppedDown time.Time
		go func() {
			first <- newLocker(t, s).Lead(ctx, "leader", func(ctx context.Context) error {
				close(leading)
				<-ctx.Done()
				time.Sleep(10 * time.Second) // the function finishes its work
				steppedDown = time.Now()
				return nil
			}, holdfast.TTL(time.Second))
		}()
		<-leading
		go func() {
			second <- newLocker(t, s.Client()).Lead(bg, "leader", func(context.Context) error {
				if steppedDown.IsZero() || time.Since(steppedDown) != 0 {
					t.Errorf("the second leads %s after the first has stepped down, want 0s", time.Since(steppedDown))
				}
				return nil
			})
		}()
		synctest.Wait()
		sigterm()
		must.Report(t, errors.Join(<-first, <-second))
	})
}

func TestLeadReturnsWhatItsFunctionReturns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLocker(t, memstore.New())
		own := errors.New("cannot lead")
		if err := l.Lead(bg, "leader", func(context.Context) error { return own }); err != own {
			t.Error(err)
		}
		must.Report(t, l.Lead(bg, "leader", func(context.Context) error { return nil }))
	})
}

// TestLeadReturnsErrorOfItsContext: after the end of its context, Lead returns the context's
// error and the error of its function. The leadership may end before or after that context.
func TestLeadReturnsErrorOfItsContext(t *testing.T) {
	for name, end := range map[string]func(memstore.Script, func()){
		"lost before": func(s memstore.Script, cancel func()) { _ = s.Lose("leader", holdfast.CauseGone); cancel() },
		"lost after":  func(s memstore.Script, cancel func()) { cancel(); _ = s.Lose("leader", holdfast.CauseGone) },
		"limited":     func(_ memstore.Script, cancel func()) { time.Sleep(2 * time.Minute); cancel() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := memstore.New()
				l := newLocker(t, s)
				ctx, cancel := context.WithCancel(bg)
				defer cancel()
				own := errors.New("the last write failed")
				err := l.Lead(ctx, "leader", func(context.Context) error {
					end(s.Script(), cancel)
					return own
				}, holdfast.MaxHold(time.Minute))
				if !errors.Is(err, context.Canceled) || !errors.Is(err, own) {
					t.Error(err)
				}
			})
		})
	}
}

func TestLeadReturnsWhenNoAttemptCanSucceed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		l, other := newLocker(t, s), newLocker(t, s.Client())
		mustNotRun := func(context.Context) error { t.Error("the function runs"); return nil }
		for _, o := range []holdfast.LockOption{holdfast.Shared(), holdfast.Limit(2), holdfast.Reentrant(), holdfast.TTL(-1)} {
			if err := l.Lead(bg, "leader", mustNotRun, o); !errors.Is(err, holdfast.ErrInvalid) {
				t.Error(err)
			}
		}
		k := mustLock(t, other, "leader", holdfast.TTL(time.Hour))
		if err := other.Lead(k.Context(), "leader", mustNotRun); !errors.Is(err, holdfast.ErrSelfDeadlock) {
			t.Error(err)
		}
		wait, cancel := context.WithCancel(bg)
		time.AfterFunc(time.Minute, cancel)
		if err := l.Lead(bg, "leader", mustNotRun, holdfast.WaitContext(wait)); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		s.Script().Stop()
		away, cancel := context.WithTimeout(bg, time.Minute)
		defer cancel()
		if err := l.Lead(away, "leader", mustNotRun); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		s.Script().Start()
		closing, err := holdfast.New(s.Client())
		must.Succeed(t, err)
		time.AfterFunc(time.Minute, func() { _ = closing.Close(bg) })
		if err := closing.Lead(bg, "leader", mustNotRun); !errors.Is(err, holdfast.ErrClosed) {
			t.Error(err)
		}
		unlock(t, k)
	})
}

// TestOthersComeFirstWithoutOrder: on a store without an order of waiters a candidate pauses after a term that MaxHold has
// ended. A candidate that polls once in the store's Fallback leads by then.
func TestOthersComeFirstWithoutOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(bg)
		l := newLocker(t, altered(memstore.New(), func(g *driver.Guarantees) { g.Order, g.Fallback = driver.OrderNone, time.Second }))
		began := time.Now()
		var terms []time.Duration
		_ = l.Lead(ctx, "leader", func(term context.Context) error {
			terms = append(terms, time.Since(began))
			if len(terms) == 2 {
				cancel()
			}
			<-term.Done()
			return nil
		}, holdfast.MaxHold(time.Minute))
		if len(terms) != 2 || terms[1] < terms[0]+time.Minute+time.Second {
			t.Errorf("the terms began after %v", terms)
		}
	})
}

// TestLeadersYieldsEachChange: Leaders yields each change of the leader and of its token,
// and an outage.
func TestLeadersYieldsEachChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		l, observer := newLocker(t, s, holdfast.Process("web-1", "blue")), newLocker(t, s.Client())
		type seen struct {
			holdfast.Leader
			err error
		}
		changes := make(chan seen)
		ctx, cancel := context.WithCancel(bg)
		go func() {
			defer close(changes)
			for leader, err := range observer.Leaders(ctx, "leader") {
				changes <- seen{leader, err}
			}
		}()
		if c := <-changes; c.err != nil || c.Token != 0 {
			t.Errorf("%+v", c)
		}
		for range 3 {
			err := l.Lead(bg, "leader", func(ctx context.Context) error {
				c := <-changes
				if c.err != nil || c.Token != holdfast.Token(ctx, "leader") || c.Host != "web-1" || c.Instance != "blue" || c.Self {
					t.Errorf("%+v, token %d", c, holdfast.Token(ctx, "leader"))
				}
				if self, err := l.Leader(ctx, "leader"); err != nil || !self.Self || self.Token != c.Token {
					t.Errorf("%+v, %v", self, err)
				}
				s.Script().Stop()
				for c = range changes { // until the store can be reached again
					if c.err == nil {
						break
					}
					if !errors.Is(c.err, holdfast.ErrUnavailable) {
						t.Errorf("%+v", c)
					}
					s.Script().Start()
				}
				if c.Token != holdfast.Token(ctx, "leader") {
					t.Errorf("after an outage: %+v", c)
				}
				return nil
			}, holdfast.TTL(time.Hour))
			must.Report(t, err)
			if c := <-changes; c.err != nil || c.Token != 0 {
				t.Errorf("after the term: %+v", c)
			}
		}
		cancel()
		for c := range changes {
			t.Errorf("after the end: %+v", c)
		}
		if leader, err := l.Leader(bg, "leader"); err != nil || leader.Token != 0 {
			t.Errorf("%+v, %v", leader, err)
		}
		for _, err := range observer.Leaders(bg, "") {
			if !errors.Is(err, holdfast.ErrInvalid) {
				t.Error(err)
			}
		}
	})
}
