//go:build linux || darwin

package check

import (
	"cmp"
	_ "embed"
	"encoding/json"
	"fmt"
	"html/template"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/holdfast-go/holdfast/driver"
)

//go:embed page.html
var pageText string

var pageTemplate = sync.OnceValue(func() *template.Template { return template.Must(template.New("page").Parse(pageText)) })

// drawing is the data of the page. Times are microseconds since the history began. Names and
// workers are indices; -1 stands for all or none. Rows of numbers keep the page of a large
// history small.
type drawing struct {
	Names, Workers []string
	Length         int64
	// Held has a row for each lock: name, worker, from, to, how it ended, limit, token,
	// slot.
	Held [][8]int64
	// Waits has a row for each wait: name, worker, from, to, how it ended, limit.
	Waits [][6]int64
	// Faults has a row for each fault: kind, worker, name, from, to.
	Faults [][5]int64
	Kinds  []string
	// Refused has a row for each register write that was refused as stale: name, worker,
	// at, token.
	Refused    [][4]int64
	Violations []drawnViolation
}

type drawnViolation struct {
	Rule, Text string
	Name       int
	From, To   int64
	Excerpt    []string
}

// How a lock or a wait ended, as numbers in the rows.
const (
	endedOpen = iota
	endedUnlocked
	endedLost
	endedKilled
	endedClosed
	endedGranted
	endedFailed
	endedStuck
)

// renderPage writes a judged history as one HTML page that needs no other file.
func renderPage(w io.Writer, c *collected, r *Report) error {
	data, err := json.Marshal(c.draw(r))
	if err != nil {
		return err
	}
	var table strings.Builder
	if err := r.Summary(&table); err != nil {
		return err
	}
	verdict := "Every rule held"
	if n := len(r.Violations); n > 0 {
		verdict = fmt.Sprintf("%d violations", n)
		if n == 1 {
			verdict = "1 violation"
		}
	}
	return pageTemplate().Execute(w, map[string]any{
		"Store": cmp.Or(c.guarantees.Kind, "unknown"), "OK": r.OK(), "Verdict": verdict,
		"Summary": table.String(),
		// Marshal escapes the characters that could end the script element.
		"Data": template.JS(data),
	})
}

// workerOf returns the worker without its incarnation.
func workerOf(w string) string {
	name, _, _ := strings.Cut(w, ".")
	return name
}

func (c *collected) draw(r *Report) *drawing {
	d := &drawing{Names: slices.Sorted(maps.Keys(c.names)), Length: (c.last - c.start) / 1000}
	seen := map[string]bool{}
	for _, h := range c.names {
		for _, s := range h.sections {
			seen[workerOf(s.worker)] = true
		}
	}
	d.Workers = slices.SortedFunc(maps.Keys(seen), func(a, b string) int {
		return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b))
	})
	index := func(all []string, one string) int64 { return int64(slices.Index(all, one)) }
	worker := func(w string) int64 { return index(d.Workers, workerOf(w)) }
	at := func(t int64) int64 { return (min(t, c.last) - c.start) / 1000 }
	for i, n := range d.Names {
		for _, s := range c.names[n].sections {
			d.addSection(c, int64(i), worker(s.worker), s, at)
		}
	}
	slices.SortFunc(d.Held, func(a, b [8]int64) int { return cmp.Compare(a[2], b[2]) })
	slices.SortFunc(d.Waits, func(a, b [6]int64) int { return cmp.Compare(a[2], b[2]) })
	for _, f := range c.disturbances {
		if !slices.Contains(d.Kinds, f.kind) {
			d.Kinds = append(d.Kinds, f.kind)
		}
		w := int64(-1)
		if f.worker != "" {
			w = worker(f.worker)
		}
		d.Faults = append(d.Faults, [5]int64{index(d.Kinds, f.kind), w, index(d.Names, f.name), at(f.from), at(f.to)})
	}
	for res, all := range c.registers {
		name, _, _ := strings.Cut(res, "/")
		for _, k := range all {
			if k.outcome == kindStale {
				d.Refused = append(d.Refused, [4]int64{index(d.Names, name), worker(k.worker), at(k.end), int64(k.token)})
			}
		}
	}
	for i := range r.Violations {
		v := &r.Violations[i]
		from := cmp.Or(v.From, c.start)
		dv := drawnViolation{Rule: string(v.Rule), Text: v.Text, Name: slices.Index(d.Names, v.Name), From: at(from), To: at(max(v.To, from))}
		for j := range v.Excerpt {
			dv.Excerpt = append(dv.Excerpt, v.Excerpt[j].describe(c.start))
		}
		d.Violations = append(d.Violations, dv)
	}
	return d
}

func (d *drawing) addSection(c *collected, name, worker int64, s *section, at func(int64) int64) {
	limit := int64(s.limit)
	if s.limit == driver.Unlimited {
		limit = 0
	}
	to, how := s.granted, int64(endedGranted)
	switch {
	case s.granted != 0:
	case s.failed != 0:
		to, how = s.failed, endedFailed
	case s.stuck != 0:
		to, how = s.stuck, endedStuck
	case c.killed[s.worker] != 0:
		to, how = c.killed[s.worker], endedKilled
	default:
		to, how = c.last, endedStuck
	}
	d.Waits = append(d.Waits, [6]int64{name, worker, at(s.requested), at(to), how, limit})
	if s.granted == 0 {
		return
	}
	how = endedOpen
	switch end := s.end(); end {
	case s.unlock:
		how = endedUnlocked
	case s.killed:
		how = endedKilled
	case s.lost, s.until:
		how = endedLost
	default:
		if s.closing != 0 {
			how = endedClosed
		}
	}
	if s.lost != 0 && s.cause != string(driver.CauseClosed) {
		how = endedLost
	}
	d.Held = append(d.Held, [8]int64{name, worker, at(s.granted), at(s.end()), how, limit, int64(s.token), int64(s.slot) - 1})
}
