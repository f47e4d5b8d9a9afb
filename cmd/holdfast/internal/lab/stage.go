//go:build linux || darwin

package lab

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/check"
	"github.com/holdfast-go/holdfast/internal/servers"
	"github.com/holdfast-go/holdfast/internal/story"
)

// Actor is a column of the drawing.
type Actor = story.Actor

// The actors.
const (
	A      = story.A      // the client on the left
	Server = story.Server // the server
	B      = story.B      // the client on the right
)

// Step is one line of the drawing.
type Step = story.Step

// Run is one play of a story.
type Run struct {
	Steps []Step
	// Violated reports whether the lock failed: two clients had it at the same time, or no
	// client can ever have it. Outcome describes the outcome in a sentence.
	Violated bool
	Outcome  string
	// Stalls reports whether a client stalls or crashes.
	Stalls bool
	// Apart reports whether each client has a lock of its own. Then both may hold one.
	Apart bool
}

// Result is the outcome of a story.
type Result struct {
	Mistake      Mistake
	Story        Story
	Wrong, Right Run
}

// Stalls explains to readers how a client stops in a Run with Stalls.
const Stalls = "How A stops here: it makes no step, and its connection carries nothing."

// OK reports whether the story had the expected outcome: the wrong lock failed, and
// holdfast did not.
func (r *Result) OK() bool { return r.Wrong.Violated && !r.Right.Violated }

// attempts limits how often Play repeats a play that the machine disturbed. A client that
// stands still for longer than its lease does not follow the story.
const attempts = 5

// Play plays a story on the servers of a set: first the wrong lock, then holdfast. If the
// server is not installed, the error wraps [servers.ErrNotInstalled].
func Play(ctx context.Context, name string, set *Set) (*Result, error) {
	m, y, ok := FindStory(name)
	if !ok {
		return nil, &check.ConfigError{Text: fmt.Sprintf("no story %q", name)}
	}
	r := &Result{Mistake: m, Story: y}
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

// errDisturbed marks a play in which a step had another outcome than in the story.
var errDisturbed = errors.New("the play left the story")

// abort carries an error out of a play by a panic.
type abort struct{ err error }

// stage has the state of one play. Its methods end the play if a step fails.
type stage struct {
	ctx     context.Context
	set     *Set
	run     Run
	ends    []func()
	url     func(Actor) string // the URL of the store of a client's Locker
	links   [3][]*servers.Proxy
	lockers [3]*holdfast.Locker
	locks   [3]*holdfast.Lock
	// inside reports, for each client, whether it relies on the lock. It is nil for a
	// client without the lock.
	inside [3]func() bool
}

// play makes the steps, and then ends everything that the steps have started.
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

// must ends the play with err, unless err is nil.
func (s *stage) must(err error) {
	if err != nil {
		panic(abort{err})
	}
}

// expect ends the play if a step had another outcome than in the story. Then Play repeats
// the play.
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

// note records an action without a request.
func (s *stage) note(a Actor, text string) {
	s.record(Step{Actor: a, Text: text})
}

// enter records that a client relies on the lock from the last step on. That ends with
// leave, or when still returns false, unless still is nil. If the other client also relies
// on the lock, the lock is violated, unless the run is Apart.
func (s *stage) enter(a Actor, still func() bool) {
	if still == nil {
		still = func() bool { return true }
	}
	s.inside[a] = still
	s.run.Steps[len(s.run.Steps)-1].Holds[a] = true
	if other := s.inside[a.Other()]; other != nil && other() && !s.run.Apart {
		s.violate("A and B have the lock at the same time.")
	}
}

// leave records that a client no longer relies on the lock.
func (s *stage) leave(a Actor) { s.inside[a] = nil }

// violate records the first failure of the lock. It ignores later ones.
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

// link returns the address of a new proxy in front of an address. The proxy is the client's
// link to that address.
func (s *stage) link(a Actor, address string) string {
	p, err := servers.NewProxy(address)
	s.must(err)
	s.cleanUp(p.Close)
	s.links[a] = append(s.links[a], p)
	return p.Address()
}

// stall stops a client. Its links carry nothing until resume, and the story makes no step
// of the client.
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

// locker returns the client's Locker, and opens it first if necessary.
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
		// If the server has ended, it confirms no release, so Close has a timeout.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(s.ctx), 2*time.Second)
		defer cancel()
		_ = l.Close(ctx)
	})
	return l
}

// lockName is the name of every story's lock.
const lockName = "lock"

// tryLock acquires the story's lock with holdfast, and reports whether it is granted.
func (s *stage) tryLock(a Actor, ttl time.Duration) bool { return s.tryLockName(a, lockName, ttl) }

// tryLockName is tryLock for another name.
func (s *stage) tryLockName(a Actor, name string, ttl time.Duration) bool {
	k, err := s.locker(a).TryLock(s.ctx, name, holdfast.TTL(ttl))
	return s.took(a, fmt.Sprintf("TryLock(%q)", name), k, err)
}

// took records the answer to a request for a lock, and reports whether it is granted.
func (s *stage) took(a Actor, text string, k *holdfast.Lock, err error) bool {
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

// unlock releases the lock that tryLock has acquired.
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

// left returns the time until the story's lock expires, and reports whether the lock has a
// holder. It reads both from the store as client B.
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
