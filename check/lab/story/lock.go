//go:build linux || darwin

package story

import (
	"fmt"
	"time"
)

// lock is one way to lock, right or wrong.
type lock struct {
	// on prepares the server.
	on func(*Stage)
	// take tries to acquire the lock and calls Enter if it is granted.
	take func(*Stage, Actor) bool
	// look is the first part of a release in two parts; nil for a release in one.
	look, free func(*Stage, Actor)
	// expire waits until the server has expired the lock. It returns false if the lock has
	// no expiry.
	expire func(*Stage) bool
	// outlive waits until the TTL has passed while the holder works.
	outlive func(*Stage)
}

// The TTLs of the stories: short where the lease is to expire, long where it is not.
const (
	short = time.Second
	long  = time.Minute
)

// ttl is short for A, which stalls or dies, and long for B.
func ttl(a Actor) time.Duration {
	if a == A {
		return short
	}
	return long
}

// holdfastOn is holdfast on a server. A has a lease of ttlA, B a long one.
func holdfastOn(on func(*Stage), ttlA time.Duration) lock {
	return lock{
		on: on,
		take: func(s *Stage, a Actor) bool {
			if a == A {
				return s.TryLock(a, ttlA)
			}
			return s.TryLock(a, long)
		},
		free:   (*Stage).Unlock,
		expire: func(s *Stage) bool { s.Expired(); return true },
		outlive: func(s *Stage) {
			// Four renewals, one each third of the TTL, are more than a TTL.
			left, renewals := time.Duration(0), 0
			s.Until("A has renewed the lease", func() bool {
				now, ok := s.left()
				s.Expect(ok, "A keeps the lease")
				if now > left {
					renewals++
				}
				left = now
				return renewals > 4 // the first is the grant
			})
			s.Note(Server, "4 renewals")
		},
	}
}

// crash: the holder dies, and the other client needs the lock.
func crash(l lock, how string) func(*Stage) {
	return func(s *Stage) {
		l.on(s)
		s.Expect(l.take(s, A), "A gets the lock")
		s.Crash(A, how)
		l.expire(s)
		if !l.take(s, B) {
			s.Violate("A is dead, the lock stands forever, and B never gets it.")
		}
		s.Survive("B gets the lock when A's lease has expired.")
	}
}

// lateRelease: the lease expires between the holder's work and its release.
func lateRelease(l lock) func(*Stage) {
	return func(s *Stage) {
		l.on(s)
		s.Expect(l.take(s, A), "A gets the lock")
		s.Leave(A)
		if l.look != nil {
			l.look(s, A)
		}
		s.Stall(A, "work is done; A stalls")
		l.expire(s)
		s.Expect(l.take(s, B), "B gets the lock")
		s.Resume(A, "continues")
		l.free(s, A)
		l.take(s, A)
		s.Survive("The late release of A changes nothing: B keeps the lock.")
	}
}

// longWork: the work takes longer than the TTL.
func longWork(l lock) func(*Stage) {
	return func(s *Stage) {
		l.on(s)
		s.Expect(l.take(s, A), "A gets the lock")
		s.Note(A, "works longer than the TTL")
		l.outlive(s)
		if !l.take(s, B) {
			s.Note(A, "is done")
			l.free(s, A)
			l.take(s, B)
		} else {
			// A renews, but the machine may have stood still for longer than the TTL.
			s.Expect(s.run.Violated, "A keeps the lease")
		}
		s.Survive("A's lease is renewed until its work is done. B comes after A.")
	}
}

// race: A has the lock and works, and B tries to get it.
func race(l lock, note, survived string) func(*Stage) {
	return func(s *Stage) {
		l.on(s)
		s.Expect(l.take(s, A), "A gets the lock")
		s.Note(B, note)
		l.take(s, B)
		s.Survive(survived)
	}
}

// deadlock: both clients need the locks x and y, and A requests them in the other order
// than B. take tries to acquire one lock.
func deadlock(take func(s *Stage, a Actor, name string) bool) func(*Stage) {
	return func(s *Stage) {
		s.Expect(take(s, A, "x"), "A gets x")
		s.Expect(take(s, B, "y"), "B gets y")
		if !take(s, A, "y") && !take(s, B, "x") {
			s.Note(A, "waits for B to release y")
			s.Note(B, "waits for A to release x")
			s.Violate("Each waits for the other, forever.")
		}
	}
}

func millis(d time.Duration) string { return fmt.Sprint(d.Milliseconds()) }
