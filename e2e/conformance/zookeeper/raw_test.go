package zookeeper

import (
	"slices"
	"strings"
	"testing"
	"time"

	zookeeper "github.com/go-zookeeper/zk"
)

type quiet struct{}

func (quiet) Printf(string, ...any) {}

// connect opens a client of go-zookeeper.
func connect(t testing.TB, address string) *zookeeper.Conn {
	t.Helper()
	c, _, err := zookeeper.Connect([]string{address}, 20*time.Second, zookeeper.WithLogger(quiet{}))
	must(t, err)
	t.Cleanup(c.Close)
	return c
}

// create creates a node that everyone may change, and returns its path.
func create(t testing.TB, c *zookeeper.Conn, path string, data []byte, flags int32) string {
	t.Helper()
	path, err := c.Create(path, data, flags, zookeeper.WorldACL(zookeeper.PermAll))
	must(t, err)
	return path
}

// nodes waits until the children of a node, in the order of their sequence numbers, meet a
// condition.
func nodes(t testing.TB, c *zookeeper.Conn, path, what string, so func([]string) bool) []string {
	t.Helper()
	late := time.After(testTimeout)
	for {
		all, _, changed, err := c.ChildrenW(path)
		must(t, err)
		slices.SortFunc(all, func(a, b string) int { return strings.Compare(a[len(a)-10:], b[len(b)-10:]) })
		if so(all) {
			return all
		}
		select {
		case <-changed:
		case <-late:
			t.Fatalf("waiting until %s: %v", what, all)
		}
	}
}

func count(n int) func([]string) bool {
	return func(all []string) bool { return len(all) == n }
}
