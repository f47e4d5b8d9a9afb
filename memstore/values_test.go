package memstore_test

import (
	"testing"

	"github.com/holdfast-go/holdfast/driver/drivertest"
	"github.com/holdfast-go/holdfast/memstore"
)

func TestValues(t *testing.T) {
	s := memstore.New()
	drivertest.RunValues(t, func(_ testing.TB, namespace string) *memstore.Store { return s.Namespace(namespace) })
}
