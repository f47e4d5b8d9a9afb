//go:build linux || darwin

package check

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// Rule is one of the things that the verdict holds a store to.
type Rule string

// The rules.
const (
	// RuleExclusion: a grant of limit n never stands beside more than n-1 others,
	// from its grant to the end of its context; loss is noticed before the next
	// grant begins. Where the store says that something may end a grant early, and
	// that was done, the overlap is allowed within the declared notice, and
	// counted.
	RuleExclusion Rule = "exclusion"
	// RuleTrust: a context ends when trust runs out, and trust runs from before
	// the store set its deadline.
	RuleTrust Rule = "trust"
	// RuleTokens: tokens rise strictly in the order of grants.
	RuleTokens Rule = "tokens"
	// RuleRegister: no update of a register guarded by the token is lost.
	RuleRegister Rule = "register"
	// RuleOrder: who has a place is served before who comes later, where declared.
	RuleOrder Rule = "order"
	// RuleWaiting: nobody waits in vain, and waiters are woken as declared.
	RuleWaiting Rule = "waiting"
	// RuleLeftovers: nothing is left behind.
	RuleLeftovers Rule = "leftovers"
	// RuleModel: there is an order of the grants and releases of a name in which
	// each is right by the sequential rule.
	RuleModel Rule = "model"
)

// Rules are all of them, in the order of the summary.
var Rules = []Rule{RuleExclusion, RuleTrust, RuleTokens, RuleRegister, RuleOrder, RuleWaiting, RuleLeftovers, RuleModel}

// Violation is one broken rule.
type Violation struct {
	Rule Rule
	Name string
	// Text says in a sentence what is wrong.
	Text string
	// Cause names what came before it: the last renewal, and the faults under way.
	Cause []string
	// From and To bound it in time, on the history's clock.
	From, To int64
	// Excerpt holds the events that show it, in order of time.
	Excerpt []Event
}

// Report is a verdict.
type Report struct {
	Violations []Violation
	// More counts the violations beyond the first few of each rule.
	More map[Rule]int
	// Stats are counts for the summary.
	Stats Stats
	Start int64
	// Dir is where the history is, if it was kept.
	Dir string
}

// Stats count what a history holds.
type Stats struct {
	Events, Grants, Renewals, Losses, Failures int
	Queued                                     int
	Writes, Refused                            int
	// LostUpdates counts updates lost on the register that no token guards: what
	// a lock alone does not prevent when its holder is stopped.
	LostUpdates int
	// Allowed counts overlaps that the store's guarantees allow.
	Allowed int
	// Faults counts faults by kind.
	Faults map[string]int
	Kills  int
	Took   time.Duration
	// Unknown counts pieces of the history for which porcupine ran out of time;
	// the other rules have judged them.
	Unknown int
	// Handover is the middle time from a release to the next waiter's grant.
	Handover time.Duration
}

func (s *Stats) add(o Stats) {
	s.Events += o.Events
	s.Grants += o.Grants
	s.Renewals += o.Renewals
	s.Losses += o.Losses
	s.Failures += o.Failures
	s.Queued += o.Queued
	s.Writes += o.Writes
	s.Refused += o.Refused
	s.LostUpdates += o.LostUpdates
	s.Allowed += o.Allowed
	s.Unknown += o.Unknown
	s.Took += o.Took
	s.Handover = max(s.Handover, o.Handover)
	if s.Faults == nil {
		s.Faults = map[string]int{}
	}
	for k, n := range o.Faults {
		s.Faults[k] += n
	}
}

// OK tells whether every rule held.
func (r *Report) OK() bool { return len(r.Violations) == 0 }

// mostPerRule bounds the violations of one rule that are told in full: one fault
// mostly shows many times.
const mostPerRule = 5

func (r *Report) add(v Violation) {
	n := 0
	for i := range r.Violations {
		if r.Violations[i].Rule == v.Rule {
			n++
		}
	}
	if n >= mostPerRule {
		if r.More == nil {
			r.More = map[Rule]int{}
		}
		r.More[v.Rule]++
		return
	}
	sortEvents(v.Excerpt)
	if len(v.Excerpt) > 0 {
		v.From = cmp.Or(v.From, v.Excerpt[0].T)
		v.To = cmp.Or(v.To, v.Excerpt[len(v.Excerpt)-1].T)
	}
	r.Violations = append(r.Violations, v)
}

// shown tells whether one of the rules has a violation of the name already.
func (r *Report) shown(name string, rules ...Rule) bool {
	return slices.ContainsFunc(r.Violations, func(v Violation) bool { return v.Name == name && slices.Contains(rules, v.Rule) })
}

func (r *Report) count(rule Rule) int {
	n := r.More[rule]
	for i := range r.Violations {
		if r.Violations[i].Rule == rule {
			n++
		}
	}
	return n
}

// Summary writes the table that ends a run.
func (r *Report) Summary(w io.Writer) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	s := r.Stats
	fmt.Fprintf(tw, "events\t%d\n", s.Events)
	fmt.Fprintf(tw, "locks granted\t%d\tafter waiting %d\n", s.Grants, s.Queued)
	fmt.Fprintf(tw, "renewals\t%d\tlosses %d, not got %d\n", s.Renewals, s.Losses, s.Failures)
	fmt.Fprintf(tw, "guarded writes\t%d\trefused as stale %d\n", s.Writes, s.Refused)
	fmt.Fprintf(tw, "unguarded register\t\tlost updates %d\n", s.LostUpdates)
	var faults []string
	for k, n := range s.Faults {
		faults = append(faults, fmt.Sprintf("%s %d", k, n))
	}
	slices.Sort(faults)
	fmt.Fprintf(tw, "faults\t%s\n", cmp.Or(strings.Join(faults, ", "), "none"))
	if s.Handover > 0 {
		fmt.Fprintf(tw, "hand-over\t%s\tfrom a release to the waiter's grant, middle value\n", s.Handover.Round(10*time.Microsecond))
	}
	for _, rule := range Rules {
		verdict := "holds"
		if n := r.count(rule); n > 0 {
			verdict = fmt.Sprintf("BROKEN %d times", n)
			if n == 1 {
				verdict = "BROKEN"
			}
		}
		note := ""
		if rule == RuleExclusion && s.Allowed > 0 {
			note = fmt.Sprintf("%d overlaps after a lock was taken away, within the declared notice", s.Allowed)
		}
		if rule == RuleModel && s.Unknown > 0 {
			note = fmt.Sprintf("%d pieces too tangled to decide in time", s.Unknown)
		}
		fmt.Fprintf(tw, "%s\t%s\t%s\n", rule, verdict, note)
	}
	return tw.Flush()
}

// Explain writes each violation with its cause and its excerpt: the plain findings first,
// and then what the model adds to them.
func (r *Report) Explain(w io.Writer) error {
	var b strings.Builder
	for _, model := range []bool{false, true} {
		for i := range r.Violations {
			v := &r.Violations[i]
			if (v.Rule == RuleModel) != model {
				continue
			}
			fmt.Fprintf(&b, "\n%s: %s\n", v.Rule, v.Text)
			for _, cause := range v.Cause {
				fmt.Fprintf(&b, "  before it: %s\n", cause)
			}
			for j := range v.Excerpt {
				fmt.Fprintf(&b, "  %s\n", v.Excerpt[j].Words(r.Start))
			}
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}
