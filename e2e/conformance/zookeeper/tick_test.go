package zookeeper

import (
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/zkstore"
)

// TestSlowerTickIsRefused: a server with a slower tick than the option Tick ends sessions later than
// the store declares. The store refuses it, and the error names the URL's parameter.
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
		t.Errorf("%v, want refused with a tick to give", err)
	}
}
