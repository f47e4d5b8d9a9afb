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

// plannedLock is one lock that a worker takes.
type plannedLock struct {
	// Delay is the pause before the request.
	Delay time.Duration
	// Names are locked together, all or none. Most steps have one name.
	Names []string
	Limit int
	TTL   time.Duration
	// Try requests the lock without waiting. Wait, unless it is 0, limits the time that the
	// request waits. Cancel, unless it is 0, ends the caller's context after that time if
	// the request still waits.
	Try          bool
	Wait, Cancel time.Duration
	// Hold is the time for which the worker holds the lock. MinHold is the time for which the
	// lock must stand, even if it is unlocked earlier.
	Hold, MinHold time.Duration
	// Sticky is for how long the Locker may keep the lock after its Unlock.
	Sticky time.Duration
	// IgnoresContext is set for work that does not check its context before it writes, as in many
	// real programs.
	// Fencing tokens protect the data against such writes.
	IgnoresContext bool
	// Reenters is set if the worker joins the lock with a second Lock for a moment.
	Reenters bool
}

// Fault is one fault of the workers or of the store.
type Fault struct {
	// At is the time from the beginning of the round to the beginning of the fault. For is
	// the fault's duration.
	At, For time.Duration
	Kind    string
	// Worker is the number of the affected worker. Name is the affected name, if the fault
	// has one.
	Worker int
	Name   string
	// N is a random number. Each kind uses it for its own choice: a delay, a server, an
	// outcome.
	N int
}

// The streams of random numbers that one seed produces.
const (
	streamFaults = iota + 1
	streamSteps
	streamSticky
)

// The goroutines of a worker beside those that planLocks plans, counted from Config.Lanes.
const (
	keptLane = iota
	placeLane
	tickLane
	onceLane
	valueLane
	burstLane
	stickyLane
)

// source returns the random numbers of a stream in a round.
func (c *Config) source(round, stream, worker, life, lane int) *rand.Rand {
	return rand.New(rand.NewPCG(c.Seed+uint64(round)*1_000_003, uint64(stream)<<48|uint64(worker)<<32|uint64(life)<<16|uint64(lane)))
}

func nameOf(i int) string { return fmt.Sprintf("name-%d", i) }

// between returns a random duration from a to b.
func between(r *rand.Rand, a, b time.Duration) time.Duration { return a + upTo(r, b-a) }

func upTo(r *rand.Rand, d time.Duration) time.Duration {
	if d <= 0 {
		return 0
	}
	return time.Duration(r.Int64N(int64(d)))
}

// ttlFactors multiply the configured TTL. Most locks use factor 1, so that leases expire
// within a round. Factors up to sixteen give a name, a client and a session different
// deadlines.
var ttlFactors = [...]time.Duration{1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 4, 4, 8, 8, 16, 16}

// longest returns the longest TTL of a step.
func (c *Config) longest(g *driver.Guarantees) time.Duration {
	if g.MaxTTL == 0 {
		return c.TTL // grants do not expire
	}
	return max(c.TTL, min(ttlFactors[len(ttlFactors)-1]*c.TTL, g.MaxTTL))
}

// waitTimeout returns how long waiters may wait after the last new lock. Waiters behind a
// killed holder wait until its lease has expired. A server may end leases seconds late: etcd
// counts their TTL anew after a restart and an election.
func (c *Config) waitTimeout(g *driver.Guarantees) time.Duration {
	return max(8*time.Second, c.longest(g)+6*time.Second)
}

// sparse reports whether a round has long TTLs and mostly free names, as every third round
// has. In such a round the store creates and removes the data of names frequently.
func sparse(round int) bool { return round%3 == 2 }

// sparseNames multiplies the number of names in a sparse round.
const sparseNames = 40

// length returns the duration of a round. The first ones are short, so that gross mistakes
// show within seconds.
func (c *Config) length(round int) time.Duration {
	switch round {
	case 0:
		return min(c.Round, 5*time.Second)
	case 1:
		return min(c.Round, 10*time.Second)
	}
	return c.Round
}

