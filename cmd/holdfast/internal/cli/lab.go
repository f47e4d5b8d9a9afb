//go:build linux || darwin

package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-go/holdfast/check"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/console"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/exit"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/lab"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/view"
	"github.com/holdfast-go/holdfast/internal/servers"
)

// labFlags contains the values of lab's flags.
type labFlags struct {
	all   bool
	seed  number
	limit duration
	dir   text
}

func newLab(p *console.Printer) *cobra.Command {
	f := &labFlags{
		seed:  number{n: 1, least: 1, most: math.MaxInt},
		limit: duration{d: time.Minute, least: 4 * time.Second, most: time.Hour},
		dir:   text{check: checkDirectory},
	}
	cmd := &cobra.Command{
		Use:   "lab [NAME...] [flags]",
		Short: "Show how locks go wrong, on real servers and in a check",
		Long: `Lab shows how locks go wrong, in two ways.

A story runs on a real server, which lab starts and ends. It shows two clients
with a wrong lock, and the order of their steps that breaks the lock. Then it
shows holdfast in the same situation. Lab draws both; time runs downwards.

A mistake is a lock with one of the classic mistakes, on a small server in this
process. Workers compete for the lock under the faults that reveal the mistake.
Lab prints the events that prove it. The name "none" is the same lock without a
mistake.

Without a name lab lists the stories and the mistakes.

Exit status:
  0    each story ended as expected, lab found each mistake, and it found none
       in the lock "none"
  1    a story did not end as expected, lab did not find a mistake in time, or
       it found one in the lock "none"
  64   bad usage
  69   the server of a story is not installed, or does not start
  128+n  signal n ended it`,
		Example: `  holdfast lab
  holdfast lab late-delete
  holdfast lab delete-anyones
  holdfast lab --all`,
		ValidArgs: labNames(),
		RunE: func(cmd *cobra.Command, args []string) error {
			names, err := f.names(args)
			if err != nil {
				return err
			}
			if len(names) == 0 {
				return listLab(cmd.OutOrStdout())
			}
			ctx, stop := interruptible(cmd.Context())
			defer stop()
			set, err := lab.NewSet()
			if err != nil {
				return err
			}
			defer set.Close()
			r := &labRun{labFlags: f, printer: p, out: cmd.OutOrStdout(), set: set}
			return r.run(ctx, names)
		},
	}
	flags := cmd.Flags()
	flags.BoolVar(&f.all, "all", false, "run all stories and mistakes, one after the other")
	flags.Var(&f.seed, "seed", "decides the schedule of work and faults")
	flags.Var(&f.limit, "duration", "give up if a mistake is not proved after this time, 4s to 1h")
	flags.Var(&f.dir, "dir", "the `DIRECTORY` for drawings, histories and pages (default a temporary one for each mistake)")
	return cmd
}

// names returns the names of the stories and mistakes to run. It refuses an unknown name.
func (f *labFlags) names(args []string) ([]string, error) {
	if f.all {
		if len(args) > 0 {
			return nil, errors.New("--all and names exclude each other: give one")
		}
		return labNames(), nil
	}
	for _, name := range args {
		if !slices.Contains(labNames(), name) {
			return nil, fmt.Errorf("no mistake or story %q: choose from %s", name, strings.Join(labNames(), ", "))
		}
	}
	return args, nil
}

// labRun is one run of lab, with the results so far.
type labRun struct {
	*labFlags
	printer *console.Printer
	out     io.Writer
	set     *lab.Set

	played     []*lab.Result
	unexpected bool // a result was not the expected one
	missing    bool // the server of a story is not installed
}

// run runs the stories and mistakes one after the other, and writes the drawings of the stories.
func (r *labRun) run(ctx context.Context, names []string) error {
	for i, name := range names {
		if i > 0 {
			fmt.Fprintln(r.out)
		}
		run := r.mistake
		if _, _, ok := lab.FindStory(name); ok {
			run = r.story
		}
		if err := run(ctx, name); err != nil {
			return err
		}
	}
	if r.dir.s != "" && len(r.played) > 0 {
		if err := lab.Write(r.dir.s, r.played); err != nil {
			return err
		}
		fmt.Fprintf(r.out, "drawings: %s\n", r.dir.s)
	}
	switch {
	case r.missing:
		return exited(exit.Unavailable)
	case r.unexpected:
		return broken
	}
	return nil
}

