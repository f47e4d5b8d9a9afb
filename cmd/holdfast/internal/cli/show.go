package cli

import (
	"context"
	"errors"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/console"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/view"
	"github.com/holdfast-go/holdfast/internal/shape"
)

const showLong = `Show prints one lock. For each holder it prints the fencing token, the time of the grant,
when the grant ends without a release, and notes (stopped, end requested). The waiters
follow, in the order of the queue if the store has one.

If the holder waits for a lock whose holder waits for this one, in two steps or more, show
prints this possible deadlock. It is one unless one of the processes works on several things
at a time.

For a job of Locker.Every it prints the lock that holdfast ls shows in the job's row.

A name without holders and waiters is free, which is not an error.

` + inspectEnvironment + `

Exit status:
  0    shown, also where it is free` + inspectStatus

func newShow(p *console.Printer) *cobra.Command {
	var store storeFlags
	asJSON := false
	cmd := &cobra.Command{
		Use:   "show [flags] NAME",
		Short: "Show one lock, its holders and its queue",
		Long:  showLong,
		Example: `  holdfast show nightly
  # the token for holdfast break:
  holdfast show --json nightly | jq -r '.holders[0].token'`,
		Args:              oneName("NAME", false),
		ValidArgsFunction: completeNames(&store),
		RunE: func(cmd *cobra.Command, args []string) error {
			return inspect(cmd, &store, p, func(ctx context.Context, l *holdfast.Locker) error {
				st, err := shape.Inspect(ctx, l, args[0])
				if err != nil {
					return err
				}
				now, cycles := time.Now(), deadlocks(ctx, l, p, st)
				if asJSON {
					lock := shape.Of(st, now)
					lock.Deadlocks = cycles
					return shape.JSON(cmd.OutOrStdout(), lock, false)
				}
				return errors.Join(view.Page(cmd.OutOrStdout(), st, now), view.Deadlocks(cmd.OutOrStdout(), cycles))
			})
		},
	}
	store.add(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// deadlockTimeout is the timeout of the list in which show looks for deadlocks.
const deadlockTimeout = 5 * time.Second

// deadlocks returns the deadlocks through a name that is held and awaited. Other names have none.
func deadlocks(ctx context.Context, l *holdfast.Locker, p *console.Printer, st holdfast.State) [][]shape.Wait {
	if len(st.Holders) == 0 || len(st.Waiters) == 0 {
		return nil
	}
	limited, cancel := context.WithTimeout(ctx, deadlockTimeout)
	defer cancel()
	states, err := list(limited, l, "")
	if err != nil {
		p.Line("deadlocks are not shown: %v", err)
	}
	return shape.Through(shape.Deadlocks(states), st.Name)
}
