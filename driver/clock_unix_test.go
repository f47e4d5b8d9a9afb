//go:build linux || darwin

package driver

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/must"
)

// TestPauseBetweenClockReadingsIsNoSuspend: the process pauses between the readings of the
// two clocks, and the machine is suspended later.
func TestPauseBetweenClockReadingsIsNoSuspend(t *testing.T) {
	const offset = int64(time.Hour) // of earlier suspends
	now, pause, slept := int64(0), int64(0), int64(0)
	m := newSuspensionMeter(func() (running, stopping int64, ok bool) {
		now += 100
		running = offset + slept + now
		now += 100 + pause
		return running, now, true
	})
	c := meterClock{m}

	pause = int64(50 * time.Millisecond)
	i := NowOn(c)
	pause = 0
	if _, got := i.Elapsed(); got != 0 {
		t.Errorf("a pause of 50ms while the instant was taken counts as a suspend of %s", got)
	}
	pause = int64(time.Minute)
	if _, got := i.Elapsed(); got != 0 {
		t.Errorf("a pause of 1m while the clocks were read counts as a suspend of %s", got)
	}
	pause, slept = 0, int64(2*time.Second)
	if _, got := i.Elapsed(); got < 1999*time.Millisecond || got > 2001*time.Millisecond {
		t.Errorf("a suspend of 2s counts as %s", got)
	}
	pause = int64(50 * time.Millisecond)
	if _, got := i.Elapsed(); got < 1999*time.Millisecond || got > 2001*time.Millisecond {
		t.Errorf("a suspend of 2s counts as %s after a pause", got)
	}
	if _, got := NowOn(c).Elapsed(); got != 0 {
		t.Errorf("a suspend before an instant counts as %s after it", got)
	}
}

// TestSuspensionIsMeasuredAgain: a measurement counts until the wall clock shows a suspend, and
// for 10 ms at most.
func TestSuspensionIsMeasuredAgain(t *testing.T) {
	measured, now, slept, set := 0, int64(0), int64(0), int64(0)
	c := suspensionCache{
		meter: &suspensionMeter{read: func() (running, stopping int64, ok bool) {
			measured++
			return now + slept, now, true
		}},
		now: func() (wall, process int64) { return now + slept + set, now },
	}
	for _, step := range []struct {
		what            string
		ran, slept, set time.Duration
		measured        int
		total           time.Duration
	}{
		{what: "the first call", measured: 1},
		{what: "soon after it", ran: 9 * time.Millisecond, measured: 1},
		{what: "10ms after the measurement", ran: time.Millisecond, measured: 2},
		{what: "after a suspend", slept: time.Minute, measured: 3, total: time.Minute},
		{what: "soon after that", ran: time.Millisecond, measured: 3, total: time.Minute},
		{what: "after the wall clock was set forward", set: time.Hour, measured: 4, total: time.Minute},
		{what: "after it was set back", set: -time.Hour, measured: 5, total: time.Minute},
		{what: "after a suspend that setting it back hides", slept: time.Minute, set: -time.Minute, measured: 5, total: time.Minute},
		{what: "10ms later", ran: 10 * time.Millisecond, measured: 6, total: 2 * time.Minute},
	} {
		now, slept, set = now+int64(step.ran), slept+int64(step.slept), set+int64(step.set)
		if got := c.total(); got != step.total || measured != step.measured {
			t.Errorf("%s: suspended for %s by %d measurements, want %s by %d", step.what, got, measured, step.total, step.measured)
		}
	}
}

type meterClock struct{ m *suspensionMeter }

func (meterClock) Now() time.Time         { return time.Now() }
func (c meterClock) Slept() time.Duration { return c.m.total() }

const pausedEnv = "DRIVER_TEST_PAUSED"

// TestStoppedProcessSeesNoSuspend stops a process repeatedly while it takes one instant
// after another. It is no test for a machine that is suspended meanwhile.
func TestStoppedProcessSeesNoSuspend(t *testing.T) {
	if os.Getenv(pausedEnv) != "" {
		takeInstants()
		return
	}
	cmd := exec.Command(os.Args[0], "-test.run", "^TestStoppedProcessSeesNoSuspend$")
	cmd.Env = append(os.Environ(), pausedEnv+"=1")
	in, err := cmd.StdinPipe()
	must.Succeed(t, err)
	out, err := cmd.StdoutPipe()
	must.Succeed(t, err)
	must.Succeed(t, cmd.Start())
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	lines := bufio.NewScanner(out)
	if !lines.Scan() || lines.Text() != "began" {
		t.Fatalf("it says %q", lines.Text())
	}
	for range 200 {
		for _, s := range []syscall.Signal{syscall.SIGSTOP, syscall.SIGCONT} {
			must.Succeed(t, cmd.Process.Signal(s))
			time.Sleep(3 * time.Millisecond) // stopped for this time, and running for this time
		}
	}
	in.Close()
	if !lines.Scan() || lines.Text() != "longest suspend 0s" {
		t.Errorf("a process that was stopped on a machine that ran: %s", lines.Text())
	}
}

// takeInstants takes instants until standard input ends, and prints the longest time
// for which the machine was suspended after one of them.
func takeInstants() {
	ended := make(chan struct{})
	go func() {
		_, _ = bufio.NewReader(os.Stdin).ReadByte()
		close(ended)
	}()
	var longest time.Duration
	fmt.Println("began")
	for {
		select {
		case <-ended:
			fmt.Println(strings.TrimSpace(fmt.Sprintln("longest suspend", longest)))
			return
		default:
		}
		_, slept := Now().Elapsed()
		longest = max(longest, slept)
	}
}
