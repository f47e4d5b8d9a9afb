//go:build linux || darwin

package story

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/check/servers"
)

// Story is a way in which locks go wrong, and its replay.
type Story struct {
	// Name is a short word for the command line, Title a line for a list.
	Name, Title string
	// Mistake is the name of the same mistake in package lab.
	Mistake string
	// Server is the title of the column between the two clients: "Redis".
	Server string
	// Code is what the wrong program does, and Tale what happens then, for readers without
	// experience of locks. Lesson is the last sentence of the drawing.
	Code, Tale, Lesson string
	// wrong and right make the steps, without the expected outcome.
	wrong, right func(*stage)
}

// Stories returns all stories, sorted by server, in the order of the page.
func Stories() []Story {
	return slices.Concat(redisStories, fileStories, zookeeperStories, etcdStories, sqlStories)
}

// Find returns the story of a name.
func Find(name string) (Story, bool) {
	all := Stories()
	i := slices.IndexFunc(all, func(s Story) bool { return s.Name == name })
	if i < 0 {
		return Story{}, false
	}
	return all[i], true
}

// Actor is a column of the drawing.
type Actor int

// The actors.
const (
	A      Actor = iota // the client on the left
	Server              // the server
	B                   // the client on the right
)

// String returns "A", "B" or "server".
func (a Actor) String() string { return [...]string{"A", "server", "B"}[a] }

func (a Actor) other() Actor { return B - a }

// step is one line of the drawing.
type Step struct {
	Actor Actor
	// Text is the request, at most 25 characters, or what the actor does by itself, at most
	// 27, of the server 17.
	Text string
	// Answer is the server's answer, at most 17 characters. A step without one has no arrow.
	Answer string
	// Holds are the clients that rely on the lock after this step.
	Holds [3]bool
}

// Run is one play of a story.
type Run struct {
	Steps []Step
	// Violated reports that the lock failed: two clients had it at the same time, or no
	// client can ever have it. Outcome is the sentence for it.
	Violated bool
	Outcome  string
	// Stalls reports that a client stalls or crashes.
	Stalls bool
	// Apart reports that each client has a lock of its own, so both may have one.
	Apart bool
}

// Result is a story that was played.
type Result struct {
	Story        Story
	Wrong, Right Run
}

// Stalls is the sentence for readers of a Run with Stalls.
const Stalls = "How A stops here: it makes no step, and its connection carries nothing."

// OK reports whether the story came out as it should: the wrong lock failed, and holdfast
// survived.
func (r *Result) OK() bool { return r.Wrong.Violated && !r.Right.Violated }

// attempts is how often a play is repeated that the machine disturbed: a client that stands
// still for longer than its lease does not follow the story.
const attempts = 5

// Play plays a story on the servers of a set: the wrong lock, then holdfast. The error
// wraps [servers.ErrNotInstalled] if the server is missing.
func Play(ctx context.Context, y Story, set *Set) (*Result, error) {
	r := &Result{Story: y}
	for _, part := range []struct {
		run  *Run
		play func(*stage)
	}{{&r.Wrong, y.wrong}, {&r.Right, y.right}} {
		var err error
		for range attempts {
			s := &stage{ctx: ctx, set: set, run: Run{}}
			if err = s.play(part.play); !errors.Is(err, errDisturbed) {
				*part.run = s.run
				break
			}
		}
		if err != nil {
			return nil, fmt.Errorf("story %s: %w", y.Name, err)
		}
	}
	return r, nil
}

// errDisturbed marks a play in which a step did not come out as the story has it.
var errDisturbed = errors.New("the play left the story")

// abort carries an error out of a story.
type abort struct{ err error }

// stage is where a story is played. Its methods end the play if a step fails.
type stage struct {
	ctx     context.Context
	set     *Set
	run     Run
	ends    []func()
	url     func(Actor) string // of holdfast's store
	links   [3][]*servers.Proxy
	lockers [3]*holdfast.Locker
	locks   [3]*holdfast.Lock
	// inside reports whether a client relies on the lock; nil if it has none.
	inside [3]func() bool
}

// play makes the steps and ends everything that they started.
func (s *stage) play(f func(*stage)) (err error) {
	defer func() {
		for _, end := range slices.Backward(s.ends) {
			end()
		}
	}()
	defer func() {
		switch r := recover().(type) {
		case nil:
		case abort:
			err = r.err
		default:
			panic(r)
		}
	}()
	f(s)
	return nil
}

func (s *stage) cleanUp(f func()) { s.ends = append(s.ends, f) }

// must ends the play with an error.
func (s *stage) must(err error) {
	if err != nil {
		panic(abort{err})
	}
}

// expect ends the play, to begin it again, if a step did not come out as the story has it.
func (s *stage) expect(ok bool, what string) {
	if !ok {
		var steps strings.Builder
		for _, t := range s.run.Steps {
			fmt.Fprintf(&steps, "\n%s: %s: %s", t.Actor, t.Text, t.Answer)
		}
		panic(abort{fmt.Errorf("%w: expected: %s; steps:%s", errDisturbed, what, &steps)})
	}
}

// until polls the server until ok returns true.
func (s *stage) until(what string, ok func() bool) {
	for end := time.Now().Add(time.Minute); !ok(); time.Sleep(5 * time.Millisecond) {
		s.must(s.ctx.Err())
		if time.Now().After(end) {
			s.must(fmt.Errorf("waited a minute until %s", what))
		}
	}
}

