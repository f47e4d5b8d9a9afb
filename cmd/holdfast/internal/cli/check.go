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
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-go/holdfast/check"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/console"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/exit"
)

// broken is the exit status of a check that has found a broken rule.
const broken = exited(1)

// worker runs as the worker or as the gateway of a check, and does not return, if a check has started this process
// for that.
func worker() {
	check.Holdfast = Main
	check.MaybeWorker()
}

type checkFlags struct {
	store                 storeFlags
	local, faults, dir    text
	seed, workers, names  number
	duration, round, lock duration
}

func newCheck(p *console.Printer) *cobra.Command {
	f := &checkFlags{
		local: text{check: func(s string) error {
			if !slices.Contains(check.Locals(), s) {
				return fmt.Errorf("give one of %s", strings.Join(check.Locals(), ", "))
			}
			return nil
		}},
		faults: text{check: func(s string) error {
			if strings.ContainsAny(s, " \t\n") {
				return errors.New("give names separated by commas, without spaces")
			}
			return nil
		}},
		dir:      text{check: checkDirectory},
		seed:     number{n: 1, least: 1, most: math.MaxInt},
		workers:  number{n: 4, least: 1, most: 64},
		names:    number{n: 3, least: 1, most: 1000},
		duration: duration{d: 10 * time.Second, least: time.Second, most: 168 * time.Hour},
		round:    duration{least: time.Second, most: 10 * time.Minute},
		lock:     duration{least: 200 * time.Millisecond, most: time.Minute},
	}
	cmd := &cobra.Command{
		Use:   "check [flags]",
		Short: "Torture a store and judge what happens",
		Long: `Check lets worker processes compete for locks on a store while they are killed,
stopped and cut off. It records what each process observed, and judges it: no lock
has two holders, tokens rise, no context outlives its lock, no waiter waits
forever, no tick is served twice, no id is drawn twice, no write of a value is
lost, nothing remains. It uses names of its own, name-0, name-1 and so on, and
leaves a few values: give a namespace, or a store, that nothing else uses.

Exit status:
  0    every rule held
  1    a rule was broken: the events that show it are printed, and the history
       and a page with its timeline are kept
  64   bad usage
  69   the store cannot be reached, does not answer or could not be started
  78   the store refused
  128+n  signal n ended it`,
		Example: `  holdfast check --local file
  holdfast check --store file:///var/lib/locks --namespace check --duration 10m --dir /var/tmp/check`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := f.config(p)
			if err != nil {
				return err
			}
			ctx, stop := interruptible(cmd.Context())
			defer stop()
			r, err := check.Run(ctx, c)
			if err != nil {
				return notDone(ctx, p, err)
			}
			return outcome(ctx, p, verdict(cmd.OutOrStdout(), r))
		},
	}
	f.store.add(cmd)
	flags := cmd.Flags()
	flags.Var(&f.local, "local", "start a `STORE` for this run alone: "+strings.Join(check.Locals(), ", "))
	flags.Var(&f.duration, "duration", "how long, 1s to 168h")
	flags.Var(&f.seed, "seed", "decides the schedule of work and faults")
	flags.Var(&f.workers, "workers", "how many processes compete, 1 to 64")
	flags.Var(&f.names, "names", "for how many names, 1 to 1000")
	flags.Var(&f.lock, "ttl", "TTL of the locks, 200ms to 1m (default 600ms, or the store's shortest)")
	flags.Var(&f.faults, "faults", "only these faults, separated by commas; empty for none (default all that apply)")
	flags.Var(&f.round, "round", "judge after this time and start again, 1s to 10m (default 30s)")
	flags.Var(&f.dir, "dir", "the `DIRECTORY` for history and page (default a temporary one, kept if a rule is broken)")
	return cmd
}

func checkDirectory(s string) error {
	if s == "" {
		return errors.New("give a directory")
	}
	return nil
}

// flagOf maps each field of a check's configuration to its flag.
var flagOf = map[string]string{
	"Namespace": "--namespace", "Duration": "--duration", "Round": "--round", "TTL": "--ttl", "Workers": "--workers",
	"Names": "--names", "Faults": "--faults", "Dir": "--dir", "Local": "--local",
}

// notDone returns the error of a check that could not run. An error without another meaning
// counts as an unavailable store.
func notDone(ctx context.Context, p *console.Printer, err error) error {
	if bad, ok := errors.AsType[*check.ConfigError](err); ok && flagOf[bad.Field] != "" {
		return fmt.Errorf("%s %s", flagOf[bad.Field], bad.Text)
	}
	if ctx.Err() == nil && !isLibraryError(err) {
		p.Line("%v", err)
		return exited(exit.Unavailable)
	}
	return outcome(ctx, p, err)
}

func (f *checkFlags) config(p *console.Printer) (check.Config, error) {
	c := check.Config{
		Local: f.local.s, Namespace: f.store.namespace.s, Seed: uint64(f.seed.n), Duration: f.duration.d, Round: f.round.d,
		Workers: f.workers.n, Names: f.names.n, TTL: f.lock.d, Dir: f.dir.s,
	}
	if f.faults.given {
		c.Faults = []string{}
		if f.faults.s != "" {
			c.Faults = strings.Split(f.faults.s, ",")
		}
	}
	switch {
	case !f.local.given:
		raw, dir, err := f.store.resolve(p)
		if err != nil {
			return c, err
		}
		if dir != "" {
			return c, fmt.Errorf("--local or --store is missing: check does not torture the locks in %s", dir)
		}
		c.URL = raw
	case f.store.url.given || f.store.file.given:
		return c, errors.New("--local and --store exclude each other: give one")
	}
	c.Progress = func(g check.Progress) {
		p.Line("%s of %s, round %d, %d faults, %d KB of history; %s",
			g.Elapsed.Round(time.Second), g.Total, g.Round+1, g.Faults, g.Bytes>>10, g.Last)
	}
	return c, nil
}

func verdict(out io.Writer, r *check.Report) error {
	if err := r.Summary(out); err != nil {
		return err
	}
	if err := r.Explain(out); err != nil {
		return err
	}
	if r.Dir != "" {
		fmt.Fprintf(out, "\nhistory and timeline: %s\n", r.Dir)
	}
	if !r.OK() {
		return broken
	}
	return nil
}
