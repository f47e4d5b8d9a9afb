package zookeeper

import (
	"testing"

	"github.com/holdfast-go/holdfast/driver/drivertest"
	"github.com/holdfast-go/holdfast/zkstore"
)

func TestValues(t *testing.T) {
	z, root := single(t), "/"+newName()
	drivertest.RunValues(t, func(t testing.TB, namespace string) *zkstore.Store {
		return open(t, []string{z.Address()}, zkstore.Root(root), zkstore.Namespace(namespace))
	})
}
