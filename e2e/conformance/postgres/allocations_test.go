package postgres

import (
	"testing"

	"github.com/holdfast-go/holdfast/e2e/conformance/allocations"
)

// TestPairAllocatesLittle: an uncontended lock on the advisory recipe allocates 22 times. It
// allocated 41 times when the server described each answer and the client copied it twice. It
// allocated 74 times when each statement made a context and a timer.
func TestPairAllocatesLittle(t *testing.T) {
	allocations.AtMost(t, postgres.URL(postgres.Server(t).Address, postgres.Create(t), "recipe=advisory"), 28)
}
