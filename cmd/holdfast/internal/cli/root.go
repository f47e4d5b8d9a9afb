// Package cli implements the command line: subcommands, flags, help, and output.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/console"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/exit"
)

// Main runs the command with the arguments after the program's name, and returns the exit status.
func Main(args []string) int {
	worker()
	status := execute(args)
	if status != exit.OK && len(args) > 0 && args[0] == "hold" {
		// A script that passes the output to eval without a check of the status must not go on unlocked. An
		// interactive shell only gets the status, so that its terminal stays open.
		fmt.Printf("case $- in *i*) (exit %[1]d) ;; *) exit %[1]d ;; esac\n", status)
	}
	return status
}

func execute(args []string) int {
	p := console.New(os.Stderr)
	defer p.Flush()
	if status, ok := helper(args, p); ok {
		return status
	}
	root := newRoot(p)
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(context.Background())
	if err == nil {
		return exit.OK
	}
	if status, ok := errors.AsType[exited](err); ok {
		return int(status)
	}
	p.Line("%v", err)
	if e, ok := errors.AsType[*fs.PathError](err); ok && e.Op == "write" {
		return exit.Output
	}
	// Cobra and this package return the other errors. They report bad usage.
	status := exit.Usage
	if isLibraryError(err) {
		status = exit.Of(err, exit.Busy)
	}
	if status == exit.Usage {
		p.Line("see: %s --help", cmd.CommandPath())
	}
	return status
}

// exited is the exit status of a subcommand that has already printed its errors.
type exited int

func (e exited) Error() string { return fmt.Sprintf("exit status %d", int(e)) }

// isLibraryError reports whether err is an error of the library. Other errors concern the command
// line.
func isLibraryError(err error) bool {
	return slices.ContainsFunc([]error{
		holdfast.ErrBusy, holdfast.ErrLost, holdfast.ErrUnavailable, holdfast.ErrRefused, holdfast.ErrUnsupported,
		holdfast.ErrInvalid, holdfast.ErrSelfDeadlock, holdfast.ErrNotHeld, holdfast.ErrClosed, holdfast.ErrMissed,
	}, func(target error) bool { return errors.Is(err, target) })
}

func newRoot(p *console.Printer) *cobra.Command {
	root := &cobra.Command{
		Use:   "holdfast",
		Short: "Distributed locks for commands, on the store that you already run",
		Long: `Holdfast runs a command while it holds a lock, on the store that you
already run. Without a store, locks are files of this user on this machine.`,
		Example: `  holdfast run nightly-report -- ./report.sh
  holdfast run --try --min-hold 5m nightly-report -- ./report.sh
  holdfast ls
  holdfast stores
  holdfast doctor redis://localhost:6379
  holdfast check --local file`,
		Version:       thisVersion().Version,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			hint := ""
			if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
				hint = "; the nearest is " + strings.Join(near, " or ")
			}
			return fmt.Errorf("unknown command %q%s", args[0], hint)
		},
		// SuggestionsFor suggests names up to this distance. Cobra sets the default only when it
		// prints suggestions itself.
		SuggestionsMinimumDistance: 2,
		RunE: func(*cobra.Command, []string) error {
			return errors.New("no command given")
		},
	}
	root.SetVersionTemplate("holdfast {{.Version}}\n")
	root.SetFlagErrorFunc(flagError)
	root.AddCommand(newRun(p), newHold(p), newLs(p), newShow(p), newBreak(p), newWatch(p), newServe(p), newMCP(p), newStores(p),
		newDoctor(p), newInit(p), newCheck(p), newLab(p), newVersion())
	root.InitDefaultHelpCmd()
	root.CompletionOptions.DisableNoDescFlag = true
	root.InitDefaultCompletionCmd()
	for _, c := range root.Commands() {
		c.DisableFlagsInUseLine = true
		c.Flags().SortFlags = false
		switch c.Name() {
		case "help":
			c.Args = oneTopic
		case "completion":
			c.RunE = func(*cobra.Command, []string) error { return errors.New("no shell given") }
		}
	}
	return root
}

// oneTopic refuses an unknown topic of help. Without it, cobra prints the usage and exits with
// status 0.
func oneTopic(cmd *cobra.Command, args []string) error {
	if _, left, err := cmd.Root().Find(args); err != nil || len(left) > 0 {
		return fmt.Errorf("no help on %q: give one of the commands that holdfast --help lists", strings.Join(args, " "))
	}
	return nil
}

// flagError returns an error that names a flag, the value, and the allowed values. It quotes
// nothing else of the command line, because the rest may contain a password.
func flagError(cmd *cobra.Command, err error) error {
	if e, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
		reason := errors.Unwrap(e).Error()
		if e.GetFlag().Value.Type() == "bool" {
			reason = "give true or false, or leave the value out"
		}
		return fmt.Errorf("--%s %q: %s", e.GetFlag().Name, e.GetValue(), reason)
	}
	if e, ok := errors.AsType[*pflag.ValueRequiredError](err); ok {
		return fmt.Errorf("--%s: a value is missing", e.GetFlag().Name)
	}
	hint := ""
	if cmd.Name() == "run" {
		hint = " (flags of the command to run come after --)"
	}
	if e, ok := errors.AsType[*pflag.NotExistError](err); ok {
		if e.GetSpecifiedShortnames() == "" {
			return fmt.Errorf("unknown flag --%s%s", e.GetSpecifiedName(), hint)
		}
		return fmt.Errorf("unknown flag -%s; flags have long names, with two dashes%s", e.GetSpecifiedName(), hint)
	}
	return err
}
