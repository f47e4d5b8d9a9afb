package requests

import (
	"slices"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/must"
)

// Finding examines a store, and returns the finding of one check. The check must be declared.
func Finding(t testing.TB, s driver.Examiner, check string) (f driver.Finding, found bool) {
	t.Helper()
	all := examine(t, s)
	i := slices.IndexFunc(all, func(f driver.Finding) bool { return f.Name == check })
	if i < 0 {
		return f, false
	}
	return all[i], true
}

// Finds requires that one check finds something, with words in its evidence.
func Finds(t testing.TB, s driver.Examiner, check, words string) {
	t.Helper()
	f, found := Finding(t, s, check)
	if !found || !strings.Contains(f.Evidence, words) {
		t.Errorf("%s finds %t %q, want %q", check, found, f.Evidence, words)
	}
}

// Found requires that exactly these checks find something.
func Found(t testing.TB, s driver.Examiner, checks ...string) {
	t.Helper()
	var names []string
	all := examine(t, s)
	for _, f := range all {
		names = append(names, f.Name)
	}
	if slices.Sort(names); !slices.Equal(names, checks) {
		t.Errorf("found %q, want %q: %+v", names, checks, all)
	}
}

func examine(t testing.TB, s driver.Examiner) []driver.Finding {
	t.Helper()
	all, err := s.Examine(t.Context())
	must.Succeed(t, err)
	declared := s.Checks()
	for _, f := range all {
		if !slices.Contains(declared, f.Check) || f.Want == "" || f.Consequence == "" || f.Remedy == "" {
			t.Errorf("the check %q is not declared, or not complete: %+v", f.Name, f)
		}
	}
	return all
}
