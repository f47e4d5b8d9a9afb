//go:build linux || darwin

package check

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
)

// Rule is one rule of the verdict.
type Rule string

// The rules.
const (
	// RuleExclusion: a grant of limit n never stands beside more than n-1 others, from its
	// beginning to the end of its context. After a loss, the holder notices it before the
	// next grant begins. If the store declares that a fault may end a grant early, Judge
	// allows and counts an overlap within the declared notice.
	RuleExclusion Rule = "exclusion"
	// RuleValidity: a context ends when its validity ends. The validity never exceeds the
	// deadline that the store set.
	RuleValidity Rule = "validity"
	// RuleTokens: tokens rise strictly in the order of grants.
	RuleTokens Rule = "tokens"
	// RuleRegister: no register that checks tokens loses an update.
	RuleRegister Rule = "register"
	// RuleKept: before the MinHold of a lock has passed, no other grant conflicts with the lock,
	// although it was unlocked. A fault that may end grants or lose writes ends this too.
	RuleKept Rule = "kept"
	// RuleEvery: no tick of a schedule is served twice. Each tick is served or reported, if a
	// replica ran all the time.
	RuleEvery Rule = "every"
	// RuleOnce: work that is done once is not done again.
	RuleOnce Rule = "once"
	// RuleIDs: no id is drawn twice, and those that a client draws rise.
	RuleIDs Rule = "ids"
	// RuleValues: the reads and writes of a versioned value have an order that a register with
	// versions allows.
	RuleValues Rule = "values"
	// RuleOrder: if the store declares it, a waiter with a queue entry is served before
	// later requests.
	RuleOrder Rule = "order"
	// RuleWaiting: no waiter waits forever, and the store wakes waiters as it declares.
	RuleWaiting Rule = "waiting"
	// RuleLate: a place that is free by every recorded release and deadline is given, within
	// what the store declares and Slack.
	RuleLate Rule = "late"
	// RuleLeftovers: no grant, queue entry, request or goroutine remains after it should
	// have ended.
	RuleLeftovers Rule = "leftovers"
	// RuleModel: the grants and releases of a name have an order that the sequential rule
	// allows.
	RuleModel Rule = "model"
)

// Rules lists all rules, in the order of the summary.
var Rules = []Rule{RuleExclusion, RuleValidity, RuleTokens, RuleRegister, RuleKept, RuleEvery, RuleOnce, RuleIDs, RuleValues, RuleOrder, RuleWaiting, RuleLate, RuleLeftovers, RuleModel}

// Violation is one broken rule.
type Violation struct {
	Rule Rule
	Name string
	// Text describes the violation in a sentence.
	Text string
	// Cause lists what preceded the violation: the last renewal, and the faults under way.
	Cause []string
	// From and To are the violation's interval, on the history's clock.
	From, To int64
	// Excerpt contains the events that show the violation, in order of time.
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
	// Dir is the directory of the history, if it was kept.
	Dir string
}

// Stats are counts of a history.
type Stats struct {
	Events, Grants, Renewals, Losses, Failures int
	Queued                                     int
	// Refusals counts the requests without waiting that were refused because the lock was held.
	Refusals int
	// Kept counts the locks that had to stand after their release.
	Kept int
	// Ticks counts the ticks that were served, Missed those that were reported as missed, and
	// Accounted those that had to be served or reported.
	Ticks, Missed, Accounted int
	// Once counts the work that was done once, IDs the ids, and Values the reads and writes of
	// versioned values.
	Once, IDs, Values int
	Writes, Refused   int
	// LostUpdates counts lost updates of the register that does not check tokens. A lock
	// alone does not prevent them if its holder is stopped.
	LostUpdates int
	// Paths counts the fast paths by name. Seconds is the length of the history, in seconds,
	// without its end in which the workers take no new locks.
	Paths   map[string]Path
	Seconds int
	// Allowed counts overlaps that the store's guarantees allow.
	Allowed int
	// Faults counts faults by kind.
	Faults map[string]int
	Took   time.Duration
	// Unknown counts parts of the histories of values that porcupine did not decide in time.
	Unknown int
	// Handoff is the median time from a release to the next waiter's grant, of several rounds the longest.
	Handoff time.Duration
}

