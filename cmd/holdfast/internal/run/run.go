//go:build linux || darwin

// Package run holds a lock while a command runs.
//
// # The processes
//
// The process that the user starts is the front. It handles the signals and the shell's job
// control, and returns the exit status. It starts this program a second time, as the guardian, in a
// process group of its own, with a socket pair between them. The guardian holds the lock, and the
// command is its child. When one of the two dies, the other reads the end of file from its socket,
// because no third process has the socket open.
//
// # What the run guarantees
//
// The guardian releases the lock only when no process is left that the command has started, in any
// group or session. On Linux both the front and the guardian are subreapers. The kernel hands
// orphans to the guardian, so it has no children exactly when there are no descendants. On other
// systems the guarantee covers only the command's process group. Until the release the guardian
// renews the lease, also while it ends the command.
//
// When the front dies, the guardian ends the command and every process that the command has started
// (SIGTERM, the grace, SIGKILL), and then releases the lock. When the front is stopped, the guardian
// and the command continue.
//
// When the guardian dies, the lock may be free at once, as with any holder that dies. The kernel
// hands the orphans to the front, which kills them at once. When the guardian is stopped, the front
// kills the command and its processes at the end of the lock's validity.
//
// When the guardian cannot renew the lock, it sends SIGTERM to the command and its processes while
// one grace of validity is left. It sends SIGKILL before the validity ends. So none of them runs
// when the store may grant the name to another client. When a store takes a lock away without a
// warning, they get SIGTERM at once and SIGKILL after the grace. During that grace two
// commands may run, and a resource can distinguish them by their tokens.
//
// There are no guarantees in three cases. First, the front and the guardian die or stop at the same
// time. Second, neither has the right to kill a process; then the guardian keeps the lock until that
// process ends, if the store allows that. Third, the command lets a service manager, a container
// engine or cron start processes.
package run

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/console"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/exit"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/proc"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/backoff"
)

// Options describes the command and its lock. The caller has checked the values.
type Options struct {
	Name      string
	Store     string // URL
	Namespace string
	Command   proc.Command `json:"-"`
	Reason    string
	TTL       *time.Duration // nil: see leaseTimes
	Grace     *time.Duration // nil: see leaseTimes
	Wait      time.Duration  // 0: forever
	Try       bool
	Shared    bool
	Limit     int // 0: none given

	MinHold, MaxHold time.Duration  // 0: none
	OnWanted         syscall.Signal // 0: none
	BusyStatus       int
	Verbose          bool

	// Once, if it is not empty, is the key that is marked when the command has
	// succeeded. A command whose key is marked is not run.
	Once string
	// Section, if it is not 0, is the process during which the lock is held. There is no
	// Command then.
	Section int
	// EndsWith names what ends the guardian together with the front, or with the Section; "" if nothing is known to.
	EndsWith string
}

// DefaultGrace is the longest grace of a run without --grace.
const DefaultGrace = 10 * time.Second

// closeTimeout limits the requests to the store after the command has ended, or after a signal has
// interrupted the wait. If the store has not confirmed the end of a lease or queue entry by then,
// the entry expires after its TTL.
const closeTimeout = 10 * time.Second

// withdrawTimeout limits how long the withdrawal of the queue entry delays the end of a wait. The
// guardian continues the withdrawal after the front has ended.
const withdrawTimeout = 100 * time.Millisecond

type runner struct {
	Options
	printer *console.Printer
	sigs    *signals
	front   *remoteFront
	// ttl and grace are the results of leaseTimes, set when the store has reported its limits.
	ttl, grace time.Duration
	// linger is set if the store keeps the lock for a minimum hold by itself.
	linger  bool
	granted time.Time
	process *proc.Section                  // of --pid
	marks   *marks                         // nil before the first read of the mark of --once
	renewal atomic.Pointer[holdfast.Event] // the last renewal that the Locker has reported, nil before
}

