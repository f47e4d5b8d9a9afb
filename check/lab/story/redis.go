//go:build linux || darwin

package story

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/check/servers"
)

// lock is one way to lock, right or wrong.
type lock struct {
	// on prepares the server.
	on func(*Stage)
	// take tries to acquire the lock and calls Enter if it is granted.
	take func(*Stage, Actor) bool
	free func(*Stage, Actor)
	// expire waits until the server has expired the lock. It returns false if the lock has
	// no expiry.
	expire func(*Stage) bool
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

// right is holdfast on Redis.
var right = holdfastOn(func(s *Stage) { s.redis() })

// holdfastOn is holdfast on a server.
func holdfastOn(on func(*Stage)) lock {
	return lock{
		on:     on,
		take:   func(s *Stage, a Actor) bool { return s.TryLock(a, ttl(a)) },
		free:   (*Stage).Unlock,
		expire: func(s *Stage) bool { s.Expired(); return true },
	}
}

// byHand is a lock of Redis commands.
func byHand(take func(*Stage, Actor) bool, free func(*Stage, Actor)) lock {
	return lock{
		on: func(s *Stage) { s.redis() },
		take: func(s *Stage, a Actor) bool {
			ok := take(s, a)
			if ok {
				s.Enter(a, nil)
			}
			return ok
		},
		free: func(s *Stage, a Actor) {
			s.Leave(a)
			free(s, a)
		},
		expire: func(s *Stage) bool {
			if s.ask("PTTL", lockName) == "-1" {
				s.Note(Server, "no expiry")
				return false
			}
			s.Until("the key has expired", func() bool { return s.ask("EXISTS", lockName) == "0" })
			s.Note(Server, "lock expires")
			return true
		},
	}
}

// redis starts Redis, empty, and makes it the store of the clients' Lockers.
func (s *Stage) redis() *servers.Redis {
	r := server(s, "redis", func(ctx context.Context, dir string) (*servers.Redis, func(), error) {
		r, err := servers.StartRedis(ctx, dir)
		if err != nil {
			return nil, nil, err
		}
		return r, r.Kill, nil
	})
	if s.url == nil {
		s.url = func(a Actor) string { return "redis://" + s.Link(a, r.Address()) }
		s.ask("FLUSHALL")
	}
	return r
}

// ask sends a command that is not part of the drawing.
func (s *Stage) ask(args ...string) string {
	v, err := s.redis().Do(s.ctx, args...)
	s.Must(err)
	return answer(v)
}

// do sends a command of a client and returns the answer: "nil" for none.
func (s *Stage) do(a Actor, args ...string) string {
	v := s.ask(args...)
	s.Step(a, strings.Join(args, " "), v)
	return v
}

func answer(v any) string {
	if v == nil {
		return "nil"
	}
	return fmt.Sprint(v)
}

// setNX is SET with NX and an expiry.
func setNX(s *Stage, a Actor) bool {
	return s.do(a, "SET", lockName, a.String(), "NX", "PX", fmt.Sprint(ttl(a).Milliseconds())) == "OK"
}

// del is a release that does not compare the owner.
func del(s *Stage, a Actor) { s.do(a, "DEL", lockName) }

// crash: the holder dies, and the other client wants the lock.
func crash(l lock) func(*Stage) {
	return func(s *Stage) {
		l.on(s)
		s.Expect(l.take(s, A), "A gets the lock")
		s.Crash(A)
		l.expire(s)
		if !l.take(s, B) {
			s.Violate("A is dead, the lock stands forever, and B never gets it.")
		}
		s.Survive("B gets the lock after A's lease has expired.")
	}
}

// lateRelease: the lease expires between the holder's work and its release.
func lateRelease(l lock) func(*Stage) {
	return func(s *Stage) {
		l.on(s)
		s.Expect(l.take(s, A), "A gets the lock")
		s.Leave(A)
		s.Stall(A, "its work is done; it stalls")
		l.expire(s)
		s.Expect(l.take(s, B), "B gets the lock")
		s.Resume(A, "continues")
		l.free(s, A)
		l.take(s, A)
		s.Survive("The late release of A changes nothing: B keeps the lock.")
	}
}

var redisStories = []Story{
	{
		Name: "setnx-forever", Title: "SETNX without an expiry, and a crash", Mistake: "never-expires", Server: "Redis",
		Code:   "SETNX lock A",
		Tale:   "Client A writes a key to lock the others out, and means to delete it after its work. It crashes in between. The key has no time limit, so it stays, and every other client waits for a process that no longer exists.",
		Lesson: "A lock needs an expiry, because its holder can die.",
		Wrong:  crash(byHand(func(s *Stage, a Actor) bool { return s.do(a, "SETNX", lockName, a.String()) == "1" }, del)),
		Right:  crash(right),
	},
	{
		Name: "late-delete", Title: "a release that does not compare the owner", Mistake: "delete-anyones", Server: "Redis",
		Code:   "SET lock A NX PX 1000 ... DEL lock",
		Tale:   "Client A has finished its work, but stalls before it releases the lock, and the lock expires. Client B gets it and works. Then A deletes the key, which is B's by now. A's next job finds no key and starts beside B.",
		Lesson: "A release must compare the owner: delete only your own lock.",
		Wrong:  lateRelease(byHand(setNX, del)),
		Right:  lateRelease(right),
	},
}
