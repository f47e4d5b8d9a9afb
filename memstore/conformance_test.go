package memstore_test

import (
	"testing"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/drivertest"
	"github.com/holdfast-go/holdfast/memstore"
)

func TestConformance(t *testing.T) {
	s := memstore.New()
	open := func(_ testing.TB, namespace string) driver.Store { return s.Namespace(namespace) }
	drivertest.Run(t, drivertest.Harness{
		Open:                open,
		OpenWithoutFallback: open,
		Outside:             func(testing.TB, string) driver.Store { return memstore.New() },
		Stop:                func(testing.TB) { s.Script().Stop() },
		Start:               func(testing.TB) { s.Script().Start() },
		LoseAnswer: func(_ testing.TB, after int) {
			if after < 0 {
				s.Script().Reset()
			} else {
				s.Script().LoseAcquireAnswer("", memstore.Applied, 0)
			}
		},
	})
}