// run takes the lock, runs the command, and returns the exit status. If rest is not nil, it
// finishes the remaining requests to the store. The front need not wait for them.
func (r *runner) run() (status int, rest func()) {
	defer r.closeMarks()
	if r.Section != 0 {
		// Another process may get the number while this one waits for the lock.
		var err error
		if r.process, err = proc.Attach(r.Section); err != nil {
			r.printer.Line("--pid %d: %v", r.Section, err)
			return exit.Usage, nil
		}
	}
	locker, lock, err := r.acquire()
	if errors.Is(err, errDone) {
		r.close(locker, closeTimeout)
		return exit.OK, nil
	}
	if err == nil {
		return r.hold(locker, lock)
	}
	if locker != nil {
		rest = r.withdraw(locker)
	}
	return r.notAcquired(err), rest
}

// withdraw closes the Locker of a wait that has ended. After the timeout of --wait it takes at most
// withdrawTimeout. If the Locker is not closed by then, it returns rest, which waits for that.
func (r *runner) withdraw(locker *holdfast.Locker) (rest func()) {
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		r.close(locker, closeTimeout)
	}()
	rest = func() { <-closed }
	if r.Wait == 0 || r.sigs.interrupted() != 0 || r.front.dead() {
		rest()
		return nil
	}
	t := time.NewTimer(withdrawTimeout)
	defer t.Stop()
	select {
	case <-closed:
		return nil
	case <-t.C:
		return rest
	}
}

// notAcquired reports why the lock was not acquired, and returns the exit status.
func (r *runner) notAcquired(err error) int {
	if sig := r.sigs.interrupted(); sig != 0 {
		r.printer.Line("waiting for %q: ended by %s", r.Name, proc.SignalName(sig))
		return exit.BySignal(sig)
	}
	if r.front.dead() {
		r.printer.Line("waiting for %q: %v", r.Name, errFrontGone)
		return exit.Lost
	}
	status := exit.Of(err, r.BusyStatus)
	// With --busy-status 0 a busy lock is no failure, so run prints nothing.
	if !errors.Is(err, holdfast.ErrBusy) || r.BusyStatus != exit.OK || r.Verbose || r.printer.Terminal() {
		r.printer.Line("%s", r.explain(err))
	}
	return status
}

// acquire waits for the lock, or for a signal.
func (r *runner) acquire() (*holdfast.Locker, *holdfast.Lock, error) {
	ctx, cancel := context.WithCancelCause(context.Background())
	w := newWaiting(r)
	stop := r.sigs.interrupt(r.front.gone, cancel, func(sig syscall.Signal) {
		w.pause() // removes the line before the shell writes its prompt
		r.front.suspendWaiting(sig)
	})
	defer stop()
	// The lock's context is derived from ctx, so ctx is not cancelled here.
	defer w.done()
	// --wait also limits the first requests to the store, but never how long the lock is held.
	opening, opened := ctx, func() {}
	if r.Wait > 0 {
		opening, opened = context.WithTimeout(ctx, r.Wait)
	}
	defer opened()
	var locker *holdfast.Locker
	var lock *holdfast.Lock
	err := r.repeat(opening, func() (err error) {
		if locker == nil {
			locker, err = holdfast.Open(opening, r.Store, holdfast.Namespace(r.Namespace), holdfast.WithHooks(w))
		}
		if err == nil {
			err = r.prepare(opening, locker, w)
		}
		if err == nil {
			lock, err = r.take(ctx, locker, w)
		}
		return err
	})
	if busy, ok := errors.AsType[*holdfast.BusyError](err); ok && errors.Is(busy.Err, context.DeadlineExceeded) {
		if last := w.lastContact(); last != nil {
			err = fmt.Errorf("%w: %q was busy, and the store did not answer at the end of --wait: %v", holdfast.ErrUnavailable, r.Name, last)
		}
	}
	return locker, lock, err
}

