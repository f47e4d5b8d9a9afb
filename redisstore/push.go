package redisstore

import (
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/internal/wakeup"
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
				s.checkSoon() // the server may have been restarted without its data
			}
			sub.ready, sub.failed = max(micros(), 1), false
			// Messages that were sent before the subscription are lost.
			for _, e := range s.entries {
				if e.seq != 0 && e.channel == channel {
					wakeup.Send(e.wake)
				}
			}
			s.mu.Unlock()
		}, s.receive)
		s.mu.Lock()
		sub.ready, sub.failed = 0, true
		for _, e := range s.entries {
			if e.seq != 0 && e.channel == channel {
				wakeup.Send(e.close) // refresh more often
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
			wakeup.Send(e.close)
		}
	case 'x': // the grant was broken
		e.start = ""
		if !e.held && e.seq != 0 {
			wakeup.Send(e.wake)
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

// begin returns the grant that a message carries, so that the request starts before it confirms
// the grant. It returns false if the request has to confirm the grant first. See the package
// comment.
func (a *attempt) begin() (driver.Grant, bool) {
	s, e := a.s, a.e
	s.mu.Lock()
	message := e.start
	e.start = ""
	s.mu.Unlock()
	part := strings.Split(message, " ")
	if len(part) != 3 || a.tag == "" || part[2] != a.tag {
		return driver.Grant{}, false
	}
	g, err := makeGrant(e, []string{part[0], "0"}, a.tagged)
	micros, err2 := strconv.ParseInt(part[1], 10, 64)
	if err != nil || err2 != nil || g.Token <= s.highWater.of(e.bucket).Load() {
		return driver.Grant{}, false
	}
	h := g.Handle.(*handle)
	h.ttl = g.TTL
	g.TTL, g.Provisional = min(g.TTL, time.Duration(micros)*time.Microsecond), true
	if age, _ := a.tagged.Elapsed(); age > g.TTL/3 || !s.fresh() || a.owner != s.encodeOwner(e.r.From.Owner()) {
		return driver.Grant{}, false
	}
	return a.markLate(g), true
}