// add adds the counts of another round.
func (s *Stats) add(o Stats) {
	sum, more := reflect.ValueOf(s).Elem(), reflect.ValueOf(o)
	for i := range sum.NumField() {
		if n := sum.Field(i); n.Kind() == reflect.Int {
			n.SetInt(n.Int() + more.Field(i).Int())
		}
	}
	s.Took += o.Took
	s.Handoff = max(s.Handoff, o.Handoff)
	if s.Faults == nil {
		s.Faults = map[string]int{}
	}
	if s.Paths == nil {
		s.Paths = map[string]Path{}
	}
	for k, p := range o.Paths {
		s.Paths[k] = Path{s.Paths[k].Times + p.Times, s.Paths[k].Seconds + p.Seconds}
	}
	for k, n := range o.Faults {
		s.Faults[k] += n
	}
}

// OK reports whether every rule held.
func (r *Report) OK() bool { return len(r.Violations) == 0 }

// mostPerRule limits how many violations of one rule a report shows in full, because one
// fault often breaks a rule many times.
const mostPerRule = 5

func (r *Report) add(v Violation) {
	if r.count(v.Rule) >= mostPerRule {
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

func (r *Report) count(rule Rule) int {
	n := r.More[rule]
	for i := range r.Violations {
		if r.Violations[i].Rule == rule {
			n++
		}
	}
	return n
}

// Summary writes the table at the end of a run.
func (r *Report) Summary(w io.Writer) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	s := r.Stats
	fmt.Fprintf(tw, "events\t%d\n", s.Events)
	fmt.Fprintf(tw, "locks granted\t%d\tafter waiting %d, kept after their release %d\n", s.Grants, s.Queued, s.Kept)
	fmt.Fprintf(tw, "renewals\t%d\tlosses %d, not got %d\n", s.Renewals, s.Losses, s.Failures)
	fmt.Fprintf(tw, "guarded writes\t%d\trefused as stale %d\n", s.Writes, s.Refused)
	fmt.Fprintf(tw, "ticks served\t%d\treported as missed %d, followed to their end %d\n", s.Ticks, s.Missed, s.Accounted)
	fmt.Fprintf(tw, "done once\t%d\tids drawn %d, reads and writes of values %d\n", s.Once, s.IDs, s.Values)
	fmt.Fprintf(tw, "unguarded register\t\tlost updates %d\n", s.LostUpdates)
	fmt.Fprintf(tw, "faults\t%s\n", listed(s.Faults, func(n int) string { return strconv.Itoa(n) }))
	fmt.Fprintf(tw, "fast paths\t%s\n", s.pathWords())
	if s.Handoff > 0 {
		fmt.Fprintf(tw, "handoff\t%s\tfrom a release to the next waiter's grant, median (of several rounds the longest)\n", s.Handoff.Round(10*time.Microsecond))
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
		if rule == RuleLate {
			note = fmt.Sprintf("%d waits and %d refusals", s.Queued, s.Refusals)
		}
		if rule == RuleValues && s.Unknown > 0 {
			note = fmt.Sprintf("%d parts not decided in time", s.Unknown)
		}
		fmt.Fprintf(tw, "%s\t%s\t%s\n", rule, verdict, note)
	}
	return tw.Flush()
}

// listed returns the names of counts with words about each, or "none".
func listed[C any](counts map[string]C, words func(C) string) string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		all = append(all, name+" "+words(counts[name]))
	}
	return cmp.Or(strings.Join(all, ", "), "none")
}

// Explain writes each violation with its cause and its excerpt. The findings of the model
// come last.
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
				fmt.Fprintf(&b, "  %s\n", v.Excerpt[j].describe(r.Start))
			}
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}
