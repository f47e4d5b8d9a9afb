//go:build linux || darwin

package story

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/check/servers"
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
	r := server(s, "redis", func(ctx context.Context, dir string) (*servers.Redis, func(), error) {
		r, err := servers.StartRedis(ctx, dir)
		if err != nil {
			return nil, nil, err
		}
		return r, r.Kill, nil
	})
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
	return s.do(a, "SET", lockName, a.String(), "NX", "PX", millis(ttl(a))) == "OK"
}

// setnx acquires the lock with SETNX, without an expiry.
func setnx(s *stage, a Actor) bool { return s.do(a, "SETNX", lockName, a.String()) == "1" }

// del releases the lock without a comparison of the owner.
func del(s *stage, a Actor) { s.do(a, "DEL", lockName) }

// get is the first step of a release: the client reads the owner and compares it itself.
func get(s *stage, a Actor) {
	s.expect(s.do(a, "GET", lockName) == a.String(), "the key is the client's own")
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

var redisStories = []Story{
	{
		Name: "setnx-forever", Title: "SETNX without an expiry, and a crash", Mistake: "never-expires", Server: "Redis",
		Code:   "SETNX lock A",
		Tale:   "Client A writes a key to keep the others out, and means to delete it after its work. It crashes in between. The key has no time limit, so it stays, and every other client waits for a process that no longer exists.",
		Lesson: "A lock needs an expiry, because its holder can die.",
		wrong:  crash(byHand(setnx, del), "crashes"),
		right:  crash(right, "crashes"),
	},
	{
		Name: "expire-too-late", Title: "SETNX, then EXPIRE, and a crash between them", Mistake: "never-expires", Server: "Redis",
		Code:   "SETNX lock A; EXPIRE lock 1",
		Tale:   "This program gives the key a time limit, but in a second request. Client A crashes between the two requests, so the time limit never arrives, and the lock stands forever again.",
		Lesson: "The lock and its expiry must be one request: SET with NX and PX.",
		wrong:  crash(byHand(setnx, del), "crashes before EXPIRE"),
		right:  crash(right, "crashes"),
	},
	{
		Name: "getset-clocks", Title: "the expiry kept as a value, and two clocks", Mistake: "client-clock", Server: "Redis",
		Code:   "SETNX lock END; GET lock; if END is past: GETSET lock END",
		Tale:   "The clients write into the key when their lock ends, by their own clocks. A's clock shows 100, and A writes 130. B's clock shows 200 at the same moment, so the lock that A has just taken looks expired to B, and B takes it over while A works.",
		Lesson: "Only one clock may decide that a lock has expired: the server's.",
		wrong:  race(byHand(getset, del), "clock shows 200, A's is 100", ""),
		right:  race(holdfastOn(right.on, long), "clock shows 200, A's is 100", "B finds the lock held, whatever its clock says."),
	},
	{
		Name: "late-delete", Title: "a release that does not compare the owner", Mistake: "delete-anyones", Server: "Redis",
		Code:   "SET lock A NX PX 1000 ... DEL lock",
		Tale:   "Client A has finished its work, but stalls before it releases the lock, and the lock expires. Client B gets it and works. Then A deletes the key, which is B's by now. A's next job finds no key and starts beside B.",
		Lesson: "A release must compare the owner: delete only your own lock.",
		wrong:  lateRelease(byHand(setNX, del)),
		right:  lateRelease(right),
	},
	{
		Name: "late-compare", Title: "GET, compare, DEL: a release in two requests", Mistake: "compare-then-delete", Server: "Redis",
		Code:   "if GET lock is A: DEL lock",
		Tale:   "Client A looks first whether the lock is still its own. It is. Then A stalls, the lock expires, and B gets it. A continues where it stopped, and deletes B's lock. What A saw was true, but no longer is.",
		Lesson: "Compare and delete must be one step at the server: a script.",
		wrong: func() func(*stage) {
			l := byHand(setNX, del)
			l.check = get
			return lateRelease(l)
		}(),
		right: lateRelease(right),
	},
	{
		Name: "work-too-long", Title: "work that takes longer than the TTL", Mistake: "no-renewal", Server: "Redis",
		Code:   "SET lock A NX PX 1000; work for a minute; release",
		Tale:   "The lock has a time limit, and the work takes longer than expected. The server ends the lock while A still works, and B starts beside it.",
		Lesson: "Renew while the work lasts, and stop when it cannot be renewed.",
		wrong:  longWork(byHand(setNX, del)),
		right:  longWork(holdfastOn(right.on, 2*short)),
	},
	{
		Name: "paused-writer", Title: "a paused process, with and without a guard", Mistake: "constant-token", Server: "Redis",
		Code:   "if the lock is mine: write",
		Tale:   "Even a lock that is renewed ends when its holder is paused: by a garbage collection, by a machine that sleeps. A has looked at its lock, is paused, and writes later, without a chance to look again. Both plays use the same right lock. In the second one the data refuses the write: each grant has a number, the fencing token, and the data accepts no smaller number than it has seen.",
		Lesson: "A lock cannot stop a paused writer. The data can: with a fencing token.",
		wrong: paused(func(s *stage, a Actor, value string, _ uint64) {
			v := s.command("HSET", "data", "value", value)
			s.step(a, "HSET data value "+value, explain("HSET", v))
		}),
		right: paused(func(s *stage, a Actor, value string, token uint64) {
			v := s.command("EVAL", guard, "1", "data", strconv.FormatUint(token, 10), value)
			s.step(a, "write "+value+" with my token", v)
		}),
	},
	{
		Name: "lost-failover", Title: "a failover before the replica has the lock", Mistake: "forgetful-failover", Server: "Redis",
		Code:   "SET lock A NX on the primary",
		Tale:   "Redis answers before its replica has the data. The primary grants the lock to A and dies, and the replica, which takes over, does not have the lock. B gets it while A works.",
		Lesson: "A grant counts when the replica has it, or the token guards the data.",
		wrong: failover(func(s *stage, a Actor, r *servers.Redis) bool {
			v := s.commandAt(r, "SET", lockName, a.String(), "NX", "PX", millis(long))
			s.step(a, "SET lock "+a.String()+" NX PX "+millis(long), v)
			if v == "OK" {
				s.enter(a, nil)
			}
			return v == "OK"
		}, ""),
		right: failover(func(s *stage, a Actor, _ *servers.Redis) bool {
			if a == B {
				return s.tryLock(a, long)
			}
			_, err := s.locker(a).TryLock(s.ctx, lockName, holdfast.TTL(long))
			s.expect(errors.Is(err, holdfast.ErrUnavailable), fmt.Sprintf("no replica acknowledges: %v", err))
			s.step(a, "TryLock(\"lock\")", "no replica has it")
			return false
		}, "?replicas=1&replica_wait=1s"),
	},
	{
		Name: "redlock-restart", Title: "Redlock, and a server that restarts empty", Mistake: "forgetful-failover", Server: "Redis 1, 2, 3",
		Code:   "SET lock A NX on three servers: two are enough",
		Tale:   "Three servers vote, and two votes are a lock. A has the votes of 1 and 2. Server 2 restarts without its data, has forgotten its vote, and votes for B. Now B has two votes as well.",
		Lesson: "A server that may have lost votes must not vote until they are over.",
		wrong:  restarted(votes),
		right:  restarted(redlock),
	},
}
