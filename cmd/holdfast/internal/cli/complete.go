package cli

import (
	"context"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/console"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/view"
)

// completeTimeout is the timeout of one completion.
const completeTimeout = time.Second

// completeNames returns a function that completes one NAME from the names at the store. The
// function prints nothing. After an error it returns no completion.
func completeNames(f *storeFlags) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, toComplete string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), completeTimeout)
		defer cancel()
		found := make(chan []cobra.Completion, 1)
		go func() { found <- names(ctx, f, toComplete) }()
		select {
		case n := <-found:
			return n, cobra.ShellCompDirectiveNoFileComp
		case <-ctx.Done():
			// A store that ignores ctx continues its call until this process ends.
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
	}
}

// names returns the names at the store that begin with prefix, except those that a shell does not
// read as one plain word.
func names(ctx context.Context, f *storeFlags, prefix string) []cobra.Completion {
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		return nil
	}
	defer null.Close()
	quiet := console.New(null)
	defer quiet.Flush()
	storeURL, _, err := f.resolve(quiet)
	if err != nil {
		return nil
	}
	l, err := open(ctx, storeURL, f.namespace.s, true)
	if err != nil {
		return nil
	}
	defer l.Close(ctx)
	states, err := list(ctx, l, prefix)
	if err != nil {
		return nil
	}
	var found []cobra.Completion
	for _, st := range states {
		if view.Plain(st.Name) {
			found = append(found, st.Name)
		}
	}
	return found
}
