package backoff

import (
	"sync"
	"time"
)

// RefusedPause is the time between a refused login and the next one of a process. Each retry of a request would otherwise
// send the wrong password again, and a server that blocks the account after some of them would keep out the right one.
const RefusedPause = 10 * time.Second

// Refused is the last refusal of a login.
type Refused struct {
	mu    sync.Mutex
	err   error
	until time.Time
}

// Err returns the last refusal, or nil if the caller may try now. Then the other callers get the refusal for another
// RefusedPause, unless Note is called with nil.
func (r *Refused) Err() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err == nil {
		return nil
	}
	if time.Now().Before(r.until) {
		return r.err
	}
	r.until = time.Now().Add(RefusedPause)
	return nil
}

// Note records the outcome of a login: a refusal, or nil. A login without an answer has none: an earlier refusal stands.
func (r *Refused) Note(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.err, r.until = err, time.Now().Add(RefusedPause)
}
