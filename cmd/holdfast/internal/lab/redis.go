//go:build linux || darwin

package lab

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/servers"
)

// right is the lock of holdfast on Redis, with a short lease of A.
var right = holdfastOn(func(s *stage) { s.redis() }, short)

// byHand returns a lock that consists of Redis commands.
func byHand(take func(*stage, Actor) bool, free func(*stage, Actor)) lock {
	return lock{
		on: func(s *stage) { s.redis() },
		take: func(s *stage, a Actor) bool {
			ok := take(s, a)
			if ok {
				s.enter(a, nil)
			}
			return ok
		},
		free: func(s *stage, a Actor) {
			s.leave(a)
			free(s, a)
		},
		expire:  (*stage).keyExpires,
		outlive: func(s *stage) { s.keyExpires() },
	}
}

// keyExpires waits until the key of the lock has expired. It returns false at once if the
// key has no expiry.
func (s *stage) keyExpires() bool {
	if s.command("PTTL", lockName) == "-1" {
		s.note(Server, "no expiry")
		return false
	}
	s.until("the key has expired", func() bool { return s.command("EXISTS", lockName) == "0" })
	s.note(Server, "lock expires")
	return true
}

// startRedis starts a Redis for this play only.
func (s *stage) startRedis(dir string, settings ...string) *servers.Redis {
	r, err := servers.StartRedis(s.ctx, dir, settings...)
	s.must(err)
	s.cleanUp(r.Kill)
	return r
}

// redis starts the set's Redis and empties it. The Redis becomes the store of the clients'
// Lockers.
func (s *stage) redis() *servers.Redis {
	start := func(dir string) (*servers.Redis, error) { return servers.StartRedis(s.ctx, dir) }
	r := sharedServer(s, "redis", start, (*servers.Redis).Kill)
	if s.url == nil {
		s.url = func(a Actor) string { return "redis://" + s.link(a, r.Address()) }
		s.command("FLUSHALL")
	}
	return r
}

// command sends a command that is not part of the drawing.
func (s *stage) command(args ...string) string { return s.commandAt(s.redis(), args...) }

func (s *stage) commandAt(r *servers.Redis, args ...string) string {
	v, err := r.Do(s.ctx, args...)
	s.must(err)
	if v == nil {
		return "nil"
	}
	return fmt.Sprint(v)
}

// do sends a command of a client and returns the answer, or "nil" if there is none.
func (s *stage) do(a Actor, args ...string) string {
	v := s.command(args...)
	s.step(a, strings.Join(args, " "), explain(args[0], v))
	return v
}

// explain adds a word to an answer that is a number or nothing.
func explain(command, answer string) string {
	switch command + " " + answer {
	case "SETNX 1":
		return "1: created"
	case "SETNX 0":
		return "0: it exists"
	case "SET nil":
		return "nil: it exists"
	case "DEL 1":
		return "1: deleted"
	case "HSET 1":
		return "1: created"
	case "HSET 0":
		return "0: replaced"
	}
	return answer
}

// setNX acquires the lock with SET, NX and an expiry.
func setNX(s *stage, a Actor) bool {
	return s.do(a, "SET", lockName, a.String(), "NX", "PX", millis(leaseOf(a))) == "OK"
}

// setnx acquires the lock with SETNX, without an expiry.
func setnx(s *stage, a Actor) bool { return s.do(a, "SETNX", lockName, a.String()) == "1" }

// del releases the lock without a comparison of the owner.
func del(s *stage, a Actor) { s.do(a, "DEL", lockName) }

// get is the first step of a release: the client reads the owner and compares it itself.
func get(s *stage, a Actor) {
	s.expect(s.do(a, "GET", lockName) == a.String(), "the key is the client's own")
}

// comparing returns a lock whose release first compares the owner.
func comparing(l lock) lock {
	l.check = get
	return l
}

// getset acquires a lock whose value is its expiry. The clock of A shows 100, and that of B
// 200.
func getset(s *stage, a Actor) bool {
	clock := map[Actor]int{A: 100, B: 200}[a]
	expires := strconv.Itoa(clock + 30)
	if s.do(a, "SETNX", lockName, expires) == "1" {
		return true
	}
	theirs := s.do(a, "GET", lockName)
	end, err := strconv.Atoi(theirs)
	s.must(err)
	s.expect(end < clock, "the lock looks expired")
	s.note(a, fmt.Sprintf("%d is past: replaces it", end))
	return s.do(a, "GETSET", lockName, expires) == theirs
}

// paused returns a story in which A is paused between its last check of the lock and its
// write. B gets the lock and writes. write sends a write with the client's fencing token.
func paused(write func(s *stage, a Actor, value string, token uint64)) func(*stage) {
	return func(s *stage) {
		right.on(s)
		s.expect(right.take(s, A), "A gets the lock")
		token := s.locks[A].Token()
		s.stall(A, "sees its lock; is paused")
		right.expire(s)
		s.expect(right.take(s, B), "B gets the lock")
		write(s, B, "new", s.locks[B].Token())
		s.resume(A, "continues, and writes")
		write(s, A, "old", token)
		if s.command("HGET", "data", "value") != "new" {
			s.violate("A's late write has replaced B's: an update is lost.")
		}
		s.survive("The guard has seen B's larger token and refuses A's write.")
	}
}

// guard is a script that refuses a token smaller than the largest one so far.
const guard = `if tonumber(ARGV[1]) < tonumber(redis.call('HGET', KEYS[1], 'token') or 0) then return 'refused' end
redis.call('HSET', KEYS[1], 'token', ARGV[1], 'value', ARGV[2]) return 'OK'`

