// Package run holds a lock while a command runs.
//
// # What is kept
//
// The lock is released only when no process of the command's group is left. Until
// then it is renewed, also while the command is being ended. When trust in it
// runs down because it cannot be renewed, the group gets SIGTERM while a grace is
// left of it, and SIGKILL before it is over; so nothing of the group runs when
// the store may grant the name to someone else. Where a store takes a lock away
// without a warning the group gets SIGTERM at once and SIGKILL after the grace:
// that long two may run, and the token is what tells them apart.
//
// Processes that leave the group (daemons, and what an interactive shell starts)
// and the death of this process itself are beyond it.
package run

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/exit"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/proc"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/say"
	"github.com/holdfast-go/holdfast/driver"
)

// Options say what to run under which lock. They have been checked.
type Options struct {
	Name      string
	Store     string // URL
	Namespace string
	Command   proc.Command
	// Lock are the options of the lock; MinHold and MaxHold are given apart.
	Lock             []holdfast.LockOption
	MinHold, MaxHold time.Duration // 0: none
	Try              bool
	Grace            time.Duration
	BusyStatus       int
	Verbose          bool
}

// closeTimeout bounds what is done at the store after the command has ended, or
// after the wait was interrupted. What is unconfirmed then ends with its TTL.
const closeTimeout = 10 * time.Second

type runner struct {
	Options
	say  *say.Printer
	sigs *signals
	// linger: the store keeps a minimum hold by itself.
	linger  bool
	granted time.Time
}

// Run takes the lock, runs the command, and answers the exit status.
func Run(o Options, p *say.Printer) int {
	r := &runner{Options: o, say: p, sigs: listen()}
	locker, lock, err := r.acquire()
	if err == nil {
		return r.hold(locker, lock)
	}
	if locker != nil {
		r.close(locker, closeTimeout)
	}
	if sig := r.sigs.interrupted(); sig != 0 {
		r.say.Line("waiting for %q: ended by %s", r.Name, proc.SignalName(sig))
		return exit.BySignal(sig)
	}
	status := exit.Of(err, r.BusyStatus)
	// A busy lock is no news where the user has said that it is no failure.
	if !errors.Is(err, holdfast.ErrBusy) || r.BusyStatus != exit.OK || r.Verbose || r.say.Terminal() {
		r.say.Line("%s", r.explain(err))
	}
	return status
}

// acquire waits for the lock, or for a signal.
func (r *runner) acquire() (*holdfast.Locker, *holdfast.Lock, error) {
	ctx, cancel := context.WithCancelCause(context.Background())
	stop := r.sigs.interrupt(cancel)
	defer stop()
	// The context lives as long as the lock: it is not cancelled here.

	w := newWaiting(r)
	defer w.done()
	locker, err := holdfast.Open(ctx, r.Store, holdfast.Namespace(r.Namespace), holdfast.WithHooks(w))
	if err != nil {
		return nil, nil, err
	}
	g, err := locker.Guarantees(ctx)
	if err != nil {
		return locker, nil, err
	}
	if g.Scope == driver.ScopeProcess {
		r.say.Line("warning: the %s store reaches no further than one process: nobody is kept out", g.Kind)
	}
	r.linger = g.Linger
	w.watch(locker, g)
	opts := slices.Clone(r.Lock)
	if r.MinHold > 0 {
		opts = append(opts, holdfast.MinHold(r.MinHold))
	}
	take := locker.Lock
	if r.Try {
		take = locker.TryLock
	}
	lock, err := take(ctx, r.Name, opts...)
	return locker, lock, err
}