// repeat calls attempt. With --wait it calls it again as long as the store does not answer, until ctx ends. Without
// --wait the user learns at once that the store, or its URL, is wrong.
func (r *runner) repeat(ctx context.Context, attempt func() error) error {
	pause := backoff.Backoff{First: 100 * time.Millisecond, Max: time.Second}
	for first := true; ; first = false {
		err := attempt()
		if r.Wait == 0 || !errors.Is(err, holdfast.ErrUnavailable) || pause.Sleep(ctx) != nil {
			return err
		}
		if first {
			r.printer.Line("%v; trying again until the time of --wait is over", err)
		}
	}
}

// prepare prepares the wait. It returns errDone if the key of --once is marked.
func (r *runner) prepare(ctx context.Context, locker *holdfast.Locker, w *waiting) error {
	g, err := locker.Guarantees(ctx)
	if err != nil {
		return err
	}
	switch g.Scope {
	case driver.ScopeProcess:
		r.printer.Line("warning: the %s store is visible to one process only: other processes are not excluded", g.Kind)
	case driver.ScopeContainer:
		r.printer.Line("warning: the locks are in a layer of this container: other containers are not excluded; mount a directory that they share")
	}
	if r.ttl, r.grace, err = r.leaseTimes(g); err != nil {
		return err
	}
	r.linger = g.Linger
	if r.MinHold > 0 && !g.Linger && r.EndsWith != "" {
		return fmt.Errorf("%w: --min-hold: a process has to keep a released lock of kind %q, and %s; \"holdfast stores\" lists what keeps it without a process",
			holdfast.ErrUnsupported, g.Kind, r.EndsWith)
	}
	// A command whose key is marked does not need the lock.
	if err := r.checkMark(ctx); err != nil {
		return err
	}
	w.watch(locker, g)
	if err := r.checkNested(ctx, w, g); err != nil {
		return err
	}
	w.probe()
	return nil
}

// take takes the lock. If the shell stops the job during the wait, take waits until the job is
// continued, and begins again.
func (r *runner) take(ctx context.Context, locker *holdfast.Locker, w *waiting) (*holdfast.Lock, error) {
	take := locker.Lock
	if r.Try {
		take = locker.TryLock
	}
	for {
		opts := r.lockOptions()
		if r.Wait > 0 {
			opts = append(opts, holdfast.Wait(max(r.Wait-time.Since(w.began), 1)))
		}
		// The lock's context is derived from attempt, so attempt is not cancelled after a grant.
		attempt, leave := context.WithCancelCause(ctx)
		if r.front.whileWaiting(func() { leave(errFrontStopped) }) {
			leave(errFrontStopped)
		}
		var lock *holdfast.Lock
		err := context.Cause(attempt)
		if err == nil {
			lock, err = take(attempt, r.Name, opts...)
		}
		r.front.whileWaiting(nil)
		if context.Cause(attempt) != errFrontStopped {
			return lock, err
		}
		if lock != nil { // the grant came at the moment when the job was stopped
			lock.Keep(0)
			_ = lock.Unlock()
		}
		r.front.await(ctx)
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		w.resume()
	}
}

// leaseTimes returns the TTL and the grace. It does not change a value that the user has given, and
// adapts the other value to it. It also adapts a TTL to the store's limits. The grace is at most a
// third of the TTL. So when the guardian cannot renew the lock and sends SIGTERM, it will still try
// at least one more renewal.
func (o *Options) leaseTimes(g holdfast.Guarantees) (ttl, grace time.Duration, err error) {
	ttl = holdfast.DefaultTTL
	switch {
	case o.TTL != nil:
		ttl = *o.TTL // the Locker compares it with the store's limits
	case o.Grace != nil && g.MaxTTL > 0 && *o.Grace > g.MaxTTL/3:
		return 0, 0, fmt.Errorf("%w: --grace %s is longer than a third of %s, the longest TTL of the %s store: give --grace %s or less",
			holdfast.ErrInvalid, *o.Grace, g.MaxTTL, g.Kind, g.MaxTTL/3)
	default:
		if o.Grace != nil {
			ttl = max(ttl, 3**o.Grace)
		}
		ttl = max(ttl, g.MinTTL)
		if g.MaxTTL > 0 {
			ttl = min(ttl, g.MaxTTL)
		}
	}
	if o.Grace != nil {
		return ttl, *o.Grace, nil
	}
	return ttl, min(DefaultGrace, ttl/3), nil
}

