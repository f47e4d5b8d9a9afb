//go:build linux || darwin

package run

import (
	"context"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/backoff"
)

// refresh is the interval, in seconds, at which the line on a terminal gets the present holders from
// the store. The time on the line advances every second.
const refresh = 5

// waiting reports the state of the wait: on a terminal the holders, and with --verbose every step.
// It implements the Locker's hooks.
type waiting struct {
	r     *runner
	began time.Time

	mu      sync.Mutex
	over    bool
	paused  bool
	queued  bool
	holders []holdfast.Holder
	stop    context.CancelFunc
	ctx     context.Context
	inspect func(context.Context) (holdfast.State, error) // nil if the store cannot inspect
	ticking sync.WaitGroup
	probed  chan error // nil without a probe; see probe
}

// The probe sends the store one request shortly before the timeout of --wait. If the store does not
// respond, the exit status reports an unavailable store, and not a busy lock. The timeout of the
// probe is probeTimeout, or half of a shorter wait. A wait below shortestProbe has no probe.
const (
	probeTimeout  = 2 * time.Second
	shortestProbe = time.Second
)

// probe starts the probe of the wait. A second call has no effect.
func (w *waiting) probe() {
	if w.r.Wait < shortestProbe || w.inspect == nil || w.probed != nil {
		return
	}
	w.probed = make(chan error, 1)
	end := w.began.Add(w.r.Wait)
	go func() {
		ctx, cancel := context.WithDeadline(w.ctx, end)
		defer cancel()
		if backoff.Sleep(ctx, time.Until(end.Add(-min(probeTimeout, w.r.Wait/2)))) != nil {
			return
		}
		_, err := w.inspect(ctx)
		w.probed <- err
	}()
}

// lastContact returns the error of the probe after the wait has ended, and nil without a probe.
func (w *waiting) lastContact() error {
	if w.probed == nil {
		return nil
	}
	select {
	case err := <-w.probed:
		return err
	default:
		return context.DeadlineExceeded // the store has not responded to the probe
	}
}

func newWaiting(r *runner) *waiting {
	w := &waiting{r: r, began: time.Now()}
	w.ctx, w.stop = context.WithCancel(context.Background())
	return w
}

// watch sets the function that reads the present holders, for the line and for the probe.
func (w *waiting) watch(l *holdfast.Locker, g holdfast.Guarantees) {
	if g.Visible == driver.VisibleNothing {
		return
	}
	w.inspect = func(ctx context.Context) (holdfast.State, error) { return l.Inspect(ctx, w.r.Name) }
}

// done ends the reports, and removes the line.
func (w *waiting) done() {
	w.mu.Lock()
	w.over = true
	w.mu.Unlock()
	w.stop()
	w.ticking.Wait()
	w.r.printer.Done()
}

// Start is a Locker's hook.
func (w *waiting) Start(ctx context.Context, _ holdfast.Event) context.Context { return ctx }

// Event is a Locker's hook.
func (w *waiting) Event(_ context.Context, e holdfast.Event) {
	switch e.Kind {
	case holdfast.EventExposed:
		w.r.printer.Line("warning: %v", e.Err)
		return
	case holdfast.EventQueued:
		w.wait(e.Holders)
	case holdfast.EventRenewed, holdfast.EventRenewFailed:
		w.r.renewal.Store(&e)
	}
	if !w.r.Verbose {
		return
	}
	p := w.r.printer
	switch e.Kind {
	case holdfast.EventQueued:
		if len(e.Holders) > 0 {
			p.Line("queued for %q, %s", e.Name, holdersText(e.Holders))
		} else {
			p.Line("queued for %q", e.Name)
		}
	case holdfast.EventAcquired:
		p.Line("acquired %q on %s after %s: token %d", e.Name, e.Store, round(e.Took), e.Token)
	case holdfast.EventReleased:
		p.Line("released %q after %s", e.Name, round(e.Took))
	case holdfast.EventLost:
		p.Line("lost %q after %s: %v", e.Name, round(e.Took), e.Err)
	case holdfast.EventRenewFailed, holdfast.EventUnconfirmed, holdfast.EventUndoFailed:
		p.Line("%q: %s: %v", e.Name, e.Kind, e.Err)
	}
}

// wait shows the line on a terminal. A goroutine then rewrites the line every second.
func (w *waiting) wait(holders []holdfast.Holder) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(holders) > 0 {
		w.holders = holders
	}
	// The Locker reports the event on a goroutine of its own, so it may come after done.
	if w.over || w.queued || !w.r.printer.Terminal() {
		return
	}
	w.queued = true
	w.ticking.Go(w.tick)
}

// pause removes the line while the job is stopped and the shell has the terminal.
func (w *waiting) pause() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.paused = true
	w.r.printer.Done()
}

// resume shows the line again.
func (w *waiting) resume() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.paused = false
}

func (w *waiting) tick() {
	second := time.NewTicker(time.Second)
	defer second.Stop()
	for n := 0; ; n++ {
		if n%refresh == 0 && w.inspect != nil {
			// After an error the line shows the former holders until the next request.
			if st, err := w.inspect(w.ctx); err == nil {
				w.mu.Lock()
				w.holders = st.Holders
				w.mu.Unlock()
			}
		}
		w.show()
		select {
		case <-second.C:
		case <-w.ctx.Done():
			return
		}
	}
}

func (w *waiting) show() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.over || w.paused || w.r.front.stopped() {
		return
	}
	by := "not held at the moment"
	if len(w.holders) > 0 {
		by = holdersText(w.holders)
	}
	w.r.printer.Status("waiting for %q for %s, %s", w.r.Name, time.Since(w.began).Round(time.Second), by)
}
