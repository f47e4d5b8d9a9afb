//go:build linux || darwin

package cli

import (
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/console"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/exit"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/proc"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/run"
	"github.com/holdfast-go/holdfast/driver"
)

const runLong = `Run waits for the lock NAME, runs COMMAND while it holds the lock, and releases
the lock when the command and every process that it started have ended.

The command has the standard input, output and error of this process, and the
terminal if there is one. Run forwards the signals HUP, INT, QUIT, TERM, USR1, USR2
and CONT to the command's process group. Processes that the command leaves behind
get SIGTERM, and SIGKILL after the grace, before the lock is released: on Linux all
descendants, also daemons and other sessions; on macOS the process group.

A second process, the guardian (run-guardian in the list of processes), holds the
lock and is the command's parent; holdfast show prints its number. When this process is
killed, the guardian ends the command in the same way and then releases the lock.
When this process is stopped, the lock remains held. When the guardian is killed, this
process kills the command and its descendants at once. A command that neither may
signal, because it runs as another user, keeps the lock until it ends.

A lock is a lease. When it cannot be renewed, the command gets SIGTERM while the
lock is valid for one more grace, and SIGKILL before its validity ends. When the
store takes the lock away without warning, the command gets SIGTERM at once and
SIGKILL after the grace. The grace is at most a third of the TTL. The default
TTL adapts to the store's limits and to --grace; the default grace adapts to the TTL.
To be safe in every case, let the resource compare HOLDFAST_TOKEN, which is larger
than that of every earlier holder.

With --once KEY the command runs unless KEY is marked as done. Run marks it when the
command has exited with 0, while it holds the lock. The mark is a value in the store
and remains there. If the key is marked, the command does not run, and the status is 0.

Environment:
  HOLDFAST_STORE       the store's URL; the command gets it unchanged
  HOLDFAST_STORE_FILE  a file that holds it
  HOLDFAST_NAME        for the command: the name of the lock
  HOLDFAST_TOKEN       for the command: the fencing token
  HOLDFAST_SLOT        for the command: 0 to N-1 with --limit N, otherwise unset;
                       unset where permits have no numbers (holdfast stores)
  HOLDFAST_HELD        for the command: the locks that are held here, with their
                       tokens: holdfast run and hold refuse to wait for them (64)

Exit status: the command's own, and
  64   bad usage
  69   the store cannot be reached or does not answer
  74   while the command ran, the lock was lost or could not be renewed, or the
       guardian was killed
  75   not acquired: busy with --try, or not within --wait (see --busy-status)
  78   the store refused, or does not support the request
  126  the command, or the guardian, cannot be executed
  127  the command was not found
  128+n  signal n ended the command, or the wait for the lock

After --max-hold the status is the command's own: 143 if SIGTERM ended it, 137 if
it needed SIGKILL, otherwise the status with which it ended on SIGTERM.`

const runExample = `  holdfast run deploy -- make deploy
  # on every replica; one of them runs the report:
  holdfast run --try --busy-status 0 --min-hold 5m nightly -- ./report.sh
  # at most four at a time, each on its own GPU:
  holdfast run --limit 4 gpu -- sh -c 'CUDA_VISIBLE_DEVICES=$HOLDFAST_SLOT exec ./train'
  # on every replica; it runs until it has succeeded once:
  holdfast run --once "invoices-$(date +%Y-%m)" invoices -- ./send-invoices
  # in the background, until someone else needs the GPU:
  holdfast run --on-wanted TERM gpu -- ./train --save-on-term
  # give up waiting after a minute, and stop the work after an hour:
  holdfast run --wait 1m --max-hold 1h migrate -- ./migrate`

// runFlags contains the values of run's flags.
type runFlags struct {
	store                       storeFlags
	ttl, wait, minHold, maxHold duration
	grace                       duration
	limit, busy                 number
	reason, once, onWanted      text
	try, shared, verbose        bool
}