// endless yields what next returns, again and again.
func endless(next func() plannedLock) iter.Seq[plannedLock] {
	return func(yield func(plannedLock) bool) {
		for yield(next()) {
		}
	}
}

// planLocks yields an endless sequence of locks for one goroutine of one incarnation of a
// worker. The sequence depends only on the arguments and the configuration.
func (c *Config) planLocks(round, worker, life, lane int, g *driver.Guarantees) iter.Seq[plannedLock] {
	r := c.source(round, streamSteps, worker, life, lane)
	longest := c.longest(g)
	names := c.Names
	if sparse(round) {
		names *= sparseNames
	}
	// A store without shared locks and without mixed limits allows only one limit for each
	// name.
	oneLimit := g.Semaphore && !g.Shared && !g.Mixed
	return endless(func() plannedLock {
		s := plannedLock{Delay: between(r, 0, 5*time.Millisecond), TTL: c.TTL, Limit: driver.Exclusive}
		factor, name := ttlFactors[r.IntN(len(ttlFactors))], r.IntN(names)
		if sparse(round) {
			factor = max(4, factor)
		}
		s.TTL = min(factor*c.TTL, longest)
		s.Names = []string{nameOf(name)}
		kind, hold, wait := r.IntN(20), r.IntN(100), r.IntN(20)
		other, permits := r.IntN(names), 2+r.IntN(2)
		if rare := r.IntN(100); rare < readers && g.Shared {
			return c.readers(s, rare, names, longest, r)
		}
		if kind >= 12 && !sparse(round) {
			// The goroutines of a worker meet at one name with equal options and short
			// locks, so that leases are handed off inside the process.
			name = 0
			s.Names, s.TTL, s.Delay = []string{nameOf(name)}, c.TTL, s.Delay/8
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
		case hold < c.Long: // the lease needs several renewals, unless the lock is held too long
			s.Hold = min(between(r, s.TTL, 3*s.TTL), between(r, c.TTL, 8*c.TTL))
		case hold < c.Long+3:
			s.Hold = between(r, c.TTL/4, c.TTL)
		case hold < c.Long+19:
			s.Hold = between(r, 0, 20*time.Millisecond)
		default:
			s.Hold = between(r, 0, time.Millisecond)
		}
		bound := between(r, time.Millisecond, c.TTL)
		s.IgnoresContext = r.IntN(4) == 0
		s.Reenters = r.IntN(8) == 0 && s.Limit == driver.Exclusive && len(s.Names) == 1
		switch {
		case wait == 0:
			s.Try = true
		case wait < 3:
			s.Wait = bound
		case wait < 5:
			s.Cancel = bound
		}
		return s
	})
}

// readers is the percentage of steps that the method readers replaces.
const readers = 6

// readers replaces a step by one at a name without waiters. There, a reader with the
// shortest TTL renews and ends beside a reader with the longest TTL, while writers try. So
// only these two readers decide how long the store keeps the name's data. At other names
// each waiter and each new holder extends that time.
func (c *Config) readers(s plannedLock, which, names int, longest time.Duration, r *rand.Rand) plannedLock {
	s.Names = []string{nameOf(names - names%3 + 4)} // allows shared and exclusive locks, also where limits do not mix
	s.Try = true
	switch which {
	case 0:
		s.Limit, s.TTL, s.Hold = driver.Unlimited, longest, between(r, 2*c.TTL, 6*c.TTL)
	case 1:
		s.Limit, s.TTL, s.Hold = driver.Unlimited, c.TTL, between(r, c.TTL/2, 2*c.TTL)
	default:
		s.TTL, s.Hold = c.TTL, between(r, 0, time.Millisecond)
	}
	return s
}

// keptNames is the number of names whose locks have a MinHold.
const keptNames = 6

