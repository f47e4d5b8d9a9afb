// Package versions holds the stores to the contract on servers newer than the system's:
// those of scripts/newer-servers. Other tests run on the system's.
package versions

import (
	"errors"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/check"
	"github.com/holdfast-go/holdfast/check/checktest"
	"github.com/holdfast-go/holdfast/check/servers"
	_ "github.com/holdfast-go/holdfast/etcdstore"
	_ "github.com/holdfast-go/holdfast/mysqlstore"
	_ "github.com/holdfast-go/holdfast/pgstore"
	_ "github.com/holdfast-go/holdfast/redisstore"
	_ "github.com/holdfast-go/holdfast/zkstore"

	_ "github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib"
)

var duration = flag.Duration("duration", 5*time.Second, "how long each check lasts")

// TestMain: this binary is the worker of its own checks.
func TestMain(m *testing.M) {
	check.MaybeWorker()
	os.Exit(m.Run())
}

// The tests that run on newer servers. They need no further server.
const (
	contract  = "^TestConformance$"
	databases = "^Test(Conformance|DurableTokens|OddRows|Settings)$"
	// Of the layouts of Redis the one that uses commands of newer servers.
	replicated = "^Test(Conformance|ConformanceReplicas|ConformanceLayouts|Plain.*|Layout(Full|Late.*))$"
)

// newer are the servers of scripts/newer-servers, by the names of their directories.
var newer = []struct {
	name, product string
	// Program prints its version with a flag; ZooKeeper has none, and its package's jar
	// has the version in its name.
	program, flag string
	suite         string // the package of the store's tests, and those that run on every version
	tests         string
	locals        []string // of the check
}{
	{"mysql", "MySQL", "mysqld", "--version", "mysql", databases, []string{"mysql-pessimistic", "mysql-optimistic", "mysql-named"}},
	{"mariadb", "MariaDB", "mariadbd", "--version", "mysql", databases, []string{"mariadb-pessimistic", "mariadb-optimistic", "mariadb-named"}},
	{"postgres", "PostgreSQL", "postgres", "--version", "postgres", databases, []string{"postgres-advisory", "postgres-pessimistic", "postgres-optimistic"}},
	{"redis", "Redis", "redis-server", "--version", "redis", replicated, []string{"redis"}},
	{"valkey", "Valkey", "redis-server", "--version", "redis", replicated, []string{"redis"}},
	{"etcd", "etcd", "etcd", "--version", "etcd", contract, []string{"etcd"}},
	{"zookeeper", "ZooKeeper", "", "", "zookeeper", contract, []string{"zookeeper"}},
}

// use makes the servers of one directory those that tests of this process start.
func use(t *testing.T, name string) (dir string) {
	t.Helper()
	dir = directory(t, name)
	t.Setenv(servers.Dirs, dir)
	return dir
}

// directory returns the directory of the programs of one server.
func directory(t *testing.T, name string) (dir string) {
	t.Helper()
	dir, err := filepath.Abs(filepath.Join("../../../bin/newer", name, "bin"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dir); err != nil {
		if os.Getenv("HOLDFAST_REQUIRE_SERVERS") == "1" {
			t.Fatalf("%v: run scripts/newer-servers", err)
		}
		t.Skipf("%v: run scripts/newer-servers", err)
	}
	return dir
}

var number = regexp.MustCompile(`\b(\d+)\.(\d+)`)

// TestTestedVersions compares the servers with the versions that the documentation lists.
func TestTestedVersions(t *testing.T) {
	for _, s := range newer {
		t.Run(s.name, func(t *testing.T) {
			dir := use(t, s.name)
			var said string
			if s.program != "" {
				out, err := exec.CommandContext(t.Context(), filepath.Join(dir, s.program), s.flag).CombinedOutput()
				if err != nil {
					t.Fatalf("%v: %s", err, out)
				}
				said = string(out)
			} else {
				jar, err := filepath.EvalSymlinks(filepath.Join(dir, "zookeeper.jar"))
				if err != nil {
					t.Fatal(err)
				}
				said = filepath.Base(jar)
			}
			// The server's name may be followed by the version of what it was built from.
			found := number.FindStringSubmatch(said)
			if found == nil {
				t.Fatalf("no version in %q", said)
			}
			version := found[1] + "." + found[2]
			if s.product == "PostgreSQL" {
				version = found[1] // its second number is that of a correction
			}
			i := slices.IndexFunc(servers.Tested(), func(p servers.Product) bool { return p.Name == s.product })
			if i < 0 {
				t.Fatalf("%s is not in servers.Tested, of which docs/guarantees.md is printed", s.product)
			}
			if !slices.Contains(servers.Tested()[i].Versions, version) {
				// The suite has a newer server than this repository: that is no defect of it.
				t.Skipf("%s %s is not in servers.Tested, of which docs/guarantees.md is printed: add it", s.product, version)
			}
		})
	}
}

// TestSuite runs the stores' conformance tests. They wait most of the time, so several go
// side by side.
func TestSuite(t *testing.T) {
	for _, s := range newer {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			// Of Redis: the layout plain, too, which uses commands that newer servers have.
			suite := exec.CommandContext(t.Context(), "go", "test", "-count=1", "-timeout=15m", "-run="+s.tests, "../"+s.suite)
			suite.Env = append(suite.Environ(), servers.Dirs+"="+directory(t, s.name), "HOLDFAST_LAYOUT_SUITE=plain")
			if out, err := suite.CombinedOutput(); err != nil {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}

// TestCheck is a check of each store, with faults.
func TestCheck(t *testing.T) {
	for _, s := range newer {
		for _, local := range s.locals {
			t.Run(s.name+"/"+strings.TrimPrefix(local, s.name+"-"), func(t *testing.T) {
				use(t, s.name)
				target, err := check.StartLocal(t.Context(), local, t.TempDir())
				if errors.Is(err, servers.ErrNotInstalled) && os.Getenv("HOLDFAST_REQUIRE_SERVERS") != "1" {
					t.Skip(err)
				}
				if err != nil {
					t.Fatal(err)
				}
				if r := checktest.Run(t, check.Config{Target: target, Duration: *duration}); r.Stats.Grants == 0 {
					t.Error("nothing was granted: the test tests nothing")
				}
			})
		}
	}
}
