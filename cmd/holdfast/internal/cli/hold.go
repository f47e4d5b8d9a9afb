//go:build linux || darwin

package cli

import (
	"errors"
	"fmt"
	"math"
	"os"

	"github.com/spf13/cobra"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/console"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/proc"
)

const holdLong = `Hold waits for the lock NAME and ends when the lock is held. A process in the
background, the guardian, keeps the lock until the process --pid has ended: for a
shell, the rest of its script. Hold prints a line for the shell's eval, which sets
the variables below. If hold fails, the line ends the script with hold's status.

In a subshell $$ is the number of the script's shell, so the lock would be held after
the subshell. Use --pid parent there: it is the process that called hold. Then call
hold alone in $( ), without a redirection, because a shell may start a process of its
own for more than that.

When the lock cannot be renewed or is taken away, the guardian ends that process as
holdfast run ends its command: SIGTERM, and SIGKILL after the grace. On Linux its
descendants get the signals as well. If the process ends by itself, processes that it
started continue without the lock. If the guardian is killed, nothing ends the
process: use holdfast run where that matters. Hold refuses a process that the guardian
cannot end: the first process of a container, which is process 1 there, and a process
of another user. Holdfast run can be the first process of a container.

A SIGTERM to the guardian releases the lock before the process ends. Then unset
HOLDFAST_HELD, so that the process may wait for the lock again.

Environment:
  HOLDFAST_STORE       the store's URL
  HOLDFAST_STORE_FILE  a file that holds it
  HOLDFAST_NAME        printed: the name of the lock
  HOLDFAST_TOKEN       printed: the fencing token
  HOLDFAST_SLOT        printed with --limit N: 0 to N-1, where permits have numbers
  HOLDFAST_GUARDIAN    printed: the process number of the guardian
  HOLDFAST_HELD        printed: the locks that are held here, with their tokens: holdfast
                       run and hold refuse to wait for them (64)

Exit status:
  0    the lock is held
  1    the output cannot be written; the lock is released
  64   bad usage, or the process --pid has ended or cannot be ended
  69   the store cannot be reached or does not answer
  75   not acquired: busy with --try, or not within --wait (see --busy-status)
  78   the store refused, or does not support the request
  128+n  signal n ended the wait for the lock`

func newHold(p *console.Printer) *cobra.Command {
	f := newRunFlags()
	pid := process{number: number{least: 1, most: math.MaxInt32}}
	cmd := &cobra.Command{
		Use:   "hold [flags] --pid PID NAME",
		Short: "Hold a lock for the rest of a shell script",
		Long:  holdLong,
		Example: `  lock=$(holdfast hold --wait 1m --pid $$ nightly) || exit
  eval "$lock"
  ./report.sh --token "$HOLDFAST_TOKEN"`,
		Args:              oneName("NAME", false),
		ValidArgsFunction: completeNames(&f.store),
		RunE: func(_ *cobra.Command, args []string) error {
			if !pid.given {
				return errors.New("--pid is missing: give the process during which the lock is held, in a shell --pid $$")
			}
			if pid.parent && writesTo(pid.n, os.Stdout) {
				return errors.New("--pid parent: the parent writes to the same pipe as hold, so it may be a shell that $( ) has started, " +
					"which ends now: call hold alone in $( ), without a redirection, or give the number of the process")
			}
			if _, err := proc.Attach(pid.n); err != nil {
				return fmt.Errorf("--pid %d: %v", pid.n, err)
			}
			if err := f.check(); err != nil {
				return err
			}
			storeURL, dir, err := f.store.resolve(p)
			if err != nil {
				return err
			}
			o := f.lock(args[0], storeURL, dir, "hold", p)
			o.Section = pid.n
			return ran(o, p)
		},
	}
	f.add(cmd)
	cmd.Flags().Var(&pid, "pid", "hold the lock until the process `PID` ends; required. In a subshell $$ is its\nparent: parent is the process that called hold")
	return cmd
}

// writesTo reports whether the standard output of a process is the same pipe as f. Without /proc it returns false.
func writesTo(pid int, f *os.File) bool {
	theirs, err1 := os.Stat(fmt.Sprintf("/proc/%d/fd/1", pid))
	ours, err2 := f.Stat()
	return err1 == nil && err2 == nil && ours.Mode()&os.ModeNamedPipe != 0 && os.SameFile(theirs, ours)
}
