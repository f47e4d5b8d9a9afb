package redis

import (
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/redisstore/layouts"
)

// TestLayoutSemaphoreKeepsLimitAfterDeletion deletes the key with the number of permits while one permit
// is held. Later grants stay within the limit.
func TestLayoutSemaphoreKeepsLimitAfterDeletion(t *testing.T) {
	for _, l := range []layouts.Layout{layouts.RedissonSemaphore, layouts.RedissonPermits} {
		t.Run(string(l), func(t *testing.T) {
			r := start(t)
			s := openLayout(t, "redis://"+r.Address(), l)
			const limit = 2
			var standing []driver.Grant
			for _, deleted := range []bool{false, true} {
				if deleted {
					do(t, r, "DEL", "a")
				}
				for range limit {
					g, err := s.Acquire(t.Context(), request("a", limit, time.Minute))
					if err == nil {
						standing = append(standing, g)
					} else if driver.CodeOf(err) != driver.CodeBusy {
						t.Fatal(err)
					}
				}
			}
			held := 0
			for _, a := range s.Renew(t.Context(), standing) {
				if a.Err == nil {
					held++
				} else if driver.CodeOf(a.Err) != driver.CodeNotHeld {
					t.Fatal(a.Err)
				}
			}
			if held != limit {
				t.Errorf("%d permits of %d are held", held, limit)
			}
			for _, g := range standing {
				_ = s.Release(t.Context(), g, 0)
			}
			var again int
			for range 2 * limit {
				if _, err := s.Acquire(t.Context(), request("a", limit, time.Minute)); err == nil {
					again++
				}
			}
			if again != limit {
				t.Errorf("%d permits of %d are granted after all were released", again, limit)
			}
		})
	}
}
