package zkstore

import (
	"errors"
	"testing"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/calls"
	"github.com/holdfast-go/holdfast/zkstore/internal/zk"
)

// TestInspectionHasNoUnknownOutcome requires that an inspection without an answer fails as unavailable,
// since it has changed nothing.
func TestInspectionHasNoUnknownOutcome(t *testing.T) {
	s := &store{calls: calls.New()}
	for _, err := range []error{&zk.LostError{Err: errors.New("no answer")}, errSessionExpired} {
		if code := s.Classify(s.unread(err)); code != driver.CodeUnavailable {
			t.Errorf("%v: %s, want %s", err, code, driver.CodeUnavailable)
		}
	}
}
