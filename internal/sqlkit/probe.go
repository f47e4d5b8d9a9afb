package sqlkit

import (
	"context"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// OpenTime bounds what Open asks of a server: one that does not answer is asked again by
// the first call that needs it.
const OpenTime = 5 * time.Second

// Probe is what is asked of a server once; F is what it finds out.
type Probe[F any] struct {
	ask func(context.Context) (F, error)

	mu    sync.Mutex
	known bool
	facts F
}

// NewProbe makes one. Ask may run more than once at a time, until it has an answer.
func NewProbe[F any](ask func(context.Context) (F, error)) *Probe[F] { return &Probe[F]{ask: ask} }

// Facts are what is known by now: nothing, unless known.
func (p *Probe[F]) Facts() (facts F, known bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.facts, p.known
}

// Ask asks, unless the answer is known.
func (p *Probe[F]) Ask(ctx context.Context) error {
	if _, known := p.Facts(); known {
		return nil
	}
	f, err := p.ask(ctx)
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.facts, p.known = f, true
	return nil
}

// Settle asks until that is answered or ctx ends: a server that is being started again
// is no reason to fail.
func (p *Probe[F]) Settle(ctx context.Context) (F, error) {
	for {
		err := p.Ask(ctx)
		if err == nil {
			f, _ := p.Facts()
			return f, nil
		}
		var none F
		if code := driver.CodeOf(err); code != driver.CodeUnavailable && code != driver.CodeUnknown {
			return none, err
		}
		if sleep(ctx, 50*time.Millisecond) != nil {
			return none, driver.Errorf(driver.CodeUnavailable, "%w", err)
		}
	}
}

// Unreached puts a code on an error of opening a connection, or of asking what a server
// is: no lock was asked for, so that Unknown is Unavailable.
func Unreached(f Faults, err error) error {
	coded, _ := f.Sort(err)
	if driver.CodeOf(coded) == driver.CodeUnknown {
		return &driver.Error{Code: driver.CodeUnavailable, Err: err}
	}
	return coded
}
