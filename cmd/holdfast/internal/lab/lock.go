//go:build linux || darwin

package lab

import (
	"fmt"
	"time"
)

// lock is a way to lock, wrong or right.
type lock struct {
	// on prepares the server.
	on func(*stage)
	// take tries to acquire the lock and calls Enter if it is granted.
	take func(*stage, Actor) bool
	// check is the first step of a release in two steps. It is nil for a release in one.
	// free is the last step.
	check, free func(*stage, Actor)
	// expire waits until the server has expired the lock. It returns false if the lock has
	// no expiry.
	expire func(*stage) bool
	// outlive waits until the TTL has passed while the holder works.
	outlive func(*stage)
}

// The TTLs of the stories: short if the lease is to expire, otherwise long.
const (
	short = time.Second
	long  = time.Minute
)

// leaseOf returns short for A, which stalls or dies, and long for B.
func leaseOf(a Actor) time.Duration {
	if a == A {
		return short
	}
	return long
}

// holdfastOn returns the lock of holdfast on a server. A has a lease of ttlA, and B a long
// one.
func holdfastOn(on func(*stage), ttlA time.Duration) lock {
	return lock{
		on: on,
		take: func(s *stage, a Actor) bool {
			if a == A {
				return s.tryLock(a, ttlA)
			}
			return s.tryLock(a, long)
		},
		free:   (*stage).unlock,
		expire: func(s *stage) bool { s.expired(); return true },
		outlive: func(s *stage) {
			// The holder renews once in each third of the TTL, so four renewals take longer
			// than a TTL.
			left, renewals := time.Duration(0), 0
			s.until("A has renewed the lease", func() bool {
				now, ok := s.left()
				s.expect(ok, "A keeps the lease")
				if now > left {
					renewals++
				}
				left = now
				return renewals > 4 // the first is the grant
			})
			s.note(Server, "4 renewals")
		},
	}
}

// crash returns a story in which the holder dies and the other client needs the lock.
func crash(l lock, how string) func(*stage) {
	return func(s *stage) {
		l.on(s)
		s.expect(l.take(s, A), "A gets the lock")
		s.crash(A, how)
		l.expire(s)
		if !l.take(s, B) {
			s.violate("A is dead, the lock stands forever, and B never gets it.")
		}
		s.survive("B gets the lock when A's lease has expired.")
	}
}

// lateRelease returns a story in which the lease expires between the holder's work and its
// release.
func lateRelease(l lock) func(*stage) {
	return func(s *stage) {
		l.on(s)
		s.expect(l.take(s, A), "A gets the lock")
		s.leave(A)
		if l.check != nil {
			l.check(s, A)
		}
		s.stall(A, "work is done; A stalls")
		l.expire(s)
		s.expect(l.take(s, B), "B gets the lock")
		s.resume(A, "continues")
		l.free(s, A)
		l.take(s, A)
		s.survive("The late release of A changes nothing: B keeps the lock.")
	}
}

// longWork returns a story in which the work takes longer than the TTL.
func longWork(l lock) func(*stage) {
	return func(s *stage) {
		l.on(s)
		s.expect(l.take(s, A), "A gets the lock")
		s.note(A, "works longer than the TTL")
		l.outlive(s)
		if !l.take(s, B) {
			s.note(A, "is done")
			l.free(s, A)
			l.take(s, B)
		} else {
			// A renews its lease, but may lose it if the machine has stood still for longer
			// than the TTL.
			s.expect(s.run.Violated, "A keeps the lease")
		}
		s.survive("A's lease is renewed until its work is done. B comes after A.")
	}
}

// race returns a story in which A has the lock and works, and B tries to get it.
func race(l lock, note, survived string) func(*stage) {
	return func(s *stage) {
		l.on(s)
		s.expect(l.take(s, A), "A gets the lock")
		s.note(B, note)
		l.take(s, B)
		s.survive(survived)
	}
}

func millis(d time.Duration) string { return fmt.Sprint(d.Milliseconds()) }
