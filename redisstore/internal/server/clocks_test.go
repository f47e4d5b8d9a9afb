package server

import (
	"slices"
	"testing"
	"time"
)

// TestReplicaKeepsItsClock: a replica that a probe could not compare keeps the difference of its clock,
// unless all replicas of a new primary could be compared.
func TestReplicaKeepsItsClock(t *testing.T) {
	before := &findings{
		ahead:     5 * time.Second,
		clocks:    map[string]replicaClock{"r": {5 * time.Second, "old"}},
		primaries: []string{"old"},
	}
	for name, test := range map[string]struct {
		now     findings
		missed  bool
		want    time.Duration
		primary []string
	}{
		"the same primary": {findings{primaries: []string{"old"}}, false, 5 * time.Second, []string{"old"}},
		"a new primary":    {findings{primaries: []string{"new"}}, false, 0, []string{"new"}},
		"a new primary with an uncompared replica":    {findings{primaries: []string{"new"}, uncompared: true}, false, 5 * time.Second, []string{"new"}},
		"a primary without an answer":                 {findings{primaries: []string{"new"}}, true, 5 * time.Second, []string{"new", "old"}},
		"the same primary, another without an answer": {findings{primaries: []string{"old"}}, true, 5 * time.Second, []string{"old"}},
	} {
		t.Run(name, func(t *testing.T) {
			f := test.now
			f.clocks = map[string]replicaClock{}
			f.keepClocks(before, test.missed)
			if f.ahead != test.want || !slices.Equal(f.primaries, test.primary) {
				t.Errorf("ahead by %s with the primaries %q, want %s and %q", f.ahead, f.primaries, test.want, test.primary)
			}
		})
	}
}