func newRun(p *console.Printer) *cobra.Command {
	f := newRunFlags()
	cmd := &cobra.Command{
		Use:     "run [flags] NAME -- COMMAND [ARG...]",
		Short:   "Hold a lock while a command runs",
		Long:    runLong,
		Example: runExample,
		ValidArgsFunction: func(cmd *cobra.Command, args []string, toComplete string) ([]cobra.Completion, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveDefault
			}
			return completeNames(&f.store)(cmd, args, toComplete)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			o, err := f.options(cmd, args, p)
			if err != nil {
				return err
			}
			return ran(o, p)
		},
	}
	f.add(cmd)
	flags := cmd.Flags()
	flags.Var(&f.once, "once", "do not run the command if `KEY` is marked as done, and mark it when the\ncommand has succeeded")
	flags.Var(&f.maxHold, "max-hold", "end the command after this time: SIGTERM, and SIGKILL after the grace")
	flags.Var(&f.onWanted, "on-wanted", "send the command this `SIGNAL` once when another client waits for the lock:\nHUP, INT, QUIT, TERM, USR1 or USR2")
	return cmd
}

// newRunFlags returns the flags with their default values and limits.
func newRunFlags() *runFlags {
	return &runFlags{
		ttl: duration{d: holdfast.DefaultTTL, least: holdfast.MinTTL, most: holdfast.MaxTTL},
		wait: duration{least: 1, most: math.MaxInt64,
			allowed: "a duration above 0; --try does not wait"},
		minHold: duration{most: holdfast.MaxTTL},
		maxHold: duration{least: 1, most: math.MaxInt64, allowed: "a duration above 0"},
		grace: duration{d: run.DefaultGrace, most: holdfast.MaxTTL / 3,
			allowed: "a duration from 0s to a third of --ttl"},
		limit:  number{least: 1, most: holdfast.MaxLimit},
		busy:   number{n: exit.Busy, most: 125},
		reason: text{check: checkReason},
		once:   text{check: func(s string) error { return driver.CheckValue(s, nil) }},
		onWanted: text{check: func(s string) error {
			_, err := run.Named(s)
			return err
		}},
	}
}

// add adds the flags that run and hold share.
func (f *runFlags) add(cmd *cobra.Command) {
	f.store.add(cmd)
	flags := cmd.Flags()
	flags.BoolVar(&f.store.required, "require-store", false, "fail if no store is given, instead of a lock among the processes of this machine")
	flags.Var(&f.wait, "wait", "how long to wait for the lock (default forever)")
	flags.BoolVar(&f.try, "try", false, "do not wait")
	flags.BoolVar(&f.shared, "shared", false, "hold the lock beside other shared holders, and never beside an exclusive one")
	flags.Var(&f.limit, "limit", "hold the lock beside at most N-1 others: a semaphore of `N`, 1 to 4096")
	flags.Var(&f.ttl, "ttl", "how long the store keeps the lock when this process cannot renew it,\n50ms to 24h; not given, it adapts to the store's limits and to --grace")
	flags.Var(&f.minHold, "min-hold",
		"keep the lock for this time even when it is not needed for as long;\n"+
			"if the store cannot keep it, a process does that after the end of holdfast")
	flags.Var(&f.grace, "grace", "the time between SIGTERM and SIGKILL, at most a third of the TTL;\nnot given, it adapts to the TTL")
	flags.Var(&f.reason, "reason", "shown where the lock is inspected (default the command's name)")
	flags.Var(&f.busy, "busy-status", "the exit status, 0 to 125, when the lock was not acquired")
	flags.BoolVarP(&f.verbose, "verbose", "v", false, "report every step")
}

func checkReason(s string) error {
	switch {
	case len(s) > holdfast.MaxReason:
		return fmt.Errorf("it is %d bytes long: give at most %d", len(s), holdfast.MaxReason)
	case !utf8.ValidString(s):
		return errors.New("give valid UTF-8")
	}
	return nil
}

// options checks the flags and arguments before anything is opened.
func (f *runFlags) options(cmd *cobra.Command, args []string, p *console.Printer) (run.Options, error) {
	name, command, err := split(cmd, args)
	if err != nil {
		return run.Options{}, err
	}
	if err := f.check(); err != nil {
		return run.Options{}, err
	}
	storeURL, dir, err := f.store.resolve(p)
	if err != nil {
		return run.Options{}, err
	}
	path, err := proc.FindCommand(command[0])
	if err != nil {
		p.Line("%v", err)
		e, _ := errors.AsType[*proc.NotRunnable](err)
		return run.Options{}, exited(e.Status)
	}
	o := f.lock(name, storeURL, dir, command[0], p)
	o.Command, o.Once = proc.Command{Path: path, Args: command}, f.once.s
	if f.onWanted.given {
		o.OnWanted, _ = run.Named(f.onWanted.s)
	}
	return o, nil
}

