// Package torture runs the check on every store that needs a server. It starts real
// servers, injects all their faults, and runs each worker as a process of its own.
//
// If a server is missing, its tests are skipped. With HOLDFAST_REQUIRE_SERVERS=1 they fail.
package torture

import (
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/check"
	"github.com/holdfast-go/holdfast/check/checktest"
	"github.com/holdfast-go/holdfast/cmd/holdfast/command"
	"github.com/holdfast-go/holdfast/e2e/servertest"
	_ "github.com/holdfast-go/holdfast/etcdstore"
	"github.com/holdfast-go/holdfast/internal/explore"
	_ "github.com/holdfast-go/holdfast/mysqlstore"
	_ "github.com/holdfast-go/holdfast/natsstore"
	_ "github.com/holdfast-go/holdfast/pgstore"
	_ "github.com/holdfast-go/holdfast/redisstore"
	_ "github.com/holdfast-go/holdfast/redisstore/redlock"
	_ "github.com/holdfast-go/holdfast/s3store"
	_ "github.com/holdfast-go/holdfast/sqlitestore"
	_ "github.com/holdfast-go/holdfast/zkstore"
)

var (
	duration = flag.Duration("duration", 30*time.Second, "the duration of the check of each store")
	seed     = flag.Uint64("seed", 1, "the seed of the checks")
)

// TestMain makes this binary the worker and the gateway of its own checks. A check mostly waits, so two
// checks fit a machine of two cores.
func TestMain(m *testing.M) {
	check.Holdfast = command.Main
	check.MaybeWorker()
	flag.Parse()
	if err := flag.Set("test.parallel", "2"); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// alike are the stores that share most of their steps with another store of check.Locals. Each of
// them is checked for a third of the time.
var alike = []string{"redis-redisson-fenced", "redis-redisson-permits", "redis-redisson-rw", "redis-redisson-semaphore", "redis-redisson-spin"}

// replayed are the stores whose histories are replayed through the state machine of a lease: each has another way to
// release, to request and to hand off.
var replayed = []string{"etcd", "redis", "zookeeper"}

func TestStores(t *testing.T) {
	for _, local := range check.Locals() {
		// Package check itself tests the stores without a server. The names mariadb and postgres
		// mean the default recipe of the database, which has a longer name in the list, too.
		// The tests in conformance/versions cover MySQL.
		if slices.Contains([]string{"memory", "file", "mariadb", "postgres"}, local) || strings.HasPrefix(local, "mysql") {
			continue
		}
		t.Run(local, func(t *testing.T) {
			t.Parallel()
			kinds, err := check.FaultKinds(t.Context(), check.Config{Local: local})
			servertest.Started(t, err)
			config := check.Config{Local: local, Duration: *duration, Seed: *seed}
			least := len(kinds) / 3
			if slices.Contains(alike, local) {
				config.Duration /= 3
				least = 1
			}
			r := checktest.Run(t, config)
			if s := r.Stats; s.Grants < 40 || s.Writes == 0 || len(s.Faults) < least {
				t.Errorf("%+v, of the faults %v: the test tests little", s, kinds)
			}
			if slices.Contains(replayed, local) {
				explore.Replay(t, filepath.Join(r.Dir, check.HistoryFile))
			}
		})
	}
}
