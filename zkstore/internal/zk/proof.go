package zk

import (
	"context"
	"errors"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// proof is what the client can prove about the leader's deadline for the session.
//
// A leader ends a session that had no activity for the session timeout T. A follower reports
// the activity of its clients to the leader when it answers the leader's pings, twice a tick.
// A request that the follower forwards to the leader does not count as activity there. So the
// answer to one request does not prove that the leader has moved the deadline.
//
// The answers to two requests do, if more than a tick lies between them. Pings, their answers
// and forwarded requests travel in order on one connection between follower and leader. So the
// leader has received the report about the earlier request before it answers the later one.
// Both requests use the same connection of the client. The client sends the later one at least
// Config.Heartbeat, which is more than a tick, after the answer to the earlier one. The later one
// passes the leader. When it is answered, the session exists at least until
//
//	send of the earlier request + T - tick.
//
// Only successful requests count: a server refuses some requests without the leader.
//
// The formula subtracts a tick because of a leader that was deposed and has not noticed yet.
// It answers sync for at most about a tick beside its successor. The successor gives every
// session the whole of T when it begins.
//
// In two cases one answer is enough. A quorum has committed the transaction that made a new
// session and set its deadline. And after a reconnection the server sends a request to the
// leader, which moves the deadline before it answers. A deposed leader may answer that
// request too, so the answer counts only as the earlier one of two.
type proof struct {
	// origin: the deadline is at least origin + T - tick.
	origin driver.Instant
	// sent and received are the times of the earlier request and of its answer. No later request
	// has confirmed it yet.
	sent, received driver.Instant

	changed chan struct{} // closed and replaced when origin moves
}

// connected handles the answer to a handshake. created reports that it has made the session.
func (p *proof) connected(created bool, sent, received driver.Instant) {
	if created {
		p.origin = sent
	}
	p.sent, p.received = sent, received
}

// answered handles the answer to a request that passed the leader. An answer moves origin only if
// its request was sent at least heartbeat after the earlier answer.
func (p *proof) answered(sent driver.Instant, heartbeat time.Duration) {
	if Between(p.received, sent) < heartbeat {
		return
	}
	p.origin, p.sent, p.received = p.sent, sent, driver.Now()
	close(p.changed)
	p.changed = make(chan struct{})
}

// Between returns the time from a to b, including suspended time.
func Between(a, b driver.Instant) time.Duration {
	since, _ := a.Elapsed()
	later, _ := b.Elapsed()
	return since - later
}

// Proven returns how long after an instant the session is proven to exist.
func (s *Session) Proven(at driver.Instant) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.proven(at)
}

func (s *Session) proven(at driver.Instant) time.Duration {
	return s.timeout - s.cfg.Tick - Between(s.proof.origin, at)
}

// Proof returns an instant, and how long after it the session is proven to exist.
func (s *Session) Proof() (driver.Instant, time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.proof.origin, s.timeout - s.cfg.Tick
}

// Prove waits until the session is proven to exist for d after an instant. It returns false
// if ctx or the session ends first.
func (s *Session) Prove(ctx context.Context, at driver.Instant, d time.Duration) bool {
	for {
		s.mu.Lock()
		ok, ended, proven, changed := s.proven(at) >= d, s.ended, s.proof.changed, s.changed
		s.mu.Unlock()
		switch {
		case ended != nil:
			return false
		case ok:
			return true
		}
		select {
		case <-proven:
		case <-changed:
		case <-ctx.Done():
			return false
		}
	}
}

// HeartbeatTimeout returns how long the client waits for the answer to a heartbeat before it tries
// another server.
func (c Config) HeartbeatTimeout() time.Duration {
	return max(3*c.Heartbeat, min(c.Timeout/3, 10*time.Second))
}

var errSilent = errors.New("the server does not answer")

// sendHeartbeats sends a heartbeat when no other request has passed the leader for a while. It
// closes the connection when a heartbeat is not answered in time.
func (s *Session) sendHeartbeats(c *conn) {
	t := time.NewTimer(0)
	defer t.Stop()
	for {
		s.mu.Lock()
		since, _ := s.proof.received.Elapsed()
		s.mu.Unlock()
		wait := s.cfg.Heartbeat - since
		if wait > 0 {
			t.Reset(wait)
			select {
			case <-t.C:
			case <-c.over:
				return
			}
			continue
		}
		k := Sync("/")
		if c.send(k) != nil {
			return
		}
		t.Reset(s.cfg.HeartbeatTimeout())
		select {
		case <-k.done:
		case <-c.over:
			return
		case <-t.C:
			c.close(errSilent)
			return
		}
	}
}