// lock returns the options that run and hold share.
func (f *runFlags) lock(name, storeURL, dir, command string, p *console.Printer) run.Options {
	announce(p, dir)
	return run.Options{
		Name: name, Store: storeURL, Namespace: f.store.namespace.s,
		Reason:     f.reasonFor(command),
		TTL:        f.ttl.ifGiven(),
		Wait:       f.wait.d,
		Shared:     f.shared,
		Limit:      f.limit.n,
		MinHold:    f.minHold.d,
		MaxHold:    f.maxHold.d,
		Try:        f.try,
		Grace:      f.grace.ifGiven(),
		BusyStatus: f.busy.n,
		Verbose:    f.verbose,
	}
}

// helper does the work of a process that holdfast run has started, and reports whether this is one.
func helper(args []string, p *console.Printer) (status int, ok bool) {
	switch {
	case len(args) == 0:
	case args[0] == proc.StepArg:
		return proc.Step(args[1:]), true
	case args[0] == proc.GuardianArg:
		return run.Guard(args[1:], p), true
	}
	return 0, false
}

// ran runs the command under the lock, and returns the exit status as an error.
func ran(o run.Options, p *console.Printer) error {
	if status := run.Run(o, p); status != exit.OK {
		return exited(status)
	}
	return nil
}

// split separates NAME and COMMAND at the "--", which is required. Without it, cobra would read a
// flag of the command as a flag of run.
func split(cmd *cobra.Command, args []string) (name string, command []string, err error) {
	dash := cmd.ArgsLenAtDash()
	switch {
	case dash < 0 && len(args) == 0:
		return "", nil, errors.New("NAME and COMMAND are missing: holdfast run [flags] NAME -- COMMAND [ARG...]")
	case dash < 0:
		return "", nil, errors.New("-- is missing between NAME and COMMAND: holdfast run [flags] NAME -- COMMAND [ARG...]")
	case dash == 0:
		return "", nil, errors.New("NAME is missing before --: holdfast run [flags] NAME -- COMMAND [ARG...]")
	case dash > 1:
		return "", nil, fmt.Errorf("%d arguments before --: give one NAME, quoted if it has spaces", dash)
	case len(args) == dash || args[dash] == "":
		return "", nil, errors.New("COMMAND is missing after --: holdfast run [flags] NAME -- COMMAND [ARG...]")
	}
	if err := driver.CheckName(args[0]); err != nil {
		return "", nil, fmt.Errorf("NAME: %v", err)
	}
	return args[0], args[1:], nil
}

// check refuses flags that exclude each other.
func (f *runFlags) check() error {
	switch {
	case f.try && f.wait.given:
		return errors.New("--try and --wait exclude each other: --try does not wait")
	case f.once.given && (f.shared || f.limit.given):
		return errors.New("--once excludes --shared and --limit: one holder at a time runs the command")
	case f.shared && f.limit.given:
		return errors.New("--shared and --limit exclude each other: shared has no limit")
	case f.maxHold.given && f.minHold.d > f.maxHold.d:
		return fmt.Errorf("--min-hold %s is longer than --max-hold %s", short(f.minHold.d), short(f.maxHold.d))
	case f.ttl.given && f.grace.given && f.grace.d > f.ttl.d/3:
		return fmt.Errorf("--ttl %s is shorter than three times --grace %s: give --ttl %s or more, or --grace %s or less",
			short(f.ttl.d), short(f.grace.d), short(3*f.grace.d), short(f.ttl.d/3))
	}
	return nil
}

// reasonFor returns the reason that inspections show. The default is the command's
// name alone, because its arguments may contain a password.
func (f *runFlags) reasonFor(command string) string {
	if f.reason.given {
		return f.reason.s
	}
	name := strings.ToValidUTF8(filepath.Base(command), "?")
	if len(name) > holdfast.MaxReason {
		return ""
	}
	return name
}
