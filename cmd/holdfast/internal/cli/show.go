package cli

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/console"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/view"
)

const showLong = `Show prints one lock. For each holder it prints the fencing token, the time of the grant,
when the grant ends without a release, and notes (stopped, end requested). The waiters
follow, in the order of the queue if the store has one.

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
				st, err := l.Inspect(ctx, args[0])
				if err != nil {
					return err
				}
				now := time.Now()
				if asJSON {
					return view.JSON(cmd.OutOrStdout(), view.ShapeOf(st, now), false)
				}
				return view.Page(cmd.OutOrStdout(), st, now)
			})
		},
	}
	store.add(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}
