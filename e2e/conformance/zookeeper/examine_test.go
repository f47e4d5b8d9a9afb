package zookeeper

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/e2e/conformance/requests"
	"github.com/holdfast-go/holdfast/e2e/servertest"
	"github.com/holdfast-go/holdfast/internal/servers"
	"github.com/holdfast-go/holdfast/zkstore"
)

// and adds the check that a server of a bad version does not pass to others.
func and(t *testing.T, z *servers.ZooKeeper, checks ...string) []string {
	t.Helper()
	answer, err := z.Command(t.Context(), "srvr")
	must(t, err)
	for _, bad := range []string{"3.8.0", "3.8.1", "3.8.2", "3.8.3", "3.8.4", "3.9.0", "3.9.1", "3.9.3"} {
		if strings.Contains(answer, "version: "+bad+"-") {
			return append(checks, "version")
		}
	}
	return checks
}

// TestExamineFindsMissingServers: no check but that of the version finds anything at a good ensemble. Members that the
// URL omits, or that do not answer, are found.
func TestExamineFindsMissingServers(t *testing.T) {
	e, err := servers.StartEnsemble(t.Context(), filepath.Join(t.TempDir(), "e"), servers.ZooKeeperConfig{Tick: tick})
	servertest.Started(t, err)
	t.Cleanup(e.Close)
	leads := leader(t, e)
	requests.Found(t, requests.Closing(t, open(t, addresses(e.Members...))), and(t, leads)...)
	requests.Found(t, requests.Closing(t, open(t, []string{leads.Address()})), and(t, leads, "servers")...)
	follower, err := e.Follower(t.Context())
	must(t, err)
	follower.Kill()
	s := requests.Closing(t, open(t, addresses(e.Members...)))
	requests.Finds(t, s, "silent-server", "refused")
	requests.Eventually(t, "the leader notices", func() bool {
		f, _ := requests.Finding(t, s, "followers")
		return f.Evidence != ""
	})
	requests.Finds(t, s, "followers", "zk_synced_followers is 1, and followers is 2")
}

// TestExamineFindsBadSettings examines single servers with bad settings.
func TestExamineFindsBadSettings(t *testing.T) {
	z := alone(t, servers.ZooKeeperConfig{
		Tick: time.Second, MaxSession: 20 * time.Second, Settings: []string{"minSessionTimeout=1000"},
	})
	s := requests.Closing(t, open(t, []string{z.Address()}, zkstore.Tick(500*time.Millisecond)))
	requests.Finds(t, s, "tick", "tick in ms is 500, and tickTime is 1000")
	requests.Finds(t, s, "session", "longest TTL in ms is 18000")
	requests.Finds(t, s, "members", "members is 1")

	z = alone(t, servers.ZooKeeperConfig{Tick: tick, Settings: []string{"4lw.commands.whitelist=srvr"}})
	s = requests.Closing(t, open(t, []string{z.Address()}))
	requests.Found(t, s, append([]string{"members", "unread"}, and(t, z)...)...)
}
