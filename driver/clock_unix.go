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

var suspensions = newSuspensionMeter(readClocks)

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
