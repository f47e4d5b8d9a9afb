package redis

import (
	"testing"

	"github.com/holdfast-go/holdfast/e2e/conformance/allocations"
)

// TestPairAllocatesLittle: an uncontended lock allocates 46 times, of which about 30 are in go-redis and
// for the words of its commands. With a context and a timer for each request it allocated 67 times.
func TestPairAllocatesLittle(t *testing.T) {
	allocations.AtMost(t, "redis://"+common(t).Address(), 50)
}
