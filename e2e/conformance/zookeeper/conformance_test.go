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

// open opens a client.
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
	one := func(t testing.TB, namespace string) driver.Store {
		return open(t, []string{p.Address()}, zkstore.Root(root), zkstore.WithLayout(layout), zkstore.Namespace(namespace))
	}
	drivertest.Run(t, drivertest.Harness{
		TTL:                 time.Second,
		Open:                one,
		OpenWithoutFallback: one, // a waiter has its watch, and does not poll
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

// leftovers lists what clients have left at a server: ephemeral nodes, watches, sessions.
func leftovers(t testing.TB, z *servers.ZooKeeper) (left []string) {
	t.Helper()
	ask := func(word string) string {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		said, err := z.Command(ctx, word)
		if err != nil {
			t.Fatal(err)
		}
		return said
	}
	_, ephemerals, _ := strings.Cut(ask("dump"), "Sessions with Ephemerals")
	for _, said := range []string{ephemerals, ask("wchp")} {
		for line := range strings.Lines(said) {
			if line = strings.TrimSpace(line); strings.HasPrefix(line, "/") {
				left = append(left, line)
			}
		}
	}
	for line := range strings.Lines(ask("cons")) {
		if strings.Contains(line, "sid=0x") {
			left = append(left, strings.TrimSpace(line))
		}
	}
	return left
}
