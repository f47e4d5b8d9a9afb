package postgres

import (
	"testing"

	"github.com/holdfast-go/holdfast/e2e/conformance/allocations"
)

// TestPairAllocatesLittle: an uncontended lock on the advisory recipe allocates 22 times. It
// allocated 41 times while each answer was described and copied twice, and 74 times while each
// statement made a context and a timer.
func TestPairAllocatesLittle(t *testing.T) {
	allocations.AtMost(t, postgres.URL(postgres.Server(t).Address, postgres.Create(t), "recipe=advisory"), 28)
}
