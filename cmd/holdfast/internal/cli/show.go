package cli

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/say"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/view"
)

const showLong = `Show tells everything about one lock: each holder with its fencing token, how
long it has held, when it ends by itself, and what there is to note (stopped,
asked to end); and each waiter, in the order in which they will be served where
the store has one.

A name that nobody holds or waits for is free, which is no error.

` + lookEnvironment + `

Exit status:
  0    shown, also where it is free` + lookStatus

func newShow(p *say.Printer) *cobra.Command {
	var store storeFlags
	asJSON := false
	cmd := &cobra.Command{
		Use:   "show [flags] NAME",
		Short: "Show one lock, its holders and its queue",
		Long:  showLong,
		Example: `  holdfast show nightly
  # the token that holdfast break wants:
  holdfast show --json nightly | jq -r '.holders[0].token'`,
		Args:                  oneName("NAME", false),
		ValidArgsFunction:     completeNames(&store),
		DisableFlagsInUseLine: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			return look(cmd, &store, p, func(ctx context.Context, l *holdfast.Locker) error {
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
	cmd.Flags().SortFlags = false
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}