// failover returns a story in which the primary dies while only it has A's lock. The
// replica that replaces it has a replica of its own. query makes the store wait for
// replicas.
func failover(take func(*stage, Actor, *servers.Redis) bool, query string) func(*stage) {
	return func(s *stage) {
		dir := s.set.scratch(s)
		primary := s.startRedis(filepath.Join(dir, "primary"))
		link, err := servers.NewProxy(primary.Address())
		s.must(err)
		s.cleanUp(link.Close)
		replica := s.startRedis(filepath.Join(dir, "replica"), "--replicaof", strings.Replace(link.Address(), ":", " ", 1))
		third := s.startRedis(filepath.Join(dir, "third"), "--replicaof", strings.Replace(replica.Address(), ":", " ", 1))
		s.must((&servers.RedisReplicas{Primary: primary, Replicas: []*servers.Redis{replica}}).Linked(s.ctx))
		now := primary
		s.url = func(a Actor) string { return "redis://" + s.link(a, now.Address()) + query }
		link.Cut()
		s.note(Server, "replica lags")
		take(s, A, primary)
		primary.Kill()
		s.commandAt(replica, "REPLICAOF", "NO", "ONE")
		s.note(Server, "new primary")
		s.must((&servers.RedisReplicas{Primary: replica, Replicas: []*servers.Redis{third}}).Linked(s.ctx))
		now = replica
		for _, p := range s.links[A] {
			s.must(p.Redirect(replica.Address()))
		}
		s.expect(take(s, B, replica), "B gets the lock")
		s.survive("A was not granted a lock that no replica has. B alone has it.")
	}
}

// restarted returns a story in which A has the votes of servers 1 and 2 of three. Then
// server 2 restarts empty.
func restarted(take func(s *stage, a Actor, fleet []*servers.Redis, reach []int) bool) func(*stage) {
	return func(s *stage) {
		dir := s.set.scratch(s)
		var fleet []*servers.Redis
		for i := range 3 {
			fleet = append(fleet, s.startRedis(filepath.Join(dir, strconv.Itoa(i+1))))
		}
		s.url = func(a Actor) string {
			q := url.Values{"max_ttl": {long.String()}}
			for _, r := range fleet {
				q.Add("node", s.link(a, r.Address()))
			}
			return "redlock://?" + q.Encode()
		}
		s.expect(take(s, A, fleet, []int{1, 2}), "A gets two votes of three")
		err := fleet[1].RestartEmpty(s.ctx)
		s.expect(err == nil, fmt.Sprintf("server 2 restarts on its port: %v", err))
		s.note(Server, "2 restarts empty")
		take(s, B, fleet, []int{1, 2, 3})
		s.survive("Server 2 has no vote until each lock that it may have lost is over.")
	}
}

// votes acquires a Redlock as most clients do: the client has the lock if most servers vote
// for it.
func votes(s *stage, a Actor, fleet []*servers.Redis, reach []int) bool {
	n := 0
	for _, i := range reach {
		v := s.commandAt(fleet[i-1], "SET", lockName, a.String(), "NX", "PX", millis(long))
		s.step(a, fmt.Sprintf("SET lock %s NX on %d", a, i), explain("SET", v))
		if v == "OK" {
			n++
		}
	}
	if n < 2 {
		return false
	}
	s.enter(a, nil)
	return true
}

// redlock acquires a lock of holdfast on three servers.
func redlock(s *stage, a Actor, fleet []*servers.Redis, reach []int) bool {
	if a == A {
		// With fresh=true the servers of a new fleet have a vote at once.
		l, err := holdfast.Open(s.ctx, s.url(Server)+"&fresh=true")
		s.must(err)
		defer l.Close(context.WithoutCancel(s.ctx))
		s.must(l.Ping(s.ctx))
	}
	s.locker(a)
	for i, p := range s.links[a] {
		if len(reach) <= i {
			p.Cut()
		}
	}
	return s.tryLock(a, long)
}

// writePlain sends a write without the token.
func writePlain(s *stage, a Actor, value string, _ uint64) {
	v := s.command("HSET", "data", "value", value)
	s.step(a, "HSET data value "+value, explain("HSET", v))
}

// writeGuarded sends a write with the token.
func writeGuarded(s *stage, a Actor, value string, token uint64) {
	v := s.command("EVAL", guard, "1", "data", strconv.FormatUint(token, 10), value)
	s.step(a, "write "+value+" with my token", v)
}

// setOn acquires the lock on one server, without regard to its replicas.
func setOn(s *stage, a Actor, r *servers.Redis) bool {
	v := s.commandAt(r, "SET", lockName, a.String(), "NX", "PX", millis(long))
	s.step(a, "SET lock "+a.String()+" NX PX "+millis(long), v)
	if v == "OK" {
		s.enter(a, nil)
	}
	return v == "OK"
}

// lockReplicated acquires a lock of holdfast that waits for a replica. A finds none.
func lockReplicated(s *stage, a Actor, _ *servers.Redis) bool {
	if a == B {
		return s.tryLock(a, long)
	}
	_, err := s.locker(a).TryLock(s.ctx, lockName, holdfast.TTL(long))
	s.expect(errors.Is(err, holdfast.ErrUnavailable), fmt.Sprintf("no replica acknowledges: %v", err))
	s.step(a, "TryLock(\"lock\")", "no replica has it")
	return false
}
