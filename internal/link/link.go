// Package link disturbs the calls of one client of a store, for tests: it stops, delays, refuses and loses them.
package link

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/backoff"
)

// Link carries the calls of one client to its store. The zero Link carries them undisturbed.
type Link struct {
	mu       sync.Mutex
	healed   chan struct{} // not nil while the link is cut
	ended    bool
	refusals int           // the number of requests that are still to be refused
	losses   int           // the number of answers that are still to be lost
	out, in  time.Duration // the delays of requests and of answers
}

// failure is an error of the link, not of the store.
type failure struct {
	error
	code driver.Code
}

// Unwrap returns the error with its code, which driver.CodeOf finds.
func (f failure) Unwrap() error { return f.error }

func failed(code driver.Code, format string, args ...any) error {
	return failure{driver.Errorf(code, format+" (injected)", args...), code}
}

// Classify returns the code of an error of a call to s through a link.
func Classify(s driver.Store, err error) driver.Code {
	if f, ours := errors.AsType[failure](err); ours {
		return f.code
	}
	return s.Classify(err)
}

func (l *Link) change(f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f()
}

// Cut stops requests and answers until Heal.
func (l *Link) Cut() {
	l.change(func() {
		if l.healed == nil {
			l.healed = make(chan struct{})
		}
	})
}

// Lose loses the next n answers, after the store has executed the requests.
func (l *Link) Lose(n int) { l.change(func() { l.losses = n }) }

// Refuse refuses the next n requests. The store does not get them.
func (l *Link) Refuse(n int) { l.change(func() { l.refusals = n }) }

// Delay delays every request by out, and every answer by in.
func (l *Link) Delay(out, in time.Duration) { l.change(func() { l.out, l.in = out, in }) }

// End ends a link that was cut forever. Every call gets the error of a closed client, also those that wait.
func (l *Link) End() {
	l.change(func() { l.ended = true })
	l.Heal()
}

// Heal ends all disturbances.
func (l *Link) Heal() {
	l.change(func() {
		if l.healed != nil {
			close(l.healed)
			l.healed = nil
		}
		l.refusals, l.losses, l.out, l.in = 0, 0, 0, 0
	})
}

// Send carries a request to the store. After an error the store has not got it.
func (l *Link) Send(ctx context.Context) error {
	l.mu.Lock()
	healed, wait := l.healed, l.out
	refused := l.refusals > 0
	if refused {
		l.refusals--
	}
	l.mu.Unlock()
	if refused {
		return failed(driver.CodeRefused, "the store refuses the request")
	}
	return l.travel(ctx, healed, wait)
}

// Answer carries an answer to the client. After an error the client does not get it.
func (l *Link) Answer(ctx context.Context) error {
	l.mu.Lock()
	healed, wait := l.healed, l.in
	lost := l.losses > 0
	if lost {
		l.losses--
	}
	l.mu.Unlock()
	if lost {
		return failed(driver.CodeUnknown, "the connection broke before the answer came")
	}
	return l.travel(ctx, healed, wait)
}

// Call carries a request to the store, and the answer of do to the client.
func (l *Link) Call(ctx context.Context, do func() error) error {
	if err := l.Send(ctx); err != nil {
		return err
	}
	err := do()
	if lost := l.Answer(ctx); lost != nil {
		return lost
	}
	return err
}

// travel waits until healed is closed, unless it is nil, and then for wait.
func (l *Link) travel(ctx context.Context, healed <-chan struct{}, wait time.Duration) error {
	if healed != nil {
		select {
		case <-healed:
		case <-ctx.Done():
			return failed(driver.CodeUnknown, "cut off: %w", ctx.Err())
		}
	}
	if wait > 0 {
		if err := backoff.Sleep(ctx, wait); err != nil {
			return failed(driver.CodeUnknown, "late: %w", err)
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return failed(driver.CodeClosed, "the client has vanished")
	}
	return nil
}