// planKept yields an endless sequence of locks with a MinHold, from a half to four times the
// TTL. They have names of their own and one goroutine of each worker, because the other
// locks would wait for them. Most requests do not wait, so that the first grant after a MinHold
// comes as early as the store allows.
func (c *Config) planKept(round, worker, life int) iter.Seq[plannedLock] {
	r := c.source(round, streamSteps, worker, life, c.Lanes+keptLane)
	return endless(func() plannedLock {
		return plannedLock{
			Delay: between(r, 0, 20*time.Millisecond), Names: []string{fmt.Sprintf("kept-%d", r.IntN(keptNames))},
			Limit: driver.Exclusive, TTL: c.TTL, Try: r.IntN(16) != 0,
			Hold: between(r, 0, time.Millisecond), MinHold: between(r, c.TTL/2, 4*c.TTL),
		}
	})
}

// planPlaces yields an endless sequence of locks with two places at a name. Leases of one and of six
// TTLs stand beside one another, and requests that wait and that do not wait compete for them. No request waits for the
// first name: there, no queue entry of a dead client explains a refusal.
func (c *Config) planPlaces(round, worker, life int, g *driver.Guarantees) iter.Seq[plannedLock] {
	r := c.source(round, streamSteps, worker, life, c.Lanes+placeLane)
	return endless(func() plannedLock {
		name := r.IntN(4) / 3 // most for the first name, because a goroutine that waits tries nothing
		s := plannedLock{
			Delay: between(r, 0, 50*time.Millisecond), Names: []string{fmt.Sprintf("place-%d", name)},
			Limit: 2, TTL: c.TTL, Try: name == 0 || r.IntN(2) == 0, Hold: between(r, 0, c.TTL), Wait: 8 * time.Second,
		}
		if r.IntN(3) == 0 {
			s.TTL, s.Hold = min(6*c.TTL, c.longest(g)), between(r, 2*c.TTL, 6*c.TTL)
		}
		return s
	})
}

// faults returns the faults of a round in order of time. None begins near the end, so that
// the workers can recover.
func (c *Config) faults(round int, kinds []string, length time.Duration) []Fault {
	if len(kinds) == 0 {
		return nil
	}
	r := c.source(round, streamFaults, 0, 0, 0)
	var all []Fault
	busy := make([]time.Duration, c.Workers) // when the present fault of each worker ends
	end := length - quietEnd(c.TTL, length)
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
		if f.Kind == faultStall {
			f.For = between(r, 2*time.Second, 4*time.Second)
		}
		if endsWatch(f.Kind) && c.Workers > 2 && f.Worker == round%c.Workers {
			f.Worker = (f.Worker + 1) % c.Workers
		}
		f.At = max(f.At, busy[f.Worker])
		if affectsStore(f.Kind) && meetsRest(f.At, f.At+f.For, length) {
			at += between(r, c.TTL/8, c.TTL/2)
			continue
		}
		if f.At+f.For > end {
			return all
		}
		busy[f.Worker] = f.At + f.For + c.TTL/4
		all = append(all, f)
		at += between(r, c.TTL/8, c.TTL/2)
	}
}

// endsWatch reports whether a fault interrupts what one client observes for seconds, as the ticks that it watches.
// One worker of each round is spared, so that all ticks of the round can be judged.
func endsWatch(kind string) bool {
	return kind == faultClose || slices.Contains(processFaults, kind) || slices.Contains(goroutineFaults, kind)
}

// affectsStore reports whether a fault may affect other clients than those of one worker.
func affectsStore(kind string) bool {
	return kind != faultBreak && !slices.Contains(workerFaults, kind) && !slices.Contains(processFaults, kind) && !slices.Contains(goroutineFaults, kind)
}

// Of each restCycle of a round, the last rest has no new fault of the store. Faults of workers
// continue. So the rule about lateness can judge what dead clients have left.
const (
	restCycle = 12 * time.Second
	rest      = 5 * time.Second
)

// meetsRest reports whether a fault meets a rest of a round. A round that is too short has none.
func meetsRest(from, to, length time.Duration) bool {
	cycle := min(restCycle, length)
	return length >= 8*time.Second && (from/cycle != to/cycle || to%cycle > cycle-rest)
}

// quietEnd returns the length of the quiet end of a round.
func quietEnd(ttl, length time.Duration) time.Duration { return min(2*ttl, length/3) }
