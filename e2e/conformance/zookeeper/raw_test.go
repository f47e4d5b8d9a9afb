package zookeeper

import (
	"testing"
	"time"

	zookeeper "github.com/go-zookeeper/zk"
)

type quiet struct{}

func (quiet) Printf(string, ...any) {}

// connect opens a client that is not ours.
func connect(t testing.TB, address string) *zookeeper.Conn {
	t.Helper()
	c, _, err := zookeeper.Connect([]string{address}, 20*time.Second, zookeeper.WithLogger(quiet{}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}
