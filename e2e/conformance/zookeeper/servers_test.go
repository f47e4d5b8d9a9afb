package zookeeper

import (
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/holdfast-go/holdfast/e2e/servertest"
	"github.com/holdfast-go/holdfast/internal/servers"
)

// The servers are started once for all tests of this package.
var (
	once   sync.Once
	shared *servers.ZooKeeper
	failed error
	home   string
	atEnd  []func()
)

// plain is the configuration of the servers that most tests use.
var plain = servers.ZooKeeperConfig{Tick: tick}

func TestMain(m *testing.M) {
	code := m.Run()
	for _, f := range atEnd {
		f()
	}
	if shared != nil {
		shared.Kill()
	}
	if home != "" {
		os.RemoveAll(home)
	}
	os.Exit(code)
}

// alone starts a server for one test. A test that leaves a session behind, or needs another configuration, uses it.
func alone(t testing.TB, c servers.ZooKeeperConfig) *servers.ZooKeeper {
	t.Helper()
	z, err := servers.StartZooKeeper(t.Context(), filepath.Join(t.TempDir(), "zookeeper"), c)
	servertest.Started(t, err)
	t.Cleanup(z.Kill)
	return z
}

// single returns the one server, without an ensemble, that the tests of this package share.
func single(t testing.TB) *servers.ZooKeeper {
	t.Helper()
	once.Do(func() {
		if home, failed = os.MkdirTemp("", "holdfast-zookeeper-"); failed == nil {
			shared, failed = servers.StartZooKeeper(t.Context(), filepath.Join(home, "single"), plain)
		}
	})
	servertest.Started(t, failed)
	return shared
}
