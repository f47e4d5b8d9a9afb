//go:build linux || darwin

package check

import (
	"reflect"
	"testing"
	"time"
)

// TestStatsOfRoundsAreSums requires that the counts of two rounds are added, and that the slower handoff
// remains.
func TestStatsOfRoundsAreSums(t *testing.T) {
	stats := func(n int) (s Stats) {
		for i, v := 0, reflect.ValueOf(&s).Elem(); i < v.NumField(); i++ {
			if f := v.Field(i); f.CanInt() {
				f.SetInt(int64(n))
			}
		}
		s.Faults, s.Paths = map[string]int{"cut": n}, map[string]Path{pathSwap: {n, n}}
		return s
	}
	sum := stats(2)
	sum.add(stats(3))
	want := stats(5)
	want.Handoff = 3 * time.Nanosecond
	if !reflect.DeepEqual(sum, want) {
		t.Errorf("%+v, want %+v", sum, want)
	}
}