// story plays a story and prints its result. If the server is not installed, it continues without
// an error.
func (r *labRun) story(ctx context.Context, name string) error {
	_, y, _ := lab.FindStory(name)
	r.printer.Status("%s: on %s", name, y.Server)
	result, err := lab.Play(ctx, name, r.set)
	r.printer.Done()
	if errors.Is(err, servers.ErrNotInstalled) && ctx.Err() == nil {
		r.printer.Line("%v", err)
		r.missing = true
		return nil
	}
	if err != nil {
		return notDone(ctx, r.printer, err)
	}
	if err := result.Text(r.out, view.ASCII()); err != nil {
		return err
	}
	r.played = append(r.played, result)
	r.unexpected = r.unexpected || !result.OK()
	return nil
}

// mistake checks a lock with a mistake, or the lock without one, and prints the verdict.
func (r *labRun) mistake(ctx context.Context, name string) error {
	o := lab.Options{Seed: uint64(r.seed.n), Duration: r.limit.d, Dir: r.dir.s, Progress: func(g check.Progress) {
		r.printer.Line("%s: %s of %s; %s", name, g.Elapsed.Round(time.Second), g.Total, g.Last)
	}}
	v, err := lab.Check(ctx, name, o)
	if err != nil {
		return notDone(ctx, r.printer, err)
	}
	r.unexpected = !printExperiment(r.out, v) || r.unexpected
	return nil
}

// labNames returns the names of the stories, of the mistakes that a check convicts, and of the lock without
// a mistake.
func labNames() []string {
	var stories []string
	mistakes := []string{lab.Control}
	for _, m := range lab.Mistakes() {
		for _, y := range m.Stories {
			stories = append(stories, y.Name)
		}
		if m.Checked() {
			mistakes = append(mistakes, m.Name)
		}
	}
	return slices.Concat(stories, mistakes)
}

// listLab prints the mistakes, each with its stories.
func listLab(out io.Writer) error {
	tw := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "mistakes, found by a check, and their stories, played on a real server:")
	for _, m := range lab.Mistakes() {
		fmt.Fprintf(tw, "%s\t%s\n", m.Name, m.Title)
		for _, y := range m.Stories {
			fmt.Fprintf(tw, "  %s\t%s: %s\n", y.Name, y.Server, y.Code)
		}
	}
	fmt.Fprintf(tw, "%s\tthe same lock without a mistake\n", lab.Control)
	return tw.Flush()
}

// printExperiment prints the result of an experiment, and reports whether it is the expected
// one.
func printExperiment(out io.Writer, r *lab.Verdict) bool {
	m := &r.Mistake
	fmt.Fprintf(out, "%s: %s\n", m.Name, m.Title)
	tw := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, row := range [][2]string{{"the code", m.Code}, {"what happens", m.What}, {"holdfast", m.Instead}} {
		if row[1] != "" {
			fmt.Fprintf(tw, "  %s\t%s\n", row[0], row[1])
		}
	}
	_ = tw.Flush()
	defer func() {
		if r.Report.Dir != "" {
			fmt.Fprintf(out, "history and timeline: %s\n", r.Report.Dir)
		}
	}()
	switch {
	case r.Expected != nil:
		fmt.Fprintf(out, "mistake found, seed %d:\n", r.Seed)
		_ = (&check.Report{Violations: []check.Violation{*r.Expected}, Start: r.Report.Start}).Explain(out)
		return true
	case r.Report.OK() && m.Name == lab.Control:
		fmt.Fprintf(out, "no mistake found, seed %d: %d locks granted, every rule held\n", r.Seed, r.Report.Stats.Grants)
		return true
	case r.Report.OK():
		fmt.Fprintf(out, "mistake not found in %d runs: give more time, or another seed\n", r.Runs)
	default:
		fmt.Fprintf(out, "another mistake found, seed %d:\n", r.Seed)
		_ = r.Report.Explain(out)
	}
	return false
}
