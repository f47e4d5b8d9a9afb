package zookeeper

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/drivertest"
	"github.com/holdfast-go/holdfast/e2e/servertest"
	"github.com/holdfast-go/holdfast/internal/servers"
	"github.com/holdfast-go/holdfast/zkstore"
)

// tick is the tickTime of the servers that tests of expiry use.
const tick = 100 * time.Millisecond

// open opens a store over the servers.
func open(t testing.TB, servers []string, o ...zkstore.Option) *zkstore.Store {
	t.Helper()
	s, err := zkstore.Open(t.Context(), "zk://"+strings.Join(servers, ","), append([]zkstore.Option{zkstore.Tick(tick), zkstore.BreakGrace(100 * time.Millisecond)}, o...)...)
	must(t, err)
	return s
}

// TestConformance runs the suite over each layout. In short mode it omits mutex, whose requests go the way of readwrite.
func TestConformance(t *testing.T) {
	for _, layout := range []zkstore.Layout{zkstore.ReadWrite, zkstore.Mutex, zkstore.Semaphore} {
		if testing.Short() && layout == zkstore.Mutex {
			continue
		}
		t.Run(string(layout), func(t *testing.T) { conform(t, layout) })
	}
}

func conform(t *testing.T, layout zkstore.Layout) {
	z, p := proxied(t)
	root := "/" + string(layout)
	at := func(t testing.TB, addresses []string, namespace string) driver.Store {
		return open(t, addresses, zkstore.Root(root), zkstore.WithLayout(layout), zkstore.Namespace(namespace))
	}
	openStore := func(t testing.TB, namespace string) driver.Store { return at(t, []string{p.Address()}, namespace) }
	h := drivertest.Harness{
		TTL:                 time.Second,
		Session:             true, // validity may run from the requests that set the watches
		Open:                openStore,
		OpenWithoutFallback: openStore, // a waiter uses a watch, and does not poll
		Outside: func(t testing.TB, namespace string) driver.Store {
			return open(t, []string{p.Address()}, zkstore.Root("/other"), zkstore.WithLayout(layout), zkstore.Namespace(namespace))
		},
		Stop: func(t testing.TB) {
			must(t, z.Pause())
		},
		Start: func(t testing.TB) {
			must(t, z.Cont())
		},
		Leftovers: func(t testing.TB) []string { return leftovers(t, z) },
		Corrupt: func(t testing.TB, namespace, name string) func() {
			return corrupt(t, z, queueOf(root, layout, namespace, name), "{")
		},
	}
	servertest.Disturb(&h, func(t testing.TB, addresses []string) driver.Store { return at(t, addresses, "") }, p)
	drivertest.Run(t, h)
}

// leftovers lists the ephemeral nodes, watches and sessions that clients have left at a server.
func leftovers(t testing.TB, z *servers.ZooKeeper) (left []string) {
	t.Helper()
	command := func(word string) string {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		answer, err := z.Command(ctx, word)
		must(t, err)
		return answer
	}
	_, ephemerals, _ := strings.Cut(command("dump"), "Sessions with Ephemerals")
	for _, answer := range []string{ephemerals, command("wchp")} {
		for line := range strings.Lines(answer) {
			if line = strings.TrimSpace(line); strings.HasPrefix(line, "/") {
				left = append(left, line)
			}
		}
	}
	for line := range strings.Lines(command("cons")) {
		if strings.Contains(line, "sid=0x") {
			left = append(left, strings.TrimSpace(line))
		}
	}
	return left
}

func TestValues(t *testing.T) {
	z, root := single(t), "/"+newName()
	drivertest.RunValues(t, func(t testing.TB, namespace string) *zkstore.Store {
		return open(t, []string{z.Address()}, zkstore.Root(root), zkstore.Namespace(namespace))
	})
}
