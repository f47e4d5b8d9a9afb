package memstore_test

import (
	"testing"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/drivertest"
	"github.com/holdfast-go/holdfast/memstore"
)

func TestConformance(t *testing.T) {
	s := memstore.New()
	drivertest.Run(t, drivertest.Harness{
		Open:       func(_ testing.TB, namespace string) driver.Store { return s.Namespace(namespace) },
		Stop:       func(testing.TB) { s.Script().Stop() },
		Start:      func(testing.TB) { s.Script().Start() },
		LoseAnswer: func(testing.TB) { s.Script().LoseAcquireAnswer("", memstore.Applied, 0) },
	})
}
