//go:build linux || darwin

package check

import (
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/must"
)

// TestPauseIfHolderStopsTheHolderOfAFittingLock: of a worker's locks, pauseIfHolder considers the
// exclusive ones that the worker holds with enough validity, the longest first. It considers
// none twice, and lets the process continue after each that does not fit.
func TestPauseIfHolderStopsTheHolderOfAFittingLock(t *testing.T) {
	dir := t.TempDir()
	c := &crew{dir: dir, target: &Target{}}
	m := &member{life: 1}
	var err error
	if m.log, err = newLog(c.history(m), m.name()); err != nil {
		t.Fatal(err)
	}
	if c.log, err = newLog(filepath.Join(dir, "coordinator.jsonl"), ""); err != nil {
		t.Fatal(err)
	}
	now := machineTime()
	in := func(d time.Duration) int64 { return now + int64(d) }
	granted := func(op int, name string, limit int, until int64) {
		m.log.Add(Event{K: kindLock, Op: op, Name: name, Limit: limit, T: now + int64(op)})
		m.log.Add(Event{K: kindGranted, Op: op, Name: name, Limit: limit, T: now + int64(op), Until: until})
	}
	granted(1, "closed", driver.Exclusive, in(9*time.Hour))
	m.log.Add(Event{K: kindClosing})
	granted(2, "short", driver.Exclusive, in(time.Minute))
	granted(3, "shared", driver.Unlimited, in(9*time.Hour))
	granted(4, "unlocked", driver.Exclusive, in(9*time.Hour))
	m.log.Add(Event{K: kindUnlock, Op: 4})
	granted(5, "lost", driver.Exclusive, in(9*time.Hour))
	m.log.Add(Event{K: kindLost, Op: 5})
	granted(6, "renewed", driver.Exclusive, in(time.Minute))
	m.log.Add(Event{K: kindRenewed, Op: 6, Until: in(3 * time.Hour)})
	granted(7, "unfit", driver.Exclusive, in(4*time.Hour))

	c.members = []*member{m}
	if p, err := c.pauseHolder(t.Context(), 2*time.Hour, nil); p != nil || err != nil {
		t.Fatalf("stopped %+v, %v, a part of this process", p, err)
	}

	m.proc = &process{cmd: exec.Command("sleep", "600"), done: make(chan struct{})}
	must.Succeed(t, m.proc.cmd.Start())
	go func() {
		_ = m.proc.cmd.Wait()
		close(m.proc.done)
	}()
	defer m.proc.kill()

	var names []string
	unfit := map[int64]bool{}
	pause := func() (*pausedHolder, error) {
		return c.pauseIfHolder(t.Context(), m, 2*time.Hour, unfit, func(name string) (bool, error) {
			names = append(names, name)
			return name != "unfit", nil
		})
	}
	if p, err := pause(); p != nil || err != nil {
		t.Fatalf("stopped %+v, %v", p, err)
	}
	p, err := pause()
	if err != nil || p == nil || p.name != "renewed" || p.until != in(3*time.Hour) || !slices.Equal(names, []string{"unfit", "renewed"}) {
		t.Fatalf("stopped %+v after %q, %v", p, names, err)
	}
	if m.mu.TryLock() {
		t.Fatal("another fault may affect the stopped worker")
	}
	must.Succeed(t, p.resume())
	if !m.mu.TryLock() {
		t.Fatal("no other fault may affect the worker that continues")
	}
	events, err := ReadFiles(filepath.Join(dir, "coordinator.jsonl"))
	must.Succeed(t, err)
	var kinds []Kind
	for _, e := range events {
		kinds = append(kinds, e.K)
	}
	if !slices.Equal(kinds, []Kind{kindPause, kindResume, kindPause, kindResume}) {
		t.Errorf("recorded %v", kinds)
	}
}

// TestPauseHolderIgnoresWorkersWithoutProcess: a fault that stops a holder may be planned on a
// store whose workers are goroutines of this process. It finds no holder then.
func TestPauseHolderIgnoresWorkersWithoutProcess(t *testing.T) {
	c := &crew{dir: t.TempDir()}
	m := &member{life: 1}
	var err error
	if m.log, err = newLog(c.history(m), m.name()); err != nil {
		t.Fatal(err)
	}
	if c.log, err = newLog(filepath.Join(c.dir, "coordinator.jsonl"), ""); err != nil {
		t.Fatal(err)
	}
	m.log.Add(Event{K: kindLock, Op: 1, Name: "a", Limit: driver.Exclusive, T: 1})
	m.log.Add(Event{K: kindGranted, Op: 1, Name: "a", Limit: driver.Exclusive, T: 1, Until: machineTime() + int64(time.Hour)})
	if p, err := c.pauseIfHolder(t.Context(), m, time.Minute, map[int64]bool{}, nil); p != nil || err != nil {
		t.Errorf("%+v, %v; want no holder", p, err)
	}
}
