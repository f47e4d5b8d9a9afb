//go:build linux || darwin

package check

import (
	"fmt"
	"iter"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// Step is one lock that a worker takes.
type Step struct {
	// Think is the pause before it.
	Think time.Duration
	// Names are taken together, all or nothing; mostly there is one.
	Names []string
	Limit int
	TTL   time.Duration
	// Try does not wait; Wait bounds the waiting, if it is not 0; Cancel ends the
	// caller's context that long after the request, if it has no answer by then.
	Try          bool
	Wait, Cancel time.Duration
	// Hold is how long the lock is held.
	Hold time.Duration
	// Careless work does not look at its context before it writes, as much code
	// does not: it is what tokens are for.
	Careless bool
}

// Fault is one thing that is done to the workers or to the store.
type Fault struct {
	// At is when, from the beginning of the round, and For how long it lasts.
	At, For time.Duration
	Kind    string
	// Worker is the number of the worker concerned, and Name the name, where the
	// fault has one.
	Worker int
	Name   string
	// N is a number whose meaning is the kind's own: a delay's share, an outcome.
	N int
}

// The streams of random numbers that one seed gives.
const (
	streamFaults = iota + 1
	streamSteps
)

func source(seed uint64, stream, worker, life, lane int) *rand.Rand {
	return rand.New(rand.NewPCG(seed, uint64(stream)<<48|uint64(worker)<<32|uint64(life)<<16|uint64(lane)))
}

func nameOf(i int) string { return fmt.Sprintf("name-%d", i) }

// between is a duration from a to b.
func between(r *rand.Rand, a, b time.Duration) time.Duration { return a + upTo(r, b-a) }

func upTo(r *rand.Rand, d time.Duration) time.Duration {
	if d <= 0 {
		return 0
	}
	return time.Duration(r.Int64N(int64(d)))
}

// ttlFactors are drawn from for how much longer than the configured TTL a lock asks for:
// mostly not at all, so that leases run out within a round, and up to sixteen times, so that
// the deadlines of a name, a client and a session differ.
var ttlFactors = [...]time.Duration{1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 4, 4, 8, 8, 16, 16}

// longest is the longest TTL that a lock asks for.
func (c *Config) longest(g *driver.Guarantees) time.Duration {
	if g.MaxTTL == 0 {
		return c.TTL // grants do not run out
	}
	return max(c.TTL, min(ttlFactors[len(ttlFactors)-1]*c.TTL, g.MaxTTL))
}

// patience is how long waiters have, once no new locks are taken, to be served: those
// behind a holder that was killed wait until its lease has run out.
func (c *Config) patience(g *driver.Guarantees) time.Duration {
	return max(8*time.Second, c.longest(g)+2*time.Second)
}

// sparse reports whether a round has long TTLs and names that are mostly free: each third
// has. What a store keeps of a name comes and goes all the time in it.
func sparse(round int) bool { return round%3 == 2 }

// sparseNames is how many times as many names a sparse round has.
const sparseNames = 40

// length is how long a round lasts: the first ones are short, so that a gross mistake is
// shown in seconds.
func (c *Config) length(round int) time.Duration {
	switch round {
	case 0:
		return min(c.Round, 5*time.Second)
	case 1:
		return min(c.Round, 10*time.Second)
	}
	return c.Round
}

// Steps is the work of one goroutine of one life of a worker, without end. It
// depends on the configuration alone.
func (c *Config) Steps(round, worker, life, lane int, g *driver.Guarantees) iter.Seq[Step] {
	r := source(c.Seed+uint64(round)*1_000_003, streamSteps, worker, life, lane)
	longest := c.longest(g)
	names := c.Names
	if sparse(round) {
		names *= sparseNames
	}
	// Where there are semaphores alone each name has one limit.
	oneLimit := g.Semaphore && !g.Shared && !g.Mixed
	return func(yield func(Step) bool) {
		for {
			s := Step{Think: between(r, 0, 5*time.Millisecond), TTL: c.TTL, Limit: driver.Exclusive}
			factor, name := ttlFactors[r.IntN(len(ttlFactors))], r.IntN(names)
			if sparse(round) {
				factor = max(4, factor)
			}
			s.TTL = min(factor*c.TTL, longest)
			s.Names = []string{nameOf(name)}
			kind, hold, wait := r.IntN(20), r.IntN(100), r.IntN(20)
			other, permits := r.IntN(names), 2+r.IntN(2)
			if kind >= 12 && !sparse(round) {
				// The goroutines of a worker meet at one name with equal options and short
				// holds, so that leases are handed off inside the process.
				name = 0
				s.Names, s.TTL, s.Think = []string{nameOf(name)}, c.TTL, s.Think/8
				hold = max(hold, c.Long+19)
			}
			switch {
			case kind < 4 && g.Shared && (g.Mixed || name%3 == 1):
				s.Limit = driver.Unlimited
			case kind < 8 && g.Semaphore && (g.Mixed || name%3 == 2):
				s.Limit = permits
			case kind < 9 && other != name && (!oneLimit || other%3 == name%3):
				s.Names = append(s.Names, nameOf(other))
			}
			if oneLimit {
				s.Limit = 1 + name%3
			}
			switch {
			case hold < c.Long: // needs renewing several times, unless it is held for too long
				s.Hold = min(between(r, s.TTL, 3*s.TTL), between(r, c.TTL, 8*c.TTL))
			case hold < c.Long+3:
				s.Hold = between(r, c.TTL/4, c.TTL)
			case hold < c.Long+19:
				s.Hold = between(r, 0, 20*time.Millisecond)
			default:
				s.Hold = between(r, 0, time.Millisecond)
			}
			bound := between(r, time.Millisecond, c.TTL)
			s.Careless = r.IntN(4) == 0
			switch {
			case wait == 0:
				s.Try = true
			case wait < 3:
				s.Wait = bound
			case wait < 5:
				s.Cancel = bound
			}
			if !yield(s) {
				return
			}
		}
	}
}

// faults is what is done in a round, in order of time. Nothing is done near its
// end, so that what was disturbed can settle.
func (c *Config) faults(round int, kinds []string, length time.Duration) []Fault {
	if len(kinds) == 0 {
		return nil
	}
	r := source(c.Seed+uint64(round)*1_000_003, streamFaults, 0, 0, 0)
	var all []Fault
	busy := make([]time.Duration, c.Workers) // until then it has a fault of its own
	end := length - settle(c.TTL, length)
	order := r.Perm(len(kinds))
	for i, at := 0, between(r, 0, c.TTL/2); ; i++ {
		if i > 0 && i%len(kinds) == 0 {
			order = r.Perm(len(kinds))
		}
		f := Fault{
			At: at, For: between(r, c.TTL/4, 2*c.TTL), Kind: kinds[order[i%len(kinds)]],
			Worker: r.IntN(c.Workers), Name: nameOf(r.IntN(c.Names)), N: r.IntN(1000),
		}
		if slices.Contains(beyondTTL, f.Kind) {
			f.For = between(r, 5*c.TTL/4, 2*c.TTL)
		}
		f.At = max(f.At, busy[f.Worker])
		if f.At+f.For > end {
			return all
		}
		busy[f.Worker] = f.At + f.For + c.TTL/4
		all = append(all, f)
		at += between(r, c.TTL/8, c.TTL/2)
	}
}

// settle is the quiet end of a round.
func settle(ttl, length time.Duration) time.Duration { return min(2*ttl, length/3) }
