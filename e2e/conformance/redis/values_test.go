package redis

import (
	"testing"

	"github.com/holdfast-go/holdfast/driver/drivertest"
	"github.com/holdfast-go/holdfast/redisstore"
)

func TestValues(t *testing.T) {
	r := start(t)
	drivertest.RunValues(t, func(t testing.TB, namespace string) *redisstore.Store {
		return open(t, "redis://"+r.Address(), redisstore.Namespace(namespace))
	})
}

func TestValuesInCluster(t *testing.T) {
	c := cluster(t)
	drivertest.RunValues(t, func(t testing.TB, namespace string) *redisstore.Store {
		return open(t, "redis+cluster://"+c.Nodes[0].Address(), redisstore.Namespace(namespace))
	})
}
