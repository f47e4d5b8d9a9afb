//go:build linux || darwin

package cli

import (
	"errors"
	"fmt"
	"io"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-go/holdfast/check"
	"github.com/holdfast-go/holdfast/check/lab"
	"github.com/holdfast-go/holdfast/check/lab/story"
	"github.com/holdfast-go/holdfast/check/servers"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/console"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/exit"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/view"
)

func newLab(p *console.Printer) *cobra.Command {
	seed := number{n: 1, least: 1, most: math.MaxInt}
	limit := duration{d: time.Minute, least: 4 * time.Second, most: time.Hour, allowed: "a duration from 4s to 1h"}
	dir := text{check: func(s string) error {
		if s == "" {
			return errors.New("give a directory")
		}
		return nil
	}}
	all := false
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
		ValidArgs: slices.Concat(storyNames(), labNames()),
		RunE: func(cmd *cobra.Command, args []string) error {
			out := cmd.OutOrStdout()
			switch {
			case all && len(args) > 0:
				return errors.New("--all and names exclude each other: give one")
			case all:
				args = slices.Concat(storyNames(), labNames())
			case len(args) == 0:
				return listLab(out)
			}
			for _, name := range args {
				if _, ok := story.Find(name); ok {
					continue
				}
				if _, err := lab.Find(name); err != nil {
					return fmt.Errorf("%w; or give a story: %s", err, strings.Join(storyNames(), ", "))
				}
			}
			ctx, stop := interruptible(cmd.Context())
			defer stop()
			set, err := story.NewSet()
			if err != nil {
				return err
			}
			defer set.Close()
			var drawn []*story.Result
			wrong, missing := false, false
			for i, name := range args {
				if i > 0 {
					fmt.Fprintln(out)
				}
				if y, ok := story.Find(name); ok {
					p.Status("%s: on %s", name, y.Server)
					r, err := story.Play(ctx, y, set)
					p.Done()
					if errors.Is(err, servers.ErrNotInstalled) && ctx.Err() == nil {
						p.Line("%v", err)
						missing = true
						continue
					}
					if err != nil {
						return notDone(ctx, p, err)
					}
					if err := r.Text(out, view.ASCII()); err != nil {
						return err
					}
					drawn, wrong = append(drawn, r), wrong || !r.OK()
					continue
				}
				o := lab.Options{Seed: uint64(seed.n), Duration: limit.d, Dir: dir.s, Progress: func(g check.Progress) {
					p.Line("%s: %s of %s; %s", name, g.Elapsed.Round(time.Second), g.Total, g.Last)
				}}
				r, err := lab.Run(ctx, name, o)
				if err != nil {
					return notDone(ctx, p, err)
				}
				wrong = !printExperiment(out, r) || wrong
			}
			if dir.s != "" && len(drawn) > 0 {
				if err := story.Write(dir.s, drawn); err != nil {
					return err
				}
				fmt.Fprintf(out, "drawings: %s\n", filepath.Join(dir.s, "index.html"))
			}
			switch {
			case missing:
				return exited(exit.Unavailable)
			case wrong:
				return broken
			}
			return nil
		},
	}
	flags := cmd.Flags()
	flags.BoolVar(&all, "all", false, "run all stories and mistakes, one after the other")
	flags.Var(&seed, "seed", "decides the schedule of work and faults")
	flags.Var(&limit, "duration", "give up if a mistake is not proved after this time, 4s to 1h")
	flags.Var(&dir, "dir", "the `DIRECTORY` for drawings, histories and pages (default a temporary one for each mistake)")
	return cmd
}

// labNames returns the names of the mistakes, and of the lock without a mistake.
func labNames() []string {
	names := []string{lab.Control}
	for _, m := range lab.Mistakes() {
		names = append(names, m.Name)
	}
	return names
}

func storyNames() []string {
	var names []string
	for _, y := range story.Stories() {
		names = append(names, y.Name)
	}
	return names
}

// listLab prints the stories and the mistakes.
func listLab(out io.Writer) error {
	tw := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "stories, played on a real server:")
	for _, y := range story.Stories() {
		fmt.Fprintf(tw, "  %s\t%s (%s)\n", y.Name, y.Title, y.Server)
	}
	fmt.Fprintln(tw, "mistakes, found by a check:")
	for _, name := range labNames() {
		m, err := lab.Find(name)
		if err != nil {
			return err
		}
		fmt.Fprintf(tw, "  %s\t%s\n", m.Name, m.Title)
	}
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