func (r *runner) lockOptions() []holdfast.LockOption {
	// The margin is equal to the default. Because it is given explicitly, the store makes no provisional
	// grant, whose validity would be shorter than the grace.
	opts := []holdfast.LockOption{holdfast.TTL(r.ttl), holdfast.Margin(r.ttl / 10), holdfast.Reason(r.Reason)}
	if r.Shared {
		opts = append(opts, holdfast.Shared())
	}
	if r.Limit > 0 {
		opts = append(opts, holdfast.Limit(r.Limit))
	}
	if r.MinHold > 0 {
		opts = append(opts, holdfast.MinHold(r.MinHold))
	}
	return opts
}

// explain returns a text that says why the lock was not acquired.
func (r *runner) explain(err error) string {
	busy, ok := errors.AsType[*holdfast.BusyError](err)
	if !ok {
		return err.Error()
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%q is busy", r.Name)
	if len(busy.Holders) > 0 {
		b.WriteString(", " + holdersText(busy.Holders))
	}
	if busy.Err != nil {
		b.WriteString("; not acquired in the time of --wait")
	}
	return b.String()
}

// holdersText names the first holder, and counts the others.
func holdersText(holders []holdfast.Holder) string {
	h := holders[0]
	s := "held by " + driver.Owner{Host: h.Host, PID: h.PID}.Client()
	if h.Reason != "" {
		s += " (" + h.Reason + ")"
	}
	// Since is a time of the store's clock, which may differ from this machine's.
	if age := time.Since(h.Since); !h.Since.IsZero() && age >= 0 {
		s += " for " + round(age)
	}
	if more := len(holders) - 1; more > 0 {
		s += fmt.Sprintf(", and %d more", more)
	}
	return s
}

// round rounds a duration for people.
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
func (r *runner) hold(locker *holdfast.Locker, lock *holdfast.Lock) (status int, rest func()) {
	r.granted = time.Now()
	status, err := r.command(lock)
	if err == nil {
		status, err = r.mark(lock, status)
	} else {
		lock.Keep(0) // nothing has run, so another client may take the lock at once
	}
	if err != nil && !errors.Is(err, errDone) {
		r.printer.Line("%v", err)
	}
	return r.release(locker, lock, status)
}

// command starts the command and waits for its end.
func (r *runner) command(lock *holdfast.Lock) (int, error) {
	r.front.await(lock.Context()) // the job may have been stopped just now
	if r.front.dead() {
		return exit.Lost, errFrontGone
	}
	if sig := r.sigs.interrupted(); sig != 0 {
		// The signal came together with the grant, and ended the lock's context. This is no loss.
		return exit.BySignal(sig), fmt.Errorf("waiting for %q: %w", r.Name, proc.Interrupted(sig))
	}
	if lock.Context().Err() != nil {
		return exit.Lost, fmt.Errorf("%q is lost before the command was started: %w", r.Name, context.Cause(lock.Context()))
	}
	if r.Section != 0 {
		return r.section(lock), nil
	}
	if err := r.checkMark(lock.Context()); err != nil {
		if errors.Is(err, errDone) {
			return exit.OK, err
		}
		return exit.Of(err, r.BusyStatus), err
	}
	c := r.Command
	c.Env = append(environment(c.Env, lock), EnvHeld+"="+r.heldBy(lock.Token()))
	c.Env, c.OwnPID = fromServiceManager(c.Env, r.front.pid)
	t := proc.OpenTerminal(r.front.group)
	g, err := proc.Start(c, t)
	if err != nil {
		status := exit.NotExecutable
		if e, ok := errors.AsType[*proc.NotRunnable](err); ok {
			status = e.Status
		}
		return status, err
	}
	r.front.link.send(msgStarted, int64(g.PID()))
	s := &supervision{runner: r, lock: lock, group: g, terminal: t}
	return s.run(), nil
}

// section holds the lock until the process of --pid has ended.
func (r *runner) section(lock *holdfast.Lock) int {
	proc.Detach(2)
	r.front.link.queue(message{msgHeld, int64(lock.Token()), lock.Slot()})
	s := &supervision{runner: r, lock: lock, group: r.process}
	return s.run()
}

// environment returns the command's environment with the variables of its lock. It removes all
// variables of an outer run, also those for which this lock has no value.
func environment(env []string, lock *holdfast.Lock) []string {
	env = slices.DeleteFunc(slices.Clone(env), func(v string) bool {
		key, _, _ := strings.Cut(v, "=")
		return key == EnvName || key == EnvToken || key == EnvSlot || key == EnvHeld
	})
	env = append(env, EnvName+"="+lock.Name(), EnvToken+"="+strconv.FormatUint(lock.Token(), 10))
	if lock.Slot() >= 0 {
		env = append(env, EnvSlot+"="+strconv.Itoa(lock.Slot()))
	}
	return env
}

// fromServiceManager returns the names of the variables with which systemd has passed sockets or the watchdog to the
// front, and the environment without the other number of that process. The command uses the sockets and the watchdog
// only if the variables have the command's own number.
func fromServiceManager(env []string, front int) (rest, pids []string) {
	for _, name := range []string{"LISTEN_PID", "WATCHDOG_PID"} {
		if slices.Contains(env, name+"="+strconv.Itoa(front)) {
			pids = append(pids, name)
			env = slices.DeleteFunc(env, func(v string) bool { return strings.HasPrefix(v, name+"FDID=") })
		}
	}
	return env, pids
}

// release releases the lock and returns the final status. If this process keeps the lock for a minimum hold, it does
// that in rest, after the front has ended: the option means the same as on a store that keeps the lock.
func (r *runner) release(locker *holdfast.Locker, lock *holdfast.Lock, status int) (_ int, rest func()) {
	err := lock.Unlock()
	lost, isLost := errors.AsType[*holdfast.LostError](err)
	switch {
	case isLost && status != exit.Lost:
		r.printer.Line("%q was lost while the command ran (%s), which the release found; the command itself: status %d", r.Name, lost.Cause, status)
		status = exit.Lost
	case err != nil && !isLost:
		r.printer.Line("the release is not confirmed yet: %v", err)
	}
	if left := r.MinHold - time.Since(r.granted); err == nil && left > 0 && !r.linger {
		if r.Verbose || r.printer.Terminal() {
			r.printer.Line("the command has ended; process %d keeps %q for another %s (--min-hold)", os.Getpid(), r.Name, round(left))
		}
		return status, func() { r.close(locker, left+closeTimeout) }
	}
	if r.Section != 0 {
		// A reader of the script's output must not wait for the store.
		return status, func() { r.close(locker, closeTimeout) }
	}
	if !r.close(locker, closeTimeout) {
		r.printer.Line("the release of %q is not confirmed: the store frees it when its TTL ends", r.Name)
	}
	return status, nil
}

// close waits for the Locker's remaining requests to the store, until the timeout or another
// signal. It reports whether all are done.
func (r *runner) close(locker *holdfast.Locker, within time.Duration) bool {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	ctx, interrupt := context.WithCancelCause(ctx)
	defer interrupt(nil)
	// The shell may stop the front meanwhile.
	stop := r.sigs.interrupt(nil, interrupt, r.front.suspend)
	defer stop()
	err := locker.Close(ctx)
	return err == nil || ctx.Err() == nil
}
