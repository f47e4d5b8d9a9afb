package zookeeper

import (
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/zkstore"
)

// TestSlowerTickIsRefused: a server with a slower tick than the client assumes ends sessions
// later than the client declares.
func TestSlowerTickIsRefused(t *testing.T) {
	z := single(t)
	s := open(t, []string{z.Address()}, zkstore.Tick(tick/2))
	defer func() {
		if err := s.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}()
	_, err := s.Guarantees(t.Context())
	if driver.CodeOf(err) != driver.CodeRefused || !strings.Contains(err.Error(), "give tick=") {
		t.Errorf("%v", err)
	}
}
