package cli

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/console"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/view"
)

const completionLong = `Completion prints a script that lets a shell complete this command's words: its
subcommands and flags, and the names of locks that are held or waited for, from
the store that the flags and the environment give. A store that does not answer
within a second completes nothing.

Names that a shell would not read as one plain word are not offered.`

const completionExample = `  # bash (needs the package bash-completion), for all users:
  holdfast completion bash > /etc/bash_completion.d/holdfast
  # zsh, after compinit, in a directory of $fpath:
  holdfast completion zsh > "${fpath[1]}/_holdfast"
  # fish:
  holdfast completion fish > ~/.config/fish/completions/holdfast.fish`

func newCompletion() *cobra.Command {
	shells := []string{"bash", "zsh", "fish"}
	return &cobra.Command{
		Use:       "completion bash|zsh|fish",
		Short:     "Print a script for a shell's completion",
		Long:      completionLong,
		Example:   completionExample,
		ValidArgs: shells,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return fmt.Errorf("%d arguments: give one shell: bash, zsh or fish", len(args))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			root, out := cmd.Root(), cmd.OutOrStdout()
			switch args[0] {
			case "bash":
				return root.GenBashCompletionV2(out, true)
			case "zsh":
				return root.GenZshCompletion(out)
			case "fish":
				return root.GenFishCompletion(out, true)
			}
			return fmt.Errorf("shell %q: give bash, zsh or fish", args[0])
		},
	}
}

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
