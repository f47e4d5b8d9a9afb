package zookeeper

import (
	"slices"
	"strings"
	"testing"
	"time"

	zookeeper "github.com/go-zookeeper/zk"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/e2e/conformance/requests"
	"github.com/holdfast-go/holdfast/internal/servers"
	"github.com/holdfast-go/holdfast/zkstore"
)

// queueOf returns the directory with the grants of a name that needs no escape.
func queueOf(root string, layout zkstore.Layout, namespace, name string) string {
	dir := root
	if namespace != "" {
		dir += "/@" + namespace
	}
	dir += "/" + name
	if layout == zkstore.Semaphore {
		dir += "/leases"
	}
	return dir
}

// corrupt replaces the data of the only node in dir, and returns a function that deletes the node.
func corrupt(t testing.TB, z *servers.ZooKeeper, dir, data string) (remove func()) {
	t.Helper()
	raw, _, err := zookeeper.Connect([]string{z.Address()}, 20*time.Second, zookeeper.WithLogger(quiet{}))
	must(t, err)
	defer raw.Close()
	all, _, err := raw.Children(dir)
	if err != nil || len(all) != 1 {
		t.Fatalf("the nodes of %s: %v, %v", dir, all, err)
	}
	path := dir + "/" + all[0]
	_, err = raw.Set(path, []byte(data), -1)
	must(t, err)
	return func() {
		raw, _, err := zookeeper.Connect([]string{z.Address()}, 20*time.Second, zookeeper.WithLogger(quiet{}))
		must(t, err)
		defer raw.Close()
		must(t, raw.Delete(path, -1))
	}
}

// TestForeignNodeGrantsNothing: no request is granted beside a node that belongs to no session, and whose name and data
// are holdfast's. The error names the node, and no waiter stays behind. Such a node, or one that the user may not read,
// hides no other name.
func TestForeignNodeGrantsNothing(t *testing.T) {
	z := single(t)
	raw := connect(t, z.Address())
	for _, layout := range []zkstore.Layout{zkstore.ReadWrite, zkstore.Mutex, zkstore.Semaphore} {
		root := "/broken-" + string(layout)
		_, s := locker(t, []string{z.Address()}, zkstore.Root(root), zkstore.WithLayout(layout))
		acquire := func(name string) driver.Grant {
			t.Helper()
			return requests.Must(t, s, requests.New(name, driver.Exclusive, time.Second))
		}
		g, stays := acquire("held"), acquire("stays")
		queue := queueOf(root, layout, "", "stays")
		node := queue + "/" + nodes(t, raw, queue, "it stands", count(1))[0]
		data, _, err := raw.Get(node)
		must(t, err)
		must(t, s.Release(t.Context(), stays, 0))
		create(t, raw, node, data, 0)
		for _, wait := range []bool{false, true} {
			r := requests.New("stays", driver.Exclusive, time.Second)
			r.Wait = wait
			_, err := s.Acquire(t.Context(), r)
			if driver.CodeOf(err) != driver.CodeRefused || !strings.Contains(err.Error(), "stays") {
				t.Errorf("%s, wait %t: %v", layout, wait, err)
			}
		}
		nodes(t, raw, queue, "no request has left a node", count(1))
		if layout == zkstore.Semaphore {
			create(t, raw, root+"/closed", nil, 0)
		}
		closed := zookeeper.WorldACL(zookeeper.PermCreate | zookeeper.PermDelete)
		_, err = raw.Create(queueOf(root, layout, "", "closed"), nil, 0, closed)
		must(t, err)
		var names []string
		for st, err := range s.List(t.Context(), "") {
			must(t, err)
			names = append(names, st.Name)
			if (st.Err == nil) != (st.Name == "held") {
				t.Errorf("%s: %+v", layout, st)
			}
		}
		if !slices.Equal(names, []string{"closed", "held", "stays"}) {
			t.Errorf("%s: List: %q", layout, names)
		}
		must(t, s.Release(t.Context(), g, 0))
	}
}
