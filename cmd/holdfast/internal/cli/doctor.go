package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/console"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/printable"
	"github.com/holdfast-go/holdfast/internal/shape"
)

// examineTimeout limits the checks of a store.
const examineTimeout = time.Minute

// breaks is the exit status for a finding that breaks a promise.
const breaks = exited(1)

// diagnosis is the output of `holdfast doctor --json`.
type diagnosis struct {
	URL      string       `json:"url"`
	Recipe   string       `json:"recipe"` // "" if the store refused
	Checks   int          `json:"checks"`
	Findings []finding    `json:"findings"`
	Measured *measurement `json:"measured,omitempty"`
}

type finding struct {
	Weight      driver.Weight `json:"weight"`
	Check       string        `json:"check"`
	Evidence    string        `json:"evidence"`
	Want        string        `json:"want"`
	Consequence string        `json:"consequence"`
	Remedy      string        `json:"remedy"`
}

func newDoctor(p *console.Printer) *cobra.Command {
	var store storeFlags
	var asJSON, measures bool
	cmd := &cobra.Command{
		Use:   "doctor [flags] URL",
		Short: "Examine the server of a store: which settings harm locks",
		Long: `Doctor reads the settings of a store's server and tries what can be tried. It prints what it
found, what that does to locks, and what to do about it. The findings that break a promise
come first, then those that cost time, then notes. It changes no lock. A user with few rights
sees less: a note lists what could not be read. docs/doctor.md lists the checks.

With --measure it also takes locks under a name of its own for five seconds, and advises the
smallest TTL and how many callers at a time the server serves.

With --store-file the URL is in a file. Without both it is HOLDFAST_STORE, or in
HOLDFAST_STORE_FILE.

Exit status:
  0    no finding breaks a promise
  1    a finding breaks a promise, or the output cannot be written
  64   bad usage, or the URL is wrong
  69   the store cannot be reached or does not answer
  78   the server refused to be examined
  128+n  signal n ended it; 141 where the reader of its output has gone`,
		Example: `  holdfast doctor redis://localhost:6379
  holdfast doctor --measure --store-file /etc/holdfast/store`,
		Args: store.urlArgument,
		RunE: func(cmd *cobra.Command, _ []string) error {
			raw, _, err := store.resolve(p)
			if err != nil {
				return err
			}
			ctx, stop := interruptible(cmd.Context())
			defer stop()
			d, err := diagnose(ctx, p, raw, measures)
			if err == nil {
				err = d.print(cmd.OutOrStdout(), asJSON)
			}
			if err == nil && d.count(driver.WeightBreaks) > 0 {
				err = breaks
			}
			return outcome(ctx, p, err)
		},
	}
	cmd.Flags().Var(&store.file, "store-file", storeFileUsage)
	cmd.Flags().BoolVar(&measures, "measure", false, "measure round trips and pairs of lock and unlock")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// refusal is the check that a store makes itself: when it is opened, or at its first request.
var refusal = driver.Check{
	Name: "refused", Weight: driver.WeightBreaks, Want: "a server that the store accepts",
	Consequence: "every lock is refused", Remedy: "see the evidence; the other checks are complete only after that",
}

// exposed is the check of driver.Exposer.
var exposed = driver.Check{
	Name: "exposed", Weight: driver.WeightNote, Want: "TLS to a verified server",
	Consequence: "the network can read the password, and change every answer", Remedy: "see docs/security.md",
}

// diagnose examines the store of a URL. What the store refuses is a finding.
func diagnose(ctx context.Context, p *console.Printer, raw string, measures bool) (*diagnosis, error) {
	d := &diagnosis{URL: printable.Redact(raw, printable.Secrets(raw)...), Findings: []finding{}, Checks: 2}
	secrets := printable.Secrets(raw)
	add := func(c driver.Check, evidence string) {
		evidence = printable.Escape(printable.Redact(evidence, secrets...))
		d.Findings = append(d.Findings, finding{c.Weight, c.Name, evidence, c.Want, c.Consequence, c.Remedy})
	}
	limited, cancel := context.WithTimeout(ctx, examineTimeout)
	defer cancel()
	s, err := openDriver(limited, raw)
	if errors.Is(err, holdfast.ErrRefused) {
		add(refusal, err.Error())
		return d, nil
	} else if err != nil {
		return nil, err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
		defer cancel()
		_ = s.Close(ctx)
	}()
	if e, ok := s.(driver.Exposer); ok && e.Exposed() != "" {
		add(exposed, e.Exposed())
	}
	l, err := holdfast.New(s)
	if err != nil {
		return nil, err
	}
	defer closeBriefly(ctx, l)
	g, refused := l.Guarantees(limited)
	if refused != nil && !errors.Is(refused, holdfast.ErrRefused) {
		return nil, refused
	} else if refused != nil {
		add(refusal, refused.Error())
	}
	d.Recipe = g.Kind
	if e, ok := s.(driver.Examiner); ok {
		d.Checks += len(e.Checks())
		found, err := e.Examine(limited)
		if err != nil && refused == nil {
			return nil, storeError(err)
		}
		for _, f := range found {
			add(f.Check, f.Evidence)
		}
	}
	slices.SortStableFunc(d.Findings, func(a, b finding) int { return cmp.Compare(heaviness(a.Weight), heaviness(b.Weight)) })
	if measures && refused == nil {
		p.Status("measuring for about %s", measureFor)
		d.Measured, err = measure(ctx, l, g)
		p.Done()
	}
	return d, err
}

var weights = []driver.Weight{driver.WeightBreaks, driver.WeightCosts, driver.WeightNote}

func heaviness(w driver.Weight) int { return slices.Index(weights, w) }

func (d *diagnosis) count(w driver.Weight) (n int) {
	for _, f := range d.Findings {
		if f.Weight == w {
			n++
		}
	}
	return n
}

func (d *diagnosis) print(w io.Writer, asJSON bool) error {
	if asJSON {
		return shape.JSON(w, d, false)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s\n", d.URL, d.Recipe)
	for _, f := range d.Findings {
		fmt.Fprintf(&b, "\n%s: %s\n  found   %s\n  effect  %s\n  wanted  %s\n  remedy  %s\n",
			f.Check, f.Weight.Describe(), f.Evidence, f.Consequence, f.Want, f.Remedy)
	}
	fmt.Fprintf(&b, "\n%d checks:", d.Checks)
	for i, w := range weights {
		fmt.Fprintf(&b, "%s %d %s", map[bool]string{true: ","}[i > 0], d.count(w), w.Describe())
	}
	b.WriteString("\n")
	if d.Measured != nil {
		d.Measured.print(&b)
	}
	_, err := io.WriteString(w, b.String())
	return err
}