// explain says what kept the lock from being acquired, in words that fit below
// "holdfast:".
func (r *runner) explain(err error) string {
	busy, ok := errors.AsType[*holdfast.BusyError](err)
	if !ok {
		return err.Error()
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%q is busy", r.Name)
	if len(busy.Holders) > 0 {
		b.WriteString(", " + held(busy.Holders))
	}
	if busy.Err != nil {
		b.WriteString("; not acquired in the time of --wait")
	}
	return b.String()
}

// held describes the holders.
func held(holders []holdfast.Holder) string {
	h := holders[0]
	s := fmt.Sprintf("held by pid %d on %s", h.PID, h.Host)
	if h.Reason != "" {
		s += " (" + h.Reason + ")"
	}
	// By the store's clock, which need not be this machine's.
	if age := time.Since(h.Since); !h.Since.IsZero() && age >= 0 {
		s += ", since " + round(age)
	}
	if more := len(holders) - 1; more > 0 {
		s += fmt.Sprintf(", and %d more", more)
	}
	return s
}

// round leaves of a duration what people want to know.
func round(d time.Duration) string {
	switch {
	case d >= time.Minute:
		d = d.Round(time.Second)
	case d >= time.Second:
		d = d.Round(100 * time.Millisecond)
	default:
		d = d.Round(time.Millisecond)
	}
	return d.String()
}

// hold runs the command under the lock and releases it.
func (r *runner) hold(locker *holdfast.Locker, lock *holdfast.Lock) int {
	r.granted = time.Now()
	status, err := r.command(lock)
	if err != nil {
		r.say.Line("%v", err)
	}
	return r.release(locker, lock, status)
}

// command starts the command and sees it to its end.
func (r *runner) command(lock *holdfast.Lock) (int, error) {
	if sig := r.sigs.interrupted(); sig != 0 { // it came together with the grant
		return exit.BySignal(sig), errSignal(sig)
	}
	c := r.Command
	c.Env = environment(c.Env, lock)
	t := proc.OpenTerminal()
	g, err := proc.Start(c, t)
	if err != nil {
		status := exit.NotExecutable
		if e, ok := errors.AsType[*proc.NotRunnable](err); ok {
			status = e.Status
		}
		return status, err
	}
	s := &supervision{runner: r, lock: lock, group: g, terminal: t}
	return s.run(), nil
}

// environment tells the command what it holds. What an outer run has told is
// replaced, also where this lock has nothing to say.
func environment(env []string, lock *holdfast.Lock) []string {
	env = slices.DeleteFunc(slices.Clone(env), func(v string) bool {
		key, _, _ := strings.Cut(v, "=")
		return key == "HOLDFAST_NAME" || key == "HOLDFAST_TOKEN" || key == "HOLDFAST_SLOT"
	})
	env = append(env, "HOLDFAST_NAME="+lock.Name(), "HOLDFAST_TOKEN="+strconv.FormatUint(lock.Token(), 10))
	if lock.Slot() >= 0 {
		env = append(env, "HOLDFAST_SLOT="+strconv.Itoa(lock.Slot()))
	}
	return env
}

// release gives the lock back and answers the final status.
func (r *runner) release(locker *holdfast.Locker, lock *holdfast.Lock, status int) int {
	err := lock.Unlock()
	lost, isLost := errors.AsType[*holdfast.LostError](err)
	switch {
	case isLost && status != exit.Lost:
		r.say.Line("%q was lost while the command ran (%s), which the release found; the command itself: status %d", r.Name, lost.Cause, status)
		status = exit.Lost
	case err != nil && !isLost:
		r.say.Line("the release is not confirmed yet: %v", err)
	}
	if left := r.MinHold - time.Since(r.granted); err == nil && left > 0 && !r.linger && (r.Verbose || r.say.Terminal()) {
		r.say.Line("the command has ended; %q is kept for another %s (--min-hold)", r.Name, round(left))
	}
	if !r.close(locker, r.MinHold+closeTimeout) {
		if err == nil && time.Since(r.granted) < r.MinHold {
			r.say.Line("%q ends before its minimum hold of %s", r.Name, r.MinHold)
		} else {
			r.say.Line("the release of %q is not confirmed: the store frees it when its TTL ends", r.Name)
		}
	}
	return status
}

// close waits for what the Locker has left to do at the store, no longer than
// given, and not after another signal. It answers whether all is done.
func (r *runner) close(locker *holdfast.Locker, within time.Duration) bool {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	ctx, interrupt := context.WithCancelCause(ctx)
	defer interrupt(nil)
	stop := r.sigs.interrupt(interrupt)
	defer stop()
	err := locker.Close(ctx)
	return err == nil || ctx.Err() == nil
}

// errSignal ends what a signal interrupts.
type errSignal syscall.Signal

func (e errSignal) Error() string { return "ended by " + proc.SignalName(syscall.Signal(e)) }
