package redisstore

import (
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// subscription is the subscription to one channel, until Close.
type subscription struct {
	ready  int64 // the time, by micros, since which messages arrive; 0 if they do not
	failed bool  // the last attempt to subscribe has failed or ended
}

// listen starts to subscribe to a channel, if necessary, and does not wait. The caller holds the
// store's mutex.
func (s *Store) listen(channel string) {
	if _, have := s.subs[channel]; have || s.closing {
		return
	}
	sub := &subscription{}
	s.subs[channel] = sub
	s.tasks.Go(func() { s.subscribe(sub, channel) })
}

// expect registers a request that messages may wake.
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
			// Messages that were sent before the subscription are lost.
			for _, e := range s.entries {
				if e.seq != 0 && e.channel == channel {
					notify(e.wake)
				}
			}
			s.mu.Unlock()
		}, s.receive)
		s.mu.Lock()
		sub.ready, sub.failed = 0, true
		for _, e := range s.entries {
			if e.seq != 0 && e.channel == channel {
				notify(e.close) // refresh more often
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

// receive handles a message: a letter and the ID of a request.
func (s *Store) receive(message string) {
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
	case 'w': // it was granted
		if e.seq != 0 {
			notify(e.wake)
		} else {
			e.woken = true
		}
	case 'n': // near the head
		if e.seq != 0 {
			notify(e.close)
		}
	case 'x': // its grant was broken
		if !e.held && e.seq != 0 {
			notify(e.wake)
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