// step records a request and its answer.
func (s *stage) step(a Actor, text string, answer any) {
	s.record(Step{Actor: a, Text: text, Answer: fmt.Sprint(answer)})
}

func (s *stage) record(t Step) {
	for a, still := range s.inside {
		t.Holds[a] = still != nil
	}
	s.run.Steps = append(s.run.Steps, t)
}

// note records what an actor does by itself.
func (s *stage) note(a Actor, text string) {
	s.record(Step{Actor: a, Text: text})
}

// enter records that a client relies on the lock from the last step on, until leave or until
// still, if there is one, returns false. The lock is violated if the other client relies on it,
// unless the run is Apart.
func (s *stage) enter(a Actor, still func() bool) {
	if still == nil {
		still = func() bool { return true }
	}
	s.inside[a] = still
	s.run.Steps[len(s.run.Steps)-1].Holds[a] = true
	if other := s.inside[a.other()]; other != nil && other() && !s.run.Apart {
		s.violate("A and B have the lock at the same time.")
	}
}

// leave records that a client no longer relies on the lock.
func (s *stage) leave(a Actor) { s.inside[a] = nil }

// violate records a failure of the lock. The first one counts.
func (s *stage) violate(outcome string) {
	if !s.run.Violated {
		s.run.Violated, s.run.Outcome = true, outcome
	}
}

// survive sets the outcome of a lock that has not failed.
func (s *stage) survive(outcome string) {
	if !s.run.Violated {
		s.run.Outcome = outcome
	}
}

// link returns the address of a proxy in front of an address: a client's link to it.
func (s *stage) link(a Actor, address string) string {
	p, err := servers.NewProxy(address)
	s.must(err)
	s.cleanUp(p.Close)
	s.links[a] = append(s.links[a], p)
	return p.Address()
}

// stall stops a client: its links carry nothing until resume, and the story has no step
// for it.
func (s *stage) stall(a Actor, text string) {
	for _, p := range s.links[a] {
		p.Cut()
	}
	s.run.Stalls = true
	s.note(a, text)
}

func (s *stage) resume(a Actor, text string) {
	for _, p := range s.links[a] {
		s.must(p.Heal())
	}
	s.note(a, text)
}

func (s *stage) crash(a Actor, text string) {
	s.leave(a)
	s.stall(a, text)
}

// locker returns a client's Locker on the story's store.
func (s *stage) locker(a Actor) *holdfast.Locker {
	if l := s.lockers[a]; l != nil {
		return l
	}
	l, err := holdfast.Open(s.ctx, s.url(a))
	s.must(err)
	s.lockers[a] = l
	s.cleanUp(func() {
		for _, p := range s.links[a] {
			_ = p.Heal()
		}
		if k := s.locks[a]; k != nil {
			_ = k.Unlock()
		}
		// A grant on a server that has ended is not confirmed; it ends with the server.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(s.ctx), 2*time.Second)
		defer cancel()
		_ = l.Close(ctx)
	})
	return l
}

// the name of every story's lock.
const lockName = "lock"

// tryLock acquires the story's lock with holdfast, and reports whether it is granted.
func (s *stage) tryLock(a Actor, ttl time.Duration) bool { return s.tryLockName(a, lockName, ttl) }

// tryLockName is TryLock of another name.
func (s *stage) tryLockName(a Actor, name string, ttl time.Duration) bool {
	k, err := s.locker(a).TryLock(s.ctx, name, holdfast.TTL(ttl))
	text := fmt.Sprintf("TryLock(%q)", name)
	if errors.Is(err, holdfast.ErrBusy) {
		s.step(a, text, "busy")
		return false
	}
	if errors.Is(err, holdfast.ErrLost) || errors.Is(err, holdfast.ErrUnavailable) {
		s.expect(false, fmt.Sprintf("%s grants or is busy: %v", text, err))
	}
	s.must(err)
	s.step(a, text, "granted")
	s.locks[a] = k
	s.enter(a, func() bool { return k.Context().Err() == nil })
	return true
}

// unlock releases what TryLock acquired.
func (s *stage) unlock(a Actor) {
	s.leave(a)
	err := s.locks[a].Unlock()
	s.locks[a] = nil
	switch {
	case errors.Is(err, holdfast.ErrLost):
		s.step(a, "Unlock()", "refused: lost")
	default:
		s.must(err)
		s.step(a, "Unlock()", "released")
	}
}

// left returns how long the lease of the story's lock lasts, and whether it is held, by the
// store's own answer to B.
func (s *stage) left() (time.Duration, bool) {
	st, err := s.locker(B).Inspect(s.ctx, lockName)
	s.expect(err == nil, fmt.Sprintf("the store shows the lock: %v", err))
	if len(st.Holders) == 0 {
		return 0, false
	}
	return st.Holders[0].TTL, true
}

// expired waits until the store has expired the lease of the story's lock.
func (s *stage) expired() {
	s.until("the lease has expired", func() bool {
		_, held := s.left()
		return !held
	})
	for a, still := range s.inside {
		if still != nil && !still() {
			s.leave(Actor(a))
		}
	}
	s.note(Server, "lease expires")
}
