package redisstore

import (
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// subscription is one channel that the store listens to, until Close.
type subscription struct {
	ready  int64 // since when messages arrive, by micros; 0 if they do not
	failed bool  // it has ended since they last did, or before they ever did
}

// listen sees to it that a channel is listened to. It does not wait for that. The
// store's mutex is held.
func (s *Store) listen(channel string) {
	if _, have := s.subs[channel]; have || s.closing {
		return
	}
	sub := &subscription{}
	s.subs[channel] = sub
	s.tasks.Go(func() { s.subscribe(sub, channel) })
}

// expect makes a request known that may be woken.
func (s *Store) expect(e *entry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.entries[e.r.ID] = e
	s.listen(e.channel)
}

func (s *Store) subscribe(sub *subscription, channel string) {
	failures := 0
	for s.ctx.Err() == nil {
		_ = s.client.Subscribe(s.ctx, channel[2:], func() {
			failures = 0
			s.mu.Lock()
			if sub.failed {
				s.lookSoon() // the server may have been restarted without its data
			}
			sub.ready, sub.failed = max(micros(), 1), false
			// What was said while nobody listened is lost.
			for _, e := range s.entries {
				if e.seq != 0 && e.channel == channel {
					poke(e.wake)
				}
			}
			s.mu.Unlock()
		}, s.hear)
		s.mu.Lock()
		sub.ready, sub.failed = 0, true
		for _, e := range s.entries {
			if e.seq != 0 && e.channel == channel {
				poke(e.close) // look more often
			}
		}
		s.mu.Unlock()
		failures++
		t := time.NewTimer(min(time.Second, 5*time.Millisecond<<min(failures, 8)))
		select {
		case <-t.C:
		case <-s.ctx.Done():
			t.Stop()
		}
	}
}

// hear takes a message: a letter and the ID of a request.
func (s *Store) hear(message string) {
	if len(message) < 2 {
		return
	}
	s.mu.Lock()
	e := s.entries[message[1:]]
	if e == nil {
		s.mu.Unlock()
		return
	}
	switch message[0] {
	case 'w': // its turn
		if e.seq != 0 {
			poke(e.wake)
		} else {
			e.woken = true
		}
	case 'n': // near the head
		if e.seq != 0 {
			poke(e.close)
		}
	case 'x': // taken away
		if !e.held && e.seq != 0 {
			poke(e.wake)
		}
		if e.held {
			s.forget(e)
			s.mu.Unlock()
			e.r.From.Lost(driver.CauseTaken, nil)
			return
		}
	}
	s.mu.Unlock()
}
