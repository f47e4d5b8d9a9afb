package redis

import (
	"fmt"
	"os"
	"strconv"
	"sync"
	"testing"

	"github.com/holdfast-go/holdfast/driver"
)

// TestManyNames: however many names there were, no key is left for any of them,
// and a bounded number of counters. HOLDFAST_TEST_NAMES=1000000 for a million.
func TestManyNames(t *testing.T) {
	names := 20_000
	if s := os.Getenv("HOLDFAST_TEST_NAMES"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil {
			t.Fatal(err)
		}
		names = n
	}
	r := start(t)
	s := open(t, "redis://"+r.Address())
	const lanes = 64
	var all sync.WaitGroup
	for lane := range lanes {
		all.Go(func() {
			for i := lane; i < names; i += lanes {
				g, err := s.Acquire(t.Context(), request(fmt.Sprintf("name-%d", i), driver.Exclusive, long))
				if err == nil {
					err = s.Release(t.Context(), g, 0)
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	if left, _ := do(t, r, "KEYS", "holdfast:{???}:*").([]any); len(left) > 0 {
		t.Errorf("%d keys of names are left, such as %v", len(left), left[0])
	}
	if n, _ := do(t, r, "DBSIZE").(int64); n > 4096 {
		t.Errorf("%d keys are left", n)
	}
}
