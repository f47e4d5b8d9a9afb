package sqlkit

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/calls"
	"github.com/holdfast-go/holdfast/internal/contact"
)

const (
	// dialsAtOnce is how many connections a store opens at the same time.
	dialsAtOnce = 4
	// dialWithin limits the time of one dial.
	dialWithin = 10 * time.Second
)

// Dialer opens the connections of a store, a few at a time. A dial serves the call that has waited for
// longest, and goes on when the call that began it has given up. A server accepts connections in their order,
// also those that its clients have left since. So clients that all dial at once, give up, and dial again
// could keep a slow server busy with connections that serve no call.
type Dialer struct {
	dial  func(context.Context) (Link, error)
	calls *calls.Calls
	// Contact, if set, records the connections that dial opens.
	Contact *contact.Contact

	results chan dialled // serves its receivers, which are calls of Dial, in their order
	mu      sync.Mutex
	waiting int
	dialing int
}

type dialled struct {
	link Link
	err  error
}

// NewDialer makes a Dialer that opens one connection by dial.
func NewDialer(dial func(context.Context) (Link, error)) *Dialer {
	return &Dialer{dial: dial, calls: calls.New(), results: make(chan dialled)}
}

// Dial opens a connection.
func (d *Dialer) Dial(ctx context.Context) (Link, error) {
	d.mu.Lock()
	if d.dialing < min(d.waiting+1, dialsAtOnce) {
		if !d.calls.Go(d.serve) {
			d.mu.Unlock()
			return nil, calls.ErrClosed
		}
		d.dialing++
	}
	d.waiting++
	d.mu.Unlock()
	select {
	case r := <-d.results:
		return r.link, r.err
	case <-ctx.Done():
		d.mu.Lock()
		defer d.mu.Unlock()
		d.waiting--
		return nil, d.explain(ctx.Err())
	}
}

// explain explains the error of a dial. A user with a wrong port needs that: a server of MySQL speaks first, and many
// other servers wait for the client.
func (d *Dialer) explain(err error) error {
	explained := d.Contact.Explain(err)
	if errors.Is(err, context.DeadlineExceeded) {
		return driver.Errorf(driver.CodeUnavailable, "no connection was opened in time: %w", explained)
	}
	return explained
}

// serve dials until no call waits for this dial.
func (d *Dialer) serve() {
	for more := true; more; {
		ctx, cancel := context.WithTimeout(d.calls.Ctx, dialWithin)
		l, err := d.dial(ctx)
		cancel()
		more = d.deliver(dialled{l, d.explain(err)})
	}
}

// deliver gives the result of a dial to the first call that waits. Without one it closes the connection.
func (d *Dialer) deliver(r dialled) (more bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	select {
	case d.results <- r:
		d.waiting--
	default: // a call may be about to wait, and gets the next one
		if r.err == nil {
			r.link.Close()
		}
	}
	if more = d.dialing <= min(d.waiting, dialsAtOnce); !more {
		d.dialing--
	}
	return more
}

// Close ends the dials under way.
func (d *Dialer) Close() error {
	d.calls.Stop()
	d.calls.Cancel()
	d.calls.Tasks.Wait()
	return nil
}
