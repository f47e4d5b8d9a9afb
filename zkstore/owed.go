package zkstore

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// debt is a request that is to be undone, since a try that failed.
type debt struct {
	r     driver.Request
	since time.Time
}

const (
	// payAfter is how long after the last try the store undoes a request itself. It is
	// longer than the core's pauses.
	payAfter = 5 * time.Second
	// payEvery is how often it looks.
	payEvery = time.Second
)

// owe notes what an Undo came to. The core gives up after some TTLs, in the belief
// that nobody renews what the request may have left; but its node lives as long as its
// session, which the store's other places and grants may keep for ever. So the store
// goes on by itself until the request is undone, or Close ends the session.
func (s *Store) owe(r driver.Request, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil || s.closed.Load() {
		delete(s.owed, r.ID)
		return
	}
	s.owed[r.ID] = debt{r, time.Now()}
	if !s.paying {
		s.paying = true
		s.background.Go(s.pay)
	}
}

// pay undoes what the core has given up, until nothing is owed.
func (s *Store) pay() {
	t := time.NewTicker(payEvery)
	defer t.Stop()
	for {
		select {
		case <-t.C:
		case <-s.end.Done():
			return
		}
		s.mu.Lock()
		all := slices.Collect(maps.Values(s.owed))
		s.paying = len(all) > 0
		paying := s.paying
		s.mu.Unlock()
		if !paying {
			return
		}
		for _, d := range all {
			if time.Since(d.since) < payAfter {
				continue
			}
			ctx, cancel := context.WithTimeout(s.end, tendPatience)
			err := s.Undo(ctx, d.r)
			cancel()
			if err != nil {
				break // and the rest at the next look
			}
		}
	}
}
