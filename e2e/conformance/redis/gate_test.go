package redis

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/servers"
)

// gate is a proxy that delays requests and delivers them later, even if their sender has ended.
type gate struct {
	*servers.Proxy
	t *testing.T
}

func newGate(t *testing.T, to string) gate {
	p, err := servers.NewProxy(to)
	check(t, err)
	t.Cleanup(p.Close)
	return gate{p, t}
}

func (g gate) hold() { g.delay(time.Hour) }

func (g gate) release() { g.delay(0) }

func (g gate) delay(d time.Duration) {
	if err := g.DelayRequests(d); err != nil {
		g.t.Fatal(err)
	}
}

// calls returns how often the server has executed a command.
func calls(t testing.TB, r *servers.Redis, command string) int {
	t.Helper()
	stats, _ := do(t, r, "INFO", "commandstats").(string)
	for line := range strings.Lines(stats) {
		if rest, ok := strings.CutPrefix(line, "cmdstat_"+command+":calls="); ok {
			n, _, _ := strings.Cut(rest, ",")
			v, err := strconv.Atoi(n)
			check(t, err)
			return v
		}
	}
	return 0
}
