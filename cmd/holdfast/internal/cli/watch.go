package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/charmbracelet/x/term"
	"github.com/spf13/cobra"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/console"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/exit"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/live"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/view"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/shape"
)

const watchLong = `Watch follows one lock, or all of them, until you end it. It inspects the store when
the store notifies of a change, and at least once a second; without NAME at most ten
times a second. It does not show what begins and ends between two inspections. A job of
Locker.Every is one lock, as for holdfast ls; watch JOB reads all locks, and follows the
job if it has a lock when the watch begins.

On a terminal it is a table: q or Ctrl-C quits, the arrows, Page Up and Page Down
move, w shows or hides the waiters. Elsewhere each change is one line, without a
heading, of nine fields with a tab between two of them:

  time name event mode token holder instance reason note

The time is RFC 3339 in UTC. The events are

  held      the holder held the lock when the watch began
  free      NAME had no holder and no waiter when the watch began
  granted   the holder was granted the lock
  released  the grant is gone: released, expired, or taken away
  waiting   the waiter waits, or did when the watch began
  left      the waiter no longer waits, and was not seen as a holder
  noted     the note of a holder has changed
  broken    the store cannot read what it keeps of the name; the note is the reason

For a waiter the field of the token has its position in the queue. A field without a
value is "-"; texts are quoted as by holdfast ls.

` + inspectEnvironment + `

Exit status:
  0    q was pressed
  130  Ctrl-C was pressed, or SIGINT came` + inspectStatus

func newWatch(p *console.Printer) *cobra.Command {
	var store storeFlags
	asJSON := false
	cmd := &cobra.Command{
		Use:   "watch [flags] [NAME]",
		Short: "Follow one lock, or all of them, live",
		Long:  watchLong,
		Example: `  holdfast watch
  holdfast watch --json nightly | jq -r 'select(.event == "granted") | .holder.host'`,
		Args:              oneName("NAME", true),
		ValidArgsFunction: completeNames(&store),
		RunE: func(cmd *cobra.Command, args []string) error {
			return inspect(cmd, &store, p, func(ctx context.Context, l *holdfast.Locker) error {
				name := ""
				if len(args) > 0 {
					name = args[0]
				}
				return watch(ctx, cmd, l, name, asJSON)
			})
		},
	}
	store.add(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON, one object a line")
	return cmd
}

func watch(ctx context.Context, cmd *cobra.Command, l *holdfast.Locker, name string, asJSON bool) error {
	out := cmd.OutOrStdout()
	source := func(ctx context.Context, seen func([]driver.State) error) error {
		return watchStates(ctx, l, name, seen)
	}
	if !asJSON && screen(out) {
		title := "all locks"
		if name != "" {
			title = view.Text(name)
		}
		err := live.Run(ctx, title, name != "", source)
		if errors.Is(err, live.ErrInterrupted) {
			return exited(exit.BySignal(syscall.SIGINT))
		}
		return err
	}
	f, ok := out.(*os.File)
	if !ok {
		return printEvents(ctx, out, asJSON, source)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		// While no lock changes, there is no write that could detect a closed reader.
		if err := awaitReaderGone(ctx, f); err != nil {
			cancel(err)
		}
	}()
	err := printEvents(ctx, out, asJSON, source)
	if errors.Is(context.Cause(ctx), errPipe) {
		err = errPipe
	}
	cancel(nil)
	<-done
	return err
}

// screen reports whether w is a terminal that can show a table.
func screen(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok || !term.IsTerminal(f.Fd()) || os.Getenv("TERM") == "dumb" {
		return false
	}
	columns, rows, err := term.GetSize(f.Fd())
	return err == nil && columns > 0 && rows > 0
}

func printEvents(ctx context.Context, w io.Writer, asJSON bool, source live.Source) error {
	out := bufio.NewWriter(w)
	var f shape.Follower
	return source(ctx, func(states []driver.State) error {
		for _, e := range f.Next(states, time.Now()) {
			var err error
			if asJSON {
				err = shape.JSON(out, e, true)
			} else {
				err = view.Event(out, e)
			}
			if err != nil {
				return err
			}
		}
		return out.Flush()
	})
}

// watchStates watches the store, and calls seen with the states after each change until ctx ends. A job of
// Locker.Every is one state, as for ls.
func watchStates(ctx context.Context, l *holdfast.Locker, name string, seen func([]driver.State) error) error {
	watched, all, job := "all locks", l.WatchAll(ctx), false
	if name != "" {
		watched = strconv.Quote(name)
		st, err := shape.Inspect(ctx, l, name)
		if job = err == nil && st.Name != name; !job {
			all = oneByOne(l.Watch(ctx, name))
		}
	}
	for states, err := range all {
		if err != nil {
			return err
		}
		states = shape.Jobs(states, name)
		if job {
			states = slices.DeleteFunc(states, func(st driver.State) bool { return st.Name != name })
		}
		if err := seen(states); err != nil {
			return err
		}
	}
	if ctx.Err() == nil {
		return fmt.Errorf("the watch of %s has ended", watched)
	}
	return nil
}

// oneByOne yields each state as a slice of one.
func oneByOne(states iter.Seq2[driver.State, error]) iter.Seq2[[]driver.State, error] {
	return func(yield func([]driver.State, error) bool) {
		for st, err := range states {
			if !yield([]driver.State{st}, err) {
				return
			}
		}
	}
}
