package redisstore

import (
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/wakeup"
	"github.com/holdfast-go/holdfast/redisstore/internal/server"
)

// subscription is the state of the subscription to the store's channel.
type subscription struct {
	wanted bool  // subscribe runs until Close
	ready  int64 // the time, by server.Micros, since which messages arrive; 0 if they do not
	failed bool  // the last attempt to subscribe has failed or ended
}

// listen starts to subscribe to the store's channel, if necessary, and does not wait. The caller
// holds the store's mutex.
func (s *store) listen() {
	if !s.subscription.wanted {
		s.subscription.wanted = true
		s.srv.Go(s.subscribe)
	}
}

// expect registers a request that messages may wake.
func (s *store) expect(e *entry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.entries[e.r.ID] = e
	s.listen()
}

// subscribe keeps the store subscribed to its channel until Close.
func (s *store) subscribe() {
	sub := &s.subscription
	server.KeepSubscribed(s.srv.Ctx, s.srv.Client.Subscribe, s.channel, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if sub.failed {
			s.srv.Held.SuspectAll() // the server may have been restarted without its data
		}
		sub.ready, sub.failed = max(server.Micros(), 1), false
		// Messages that were sent before the subscription are lost.
		for _, e := range s.entries {
			if e.seq != 0 {
				wakeup.Send(e.wake)
			}
		}
	}, s.receive, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		sub.ready, sub.failed = 0, true
		for _, e := range s.entries {
			if e.seq != 0 {
				wakeup.Send(e.refreshSoon)
			}
		}
	})
}

// receive handles a message. Any client with the right to publish can send one, so a message only
// makes this client ask the server earlier. The message is a letter and the ID of a request. With the letter g,
// a space and the text for entry.start may follow the ID. With the letter r, a name follows.
func (s *store) receive(message string) {
	if len(message) < 2 {
		return
	}
	id, start, _ := strings.Cut(message[1:], " ")
	if message[0] == 'x' { // the grant was broken, if the message is not forged
		s.srv.Held.Suspect(id)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if message[0] == 'r' { // a client waits for the name
		for _, w := range s.watches[message[1:]] {
			w.changed()
		}
		return
	}
	e := s.entries[id]
	if e == nil {
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
	case 'x':
		e.start = ""
		if e.seq != 0 {
			wakeup.Send(e.wake)
		}
	}
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
	part := strings.Split(message, " ")                    // TOKEN TTL TAG
	if len(part) != 3 || a.tag == "" || part[2] != a.tag { // mutation: failover-push-tag
		return driver.Grant{}, false
	}
	g, err1 := makeGrant(e, []string{part[0], "0"}, a.tagged) // mutation: failover-push-sent
	ttl, err2 := strconv.ParseInt(part[1], 10, 64)
	if err1 != nil || err2 != nil || g.Token <= s.srv.HighWater.Of(e.bucket).Load() {
		return driver.Grant{}, false
	}
	g.Handle.(*handle).ttl = g.TTL
	g.TTL, g.Provisional = min(g.TTL, time.Duration(ttl)*time.Microsecond), true // mutation: failover-push-ttl
	if age, _ := a.tagged.Elapsed(); age > g.TTL/3 || !s.srv.Fresh() || a.owner != s.srv.EncodeOwner(e.r.From.Owner()) {
		return driver.Grant{}, false
	}
	return a.withLease(g), true
}
