// Package examine compares what a store has read from its servers with a table of checks.
package examine

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/holdfast-go/holdfast/driver"
)

// Facts are what was read from one server, by name: settings, states, measurements. A fact that could not be read is
// missing. Where is the name of the server in the evidence.
type Facts map[string]string

// Where is the key of the server's name in Facts.
const Where = ""

// Int returns a fact as a number, 0 if it is missing or no number.
func (f Facts) Int(name string) int64 {
	n, _ := strconv.ParseInt(f[name], 10, 64)
	return n
}

// Has reports whether the facts are there.
func (f Facts) Has(names ...string) bool {
	return !slices.ContainsFunc(names, func(n string) bool { _, ok := f[n]; return !ok })
}

// Check is one row of a table. Find returns the evidence, or "" if the server is good or the facts are missing.
type Check struct {
	driver.Check
	Find func(Facts) string
}

// Table is the table of a store.
type Table []Check

func row(w driver.Weight, name, want, consequence, remedy string, find func(Facts) string) Check {
	return Check{driver.Check{Name: name, Weight: w, Want: want, Consequence: consequence, Remedy: remedy}, find}
}

// Breaks returns a check of WeightBreaks.
func Breaks(name, want, consequence, remedy string, find func(Facts) string) Check {
	return row(driver.WeightBreaks, name, want, consequence, remedy, find)
}

// Costs returns a check of WeightCosts.
func Costs(name, want, consequence, remedy string, find func(Facts) string) Check {
	return row(driver.WeightCosts, name, want, consequence, remedy, find)
}

// Note returns a check of WeightNote.
func Note(name, want, consequence, remedy string, find func(Facts) string) Check {
	return row(driver.WeightNote, name, want, consequence, remedy, find)
}

// Checks returns the checks for driver.Examiner.
func (t Table) Checks() []driver.Check {
	all := make([]driver.Check, len(t))
	for i, c := range t {
		all[i] = c.Check
	}
	return all
}

// Find returns one finding for each check that a server does not pass. If there are several servers, the evidence
// names each one.
func (t Table) Find(servers ...Facts) []driver.Finding {
	var found []driver.Finding
	for _, c := range t {
		var evidence []string
		for _, f := range servers {
			e := c.Find(f)
			if e != "" && len(servers) > 1 && f[Where] != "" {
				e = f[Where] + ": " + e
			}
			if e != "" && !slices.Contains(evidence, e) {
				evidence = append(evidence, e)
			}
		}
		if len(evidence) > 0 {
			found = append(found, driver.Finding{Check: c.Check, Evidence: strings.Join(evidence, "; ")})
		}
	}
	return found
}

// Notes returns what the table finds as notes of the guarantees.
func (t Table) Notes(f Facts) (notes []string) {
	for _, found := range t.Find(f) {
		notes = append(notes, found.Evidence+": "+found.Consequence)
	}
	return notes
}

// Is finds the setting if it has one of the bad values.
func Is(setting string, bad ...string) func(Facts) string {
	return func(f Facts) string {
		if f.Has(setting) && slices.ContainsFunc(bad, func(b string) bool { return strings.EqualFold(b, f[setting]) }) {
			return setting + " is " + f[setting]
		}
		return ""
	}
}

// IsNot finds the setting if it has none of the good values.
func IsNot(setting string, good ...string) func(Facts) string {
	bad := Is(setting, good...)
	return func(f Facts) string {
		if f.Has(setting) && bad(f) == "" {
			return setting + " is " + f[setting]
		}
		return ""
	}
}

// Given finds the fact whenever it is there and is not empty: the fact is the evidence.
func Given(fact string) func(Facts) string {
	return func(f Facts) string { return strings.TrimSpace(f[fact]) }
}

// Below finds a number that is less than least.
func Below(setting string, least int64) func(Facts) string {
	return func(f Facts) string {
		if f.Has(setting) && f.Int(setting) < least {
			return setting + " is " + f[setting]
		}
		return ""
	}
}

// More finds a number that is more than most.
func More(setting string, most int64) func(Facts) string {
	return func(f Facts) string {
		if f.Int(setting) > most {
			return setting + " is " + f[setting]
		}
		return ""
	}
}

// Full finds a number of which more than percent of another one are used, unless that one is 0.
func Full(used, most string, percent int64) func(Facts) string {
	return func(f Facts) string {
		if f.Int(most) > 0 && f.Int(used)*100 > f.Int(most)*percent {
			return fmt.Sprintf("%s is %s of %s", used, f[used], f[most])
		}
		return ""
	}
}

// Fewer finds a number that is less than another one.
func Fewer(setting, than string) func(Facts) string {
	return func(f Facts) string {
		if f.Has(setting) && f.Int(setting) < f.Int(than) {
			return fmt.Sprintf("%s is %s, and %s is %s", setting, f[setting], than, f[than])
		}
		return ""
	}
}

// NoMajority finds a number of servers of which a majority tolerates no failure, or no more than one server less.
func NoMajority(servers string) func(Facts) string {
	return func(f Facts) string {
		if n := f.Int(servers); f.Has(servers) && (n < 3 || n%2 == 0) {
			return servers + " is " + f[servers]
		}
		return ""
	}
}

// If finds what find does if a fact has the value.
func If(setting, value string, find func(Facts) string) func(Facts) string {
	return func(f Facts) string {
		if f[setting] != value {
			return ""
		}
		return find(f)
	}
}

// Any finds the first evidence of several.
func Any(finds ...func(Facts) string) func(Facts) string {
	return func(f Facts) string {
		for _, find := range finds {
			if e := find(f); e != "" {
				return e
			}
		}
		return ""
	}
}

// Unread is the name of the check that lists what could not be read.
const Unread = "unread"

// Unreadable returns the check that finds the fact Unread: what could not be read, and why.
func Unreadable(remedy string) Check {
	return Note(Unread, "a user that may read the settings", "the checks that need it were not made", remedy, Given(Unread))
}

// AddUnread adds what could not be read to the fact Unread.
func (f Facts) AddUnread(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if f[Unread] != "" {
		text = f[Unread] + "; " + text
	}
	f[Unread] = text
}

// Older finds a version without a fix, which has come in each line of minor versions with another patch, such as
// 3.4.42, 3.5.28 and 3.6.9. All later lines have the fix.
func Older(setting string, fixed ...string) func(Facts) string {
	return func(f Facts) string {
		v, ok := version(f[setting])
		if !ok {
			return ""
		}
		older := false
		for _, text := range fixed {
			fix, _ := version(text)
			before := slices.Compare(v, fix) < 0
			if older = older || before; slices.Equal(fix[:2], v[:2]) {
				older = before
				break
			}
		}
		if !older {
			return ""
		}
		return setting + " is " + f[setting]
	}
}

// version returns the three numbers at the beginning of a version.
func version(text string) ([]int, bool) {
	text = strings.TrimPrefix(text, "v")
	if end := strings.IndexFunc(text, func(r rune) bool { return r != '.' && (r < '0' || r > '9') }); end >= 0 {
		text = text[:end]
	}
	v := make([]int, 3)
	for i, part := range strings.SplitN(text, ".", 4) {
		n, err := strconv.Atoi(part)
		if err != nil {
			return nil, false
		}
		if i < 3 {
			v[i] = n
		}
	}
	return v, true
}
