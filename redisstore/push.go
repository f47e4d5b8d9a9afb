package redisstore

import (
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/internal/wakeup"
)

// subscription is the state of the subscription to the store's channel.
type subscription struct {
	wanted bool  // subscribe runs until Close
	ready  int64 // the time, by micros, since which messages arrive; 0 if they do not
	failed bool  // the last attempt to subscribe has failed or ended
}

// listen starts to subscribe to the store's channel, if necessary, and does not wait. The caller
// holds the store's mutex.
func (s *Store) listen() {
	if s.subscription.wanted || s.closing {
		return
	}
	s.subscription.wanted = true
	s.tasks.Go(s.subscribe)
}

// expect registers a request that messages may wake.
func (s *Store) expect(e *entry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.entries[e.r.ID] = e
	s.listen()
}

// subscribe keeps the store subscribed to its channel until Close.
func (s *Store) subscribe() {
	sub := &s.subscription
	failures := 0
	for s.ctx.Err() == nil {
		_ = s.client.Subscribe(s.ctx, s.channel, func() {
			failures = 0
			s.mu.Lock()
			if sub.failed {
				s.checkSoon() // the server may have been restarted without its data
			}
			sub.ready, sub.failed = max(micros(), 1), false
			// Messages that were sent before the subscription are lost.
			for _, e := range s.entries {
				if e.seq != 0 {
					wakeup.Send(e.wake)
				}
			}
			s.mu.Unlock()
		}, s.receive)
		s.mu.Lock()
		sub.ready, sub.failed = 0, true
		for _, e := range s.entries {
			if e.seq != 0 {
				wakeup.Send(e.refreshSoon)
			}
		}
		s.mu.Unlock()
		failures++
		_ = backoff.Sleep(s.ctx, min(time.Second, 5*time.Millisecond<<min(failures, 8)))
	}
}

// receive handles a message. The message is a letter and the ID of a request. With the letter g,
// a space and the text for entry.start may follow the ID.
func (s *Store) receive(message string) {
	if len(message) < 2 {
		return
	}
	id, start, _ := strings.Cut(message[1:], " ")
	s.mu.Lock()
	e := s.entries[id]
	if e == nil {
		s.mu.Unlock()
		return
	}
	switch message[0] {
	case 'g', 'w': // the request was granted
		e.start = start
		if e.seq != 0 {
			wakeup.Send(e.wake)
		} else {
			e.woken = true
		}
	case 'n': // the queue entry is near the head
		if e.seq != 0 {
			wakeup.Send(e.refreshSoon)
		}
	case 'x': // the grant was broken
		e.start = ""
		if e.held {
			s.forget(id)
			s.mu.Unlock()
			e.r.From.Lost(driver.CauseTaken, nil)
			return
		}
		if e.seq != 0 {
			wakeup.Send(e.wake)
		}
	}
	s.mu.Unlock()
}

// startUnconfirmed returns the grant that a message carries, so that the request starts before it
// confirms the grant. It returns false if the request has to confirm the grant first. See the
// package comment.
func (a *attempt) startUnconfirmed() (driver.Grant, bool) {
	s, e := a.s, a.e
	s.mu.Lock()
	message := e.start
	e.start = ""
	s.mu.Unlock()
	part := strings.Split(message, " ") // TOKEN TTL TAG
	if len(part) != 3 || a.tag == "" || part[2] != a.tag {
		return driver.Grant{}, false
	}
	g, err1 := makeGrant(e, []string{part[0], "0"}, a.tagged)
	ttl, err2 := strconv.ParseInt(part[1], 10, 64)
	if err1 != nil || err2 != nil || g.Token <= s.highWater.of(e.bucket).Load() {
		return driver.Grant{}, false
	}
	g.Handle.(*handle).ttl = g.TTL
	g.TTL, g.Provisional = min(g.TTL, time.Duration(ttl)*time.Microsecond), true
	if age, _ := a.tagged.Elapsed(); age > g.TTL/3 || !s.fresh() || a.owner != s.encodeOwner(e.r.From.Owner()) {
		return driver.Grant{}, false
	}
	return a.setLate(g), true
}
