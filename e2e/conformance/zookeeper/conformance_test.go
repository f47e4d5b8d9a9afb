package zookeeper

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/check/servers"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/drivertest"
	"github.com/holdfast-go/holdfast/zkstore"
)

// tick is the tickTime of the servers that tests of expiry use.
const tick = 100 * time.Millisecond

// open opens a store over the servers.
func open(t testing.TB, servers []string, o ...zkstore.Option) *zkstore.Store {
	t.Helper()
	s, err := zkstore.Open(t.Context(), "zk://"+strings.Join(servers, ","), append([]zkstore.Option{zkstore.Tick(tick), zkstore.BreakGrace(100 * time.Millisecond)}, o...)...)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestConformance(t *testing.T) {
	for _, layout := range []zkstore.Layout{zkstore.ReadWrite, zkstore.Mutex, zkstore.Semaphore} {
		t.Run(string(layout), func(t *testing.T) { conform(t, layout) })
	}
}

func conform(t *testing.T, layout zkstore.Layout) {
	z, p := proxied(t)
	root := "/" + string(layout)
	openStore := func(t testing.TB, namespace string) driver.Store {
		return open(t, []string{p.Address()}, zkstore.Root(root), zkstore.WithLayout(layout), zkstore.Namespace(namespace))
	}
	drivertest.Run(t, drivertest.Harness{
		TTL:                 time.Second,
		Session:             true, // validity may run from the requests that set the watches
		Open:                openStore,
		OpenWithoutFallback: openStore, // a waiter uses a watch, and does not poll
		Disconnect: func(t testing.TB) {
			p.Cut()
			must(t, p.Heal())
		},
		Stop: func(t testing.TB) {
			if err := z.Pause(); err != nil {
				t.Fatal(err)
			}
		},
		Start: func(t testing.TB) {
			if err := z.Cont(); err != nil {
				t.Fatal(err)
			}
		},
		Delay: func(t testing.TB, d time.Duration) {
			if err := p.Delay(d); err != nil {
				t.Fatal(err)
			}
		},
		LoseAnswer: func(t testing.TB, after int) {
			if err := p.LoseAnswer(after); err != nil {
				t.Fatal(err)
			}
		},
		Leftovers: func(t testing.TB) []string { return leftovers(t, z) },
	})
}

// leftovers lists the ephemeral nodes, watches and sessions that clients have left at a server.
func leftovers(t testing.TB, z *servers.ZooKeeper) (left []string) {
	t.Helper()
	command := func(word string) string {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		answer, err := z.Command(ctx, word)
		if err != nil {
			t.Fatal(err)
		}
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
