//go:build linux || darwin

package driver

import (
	"math"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// suspended returns for how long the machine was suspended since an arbitrary moment.
func suspended() time.Duration { return suspensions.total() }

var suspensions = suspensionCache{meter: newSuspensionMeter(readClocks), now: processTime}

// suspensionCache saves the two system calls of a suspensionMeter while the machine was
// certainly not suspended: time.Now makes none.
//
// The wall clock runs through a suspend, and the clock of the process does not. So a suspend
// changes their difference by its length. If the difference is still that of the last measurement,
// there was no suspend since. The exception is a suspend after which the wall clock was set back
// by the same length. So a measurement counts for cacheFor at most: after that time the cache
// notices such a suspend.
type suspensionCache struct {
	meter *suspensionMeter
	now   func() (wall, process int64)
	last  atomic.Pointer[measurement]
}

// measurement is a result of a suspensionMeter, with the clocks as they were before it.
type measurement struct {
	wall, process int64
	total         time.Duration
}

// cacheFor is how long a measurement counts, by the clock of the process.
const cacheFor = 10 * time.Millisecond

func (c *suspensionCache) total() time.Duration {
	wall, process := c.now()
	if m := c.last.Load(); m != nil {
		ran := process - m.process
		suspended := wall - m.wall - ran
		if ran >= 0 && ran < int64(cacheFor) && suspended > -int64(clockNoise) && suspended < int64(clockNoise) {
			return m.total
		}
	}
	m := &measurement{wall, process, c.meter.total()}
	c.last.Store(m)
	return m.total
}

var loaded = time.Now()

// processTime reads the wall clock and the clock of the process at one moment.
func processTime() (wall, process int64) {
	now := time.Now()
	return now.UnixNano(), int64(now.Sub(loaded))
}

// suspensionMeter measures the time for which the machine was suspended: the
// difference between a clock that runs through a suspend and one that stops.
//
// The two clocks cannot be read at one moment. The running clock is read first, so that a
// pause of the process between the readings makes the difference too small, never too
// large. The true difference never falls. So the largest difference so far is the best
// estimate, and a pause of the process does not look like a suspend.
type suspensionMeter struct {
	read func() (running, stopping int64, ok bool)
	most atomic.Int64
}

const (
	// calibrations is the number of readings before the first result, so that the
	// process is not paused in each of them.
	calibrations = 8
	// clockNoise is larger than the time between two readings of a process that is not
	// paused. A difference that rises by less is no suspend.
	clockNoise = time.Millisecond
)

func newSuspensionMeter(read func() (running, stopping int64, ok bool)) *suspensionMeter {
	m := &suspensionMeter{read: read}
	most := int64(math.MinInt64)
	for range calibrations {
		if running, stopping, ok := read(); ok {
			most = max(most, running-stopping)
		}
	}
	m.most.Store(most)
	return m
}

func (m *suspensionMeter) total() time.Duration {
	running, stopping, ok := m.read()
	most := m.most.Load()
	for ok && running-stopping > most+int64(clockNoise) {
		if m.most.CompareAndSwap(most, running-stopping) {
			return time.Duration(running - stopping)
		}
		most = m.most.Load()
	}
	return time.Duration(most)
}

// readClocks reads both clocks from the kernel, also where a test has replaced the time of the
// process.
func readClocks() (running, stopping int64, ok bool) {
	var r, s unix.Timespec
	if unix.ClockGettime(runningClock, &r) != nil || unix.ClockGettime(stoppingClock, &s) != nil {
		return 0, 0, false
	}
	return r.Nano(), s.Nano(), true
}
