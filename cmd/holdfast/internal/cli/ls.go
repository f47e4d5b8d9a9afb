package cli

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/console"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/exit"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/view"
	"github.com/holdfast-go/holdfast/internal/shape"
)

const lsLong = `Ls lists the names that are held or waited for, in byte order. With PREFIX it lists
only those that begin with it. It prints the holders of each name, since when and
why they hold it, and how many clients wait.

On a terminal it is a table that fits its width; columns without content are left
out. Elsewhere each holder is one line, without a heading, of twelve fields with
a tab between two of them:

  name state mode token slot since ttl holder instance reason note waiting

The state is "held", or "awaited" for a name with waiters and no holder. It is
"broken" if the store cannot read what it keeps of the name; the note is the reason.
All other names are listed, and the exit status is 78. With --waiters each waiter has a line as well, of the state "waiting" and with its
position in the last field. A field without a value is "-". Since is RFC 3339 in UTC,
ttl is in seconds. A text that is not printable, is "-", or begins with a quote
or a space, is quoted like a string of Go.

The locks that Locker.Every keeps for the ticks of a job are one row with the name of
the job: the lock of its newest tick, with their number in the note. Show and break
take that name, too. With the PREFIX JOB: they are listed one by one.

` + inspectEnvironment + `

Exit status:
  0    listed, also where there is nothing` + inspectStatus

func newLs(p *console.Printer) *cobra.Command {
	var store storeFlags
	asJSON, waiters := false, false
	cmd := &cobra.Command{
		Use:   "ls [flags] [PREFIX]",
		Short: "List the locks that are held or waited for",
		Long:  lsLong,
		Example: `  holdfast ls
  holdfast ls --waiters billing/
  # names that were held for more than an hour:
  holdfast ls --json | jq -r '.locks[] | select(any(.holders[]; .age_seconds > 3600)) | .name'`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 && args[0] == "" {
				return nil // every name begins with it
			}
			return oneName("PREFIX", true)(cmd, args)
		},
		ValidArgsFunction: completeNames(&store),
		RunE: func(cmd *cobra.Command, args []string) error {
			prefix := ""
			if len(args) > 0 {
				prefix = args[0]
			}
			return inspect(cmd, &store, p, func(ctx context.Context, l *holdfast.Locker) error {
				states, err := list(ctx, l, prefix)
				if err != nil {
					return err
				}
				states = shape.Jobs(states, prefix)
				if err := printList(cmd.OutOrStdout(), states, asJSON, waiters); err != nil {
					return err
				}
				return brokenRecords(p, states)
			})
		},
	}
	store.add(cmd)
	cmd.Flags().BoolVar(&waiters, "waiters", false, "list each waiter, in the order of the queue")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// brokenRecords prints how many of the listed records are broken, and returns the exit status for that.
func brokenRecords(p *console.Printer, states []holdfast.State) error {
	n := 0
	for _, st := range states {
		if st.Err != nil {
			n++
		}
	}
	if n == 0 {
		return nil
	}
	p.Line("%d of the listed records cannot be read", n)
	return exited(exit.Refused)
}

func printList(w io.Writer, states []holdfast.State, asJSON, waiters bool) error {
	now := time.Now()
	if asJSON {
		return shape.JSON(w, shape.OfList(states, now), false)
	}
	out := bufio.NewWriter(w)
	if columns, terminal := console.Width(w); terminal {
		if len(states) == 0 {
			fmt.Fprintln(out, "nothing is held or waited for")
			return out.Flush()
		}
		for _, line := range view.Table(states, now, waiters, columns) {
			fmt.Fprintln(out, line)
		}
		return out.Flush()
	}
	for _, st := range states {
		if err := view.Lines(out, st, waiters); err != nil {
			return err
		}
	}
	return out.Flush()
}
