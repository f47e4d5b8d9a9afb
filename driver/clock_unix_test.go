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
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
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
			if err := cmd.Process.Signal(s); err != nil {
				t.Fatal(err)
			}
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
