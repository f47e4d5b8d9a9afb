package redis

import (
	"fmt"
	"os"
	"strconv"
	"sync"
	"testing"

	"github.com/holdfast-go/holdfast/driver"
)

// TestManyNamesLeaveNoKeys: after many names were locked and released, no key of a name remains, and the
// number of counters is bounded. HOLDFAST_TEST_NAMES sets the number of names.
func TestManyNamesLeaveNoKeys(t *testing.T) {
	names := 20_000
	if s := os.Getenv("HOLDFAST_TEST_NAMES"); s != "" {
		n, err := strconv.Atoi(s)
		check(t, err)
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
		t.Errorf("%d keys of names remain, such as %v", len(left), left[0])
	}
	if n, _ := do(t, r, "DBSIZE").(int64); n > 4096 {
		t.Errorf("%d keys remain", n)
	}
}
