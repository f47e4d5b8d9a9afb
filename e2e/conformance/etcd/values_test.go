package etcd

import (
	"testing"

	"github.com/holdfast-go/holdfast/check/servers"
	"github.com/holdfast-go/holdfast/driver/drivertest"
	"github.com/holdfast-go/holdfast/etcdstore"
)

func TestValues(t *testing.T) {
	c := start(t, servers.EtcdConfig{})
	drivertest.RunValues(t, func(t testing.TB, namespace string) *etcdstore.Store {
		return c.open(t, etcdstore.Prefix("app/"), etcdstore.Namespace(namespace))
	})
}
