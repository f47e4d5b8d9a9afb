package sqlkit

import (
	"context"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/backoff"
)

// openTimeout limits how long Open waits for a server. Without an answer, the first call
// that needs the facts probes the server again.
const openTimeout = 5 * time.Second

// Probe reads facts about a server once.
type Probe[F any] struct {
	read func(context.Context) (F, error)

	mu    sync.Mutex
	known bool
	facts F
}

// NewProbe makes a probe. read may run concurrently until it has succeeded once.
func NewProbe[F any](read func(context.Context) (F, error)) *Probe[F] { return &Probe[F]{read: read} }

// Facts returns the facts. known is false if they have not been read yet.
func (p *Probe[F]) Facts() (facts F, known bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.facts, p.known
}

// Open reads the facts within openTimeout. It returns an error only if the server refuses the
// client or the options are wrong. If the server does not answer, Open returns nil, as
// [driver.Opener] requires.
func (p *Probe[F]) Open(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	_, err := p.Read(ctx)
	if code := driver.CodeOf(err); code == driver.CodeRefused || code == driver.CodeInvalid {
		return err
	}
	return nil
}

// Read returns the facts. It reads them unless they have been read before. The core repeats the calls of a
// waiter.
func (p *Probe[F]) Read(ctx context.Context) (F, error) {
	if f, known := p.Facts(); known {
		return f, nil
	}
	f, err := p.read(ctx)
	switch {
	case err == nil:
	case driver.CodeOf(err) == driver.CodeUnknown: // a probe changes nothing
		return f, &driver.Error{Code: driver.CodeUnavailable, Err: err}
	default:
		return f, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.facts, p.known = f, true
	return f, nil
}

// Unreached returns err with a code, for a call that cannot have changed anything: it has requested no
// lock yet, or it only reads. So CodeUnknown becomes CodeUnavailable.
func Unreached(f Faults, err error) error {
	coded, _ := f.Sort(err)
	if driver.CodeOf(coded) == driver.CodeUnknown {
		return &driver.Error{Code: driver.CodeUnavailable, Err: err}
	}
	return coded
}

// Login opens a connection by dial, unless the server has refused a login lately.
func Login[L any](refused *backoff.Refused, dial func() (L, error)) (link L, err error) {
	if err := refused.Err(); err != nil {
		return link, err
	}
	link, err = dial()
	if err == nil || driver.CodeOf(err) == driver.CodeRefused {
		refused.Note(err)
	}
	return link, err
}
