// Package requests makes requests. A test can wait for the notifications that the store
// sends to them.
package requests

import (
	"os"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// Recorder is a driver.Requester that records the first notification of each kind.
type Recorder struct {
	id     string
	Waits  chan []driver.Holder // the holders, when the request waits
	Losses chan driver.Cause    // the cause, when the grant is lost
}

// Owner returns the recorder's owner.
func (r *Recorder) Owner() driver.Owner {
	return driver.Owner{ID: r.id, Host: "test-host", PID: os.Getpid(), Reason: "because"}
}

// Queued records a wait.
func (r *Recorder) Queued(h []driver.Holder) {
	select {
	case r.Waits <- h:
	default:
	}
}

// Lost records a loss.
func (r *Recorder) Lost(c driver.Cause, _ error) {
	select {
	case r.Losses <- c:
	default:
	}
}

// AwaitLoss waits until the store reports a loss, and returns its cause.
func (r *Recorder) AwaitLoss(t testing.TB) driver.Cause {
	t.Helper()
	return Receive(t, "the report of a loss", r.Losses)
}

// Keeps requires that the store has reported no loss.
func (r *Recorder) Keeps(t testing.TB) {
	t.Helper()
	select {
	case c := <-r.Losses:
		t.Fatalf("the store reported a loss: %s", c)
	default:
	}
}

var ids atomic.Int64

// New returns a request with a new ID and a Recorder.
func New(name string, limit int, ttl time.Duration) driver.Request {
	id := "r" + strconv.FormatInt(time.Now().UnixNano(), 10) + "-" + strconv.FormatInt(ids.Add(1), 10)
	return driver.Request{ID: id, Name: name, Limit: limit, TTL: ttl,
		From: &Recorder{id: id, Waits: make(chan []driver.Holder, 1), Losses: make(chan driver.Cause, 1)}}
}

// Of returns the recorder of a request of New.
func Of(r driver.Request) *Recorder { return r.From.(*Recorder) }
