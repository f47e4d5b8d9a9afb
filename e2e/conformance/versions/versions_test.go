// Package versions tests the stores on servers of versions that the system does not have.
// scripts/newer-servers gets these servers. Other tests use the servers of the system.
package versions

import (
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
	"github.com/holdfast-go/holdfast/e2e/servertest"
	_ "github.com/holdfast-go/holdfast/etcdstore"
	"github.com/holdfast-go/holdfast/internal/must"
	"github.com/holdfast-go/holdfast/internal/servers"
	_ "github.com/holdfast-go/holdfast/mysqlstore"
	_ "github.com/holdfast-go/holdfast/pgstore"
	_ "github.com/holdfast-go/holdfast/redisstore"
	_ "github.com/holdfast-go/holdfast/zkstore"

	_ "github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib"
)

var duration = flag.Duration("duration", 5*time.Second, "the duration of each check")

// TestMain makes this binary the worker of its own checks.
func TestMain(m *testing.M) {
	check.MaybeWorker()
	os.Exit(m.Run())
}

// These patterns select the tests that run on newer servers.
const (
	contract  = "^Test(Conformance)$"
	databases = "^Test(Conformance|OddNamesMatchOtherPrograms|SettingsMakeNoDifference)$|^TestShared$/^(DurableTokensRise|ManyNamesAreRenewed)$"
	// failures selects tests of faults and of refused servers. Without this selection they would run
	// only on MariaDB, the server that the package uses by default.
	failures = "^Test(Shared|Dead|Ping|Swap|Switchover|ReadOnly|Takeover|Evict|Session|Unrecorded|Late|Uncommitted|HeldLock|GetLock|Name|Long|" +
		"Statement|Group|Commits|ReadWrite|Locks|DocumentedRights|Unsafe)"
	// fewFailures selects tests that start no further server.
	fewFailures = "^Test(Durable|Odd|Settings|Dead|Ping|Swap|Evict|Session|Unrecorded|Late|GetLock|Name|Long|DocumentedRights)|" +
		"^TestShared$/^(Durable|ManyNames|Killed|Silent|Interrupted|Cancelled|Deleted)"
	// replicated includes the suites of layouts. Of these only plain runs, which uses
	// commands of newer servers.
	replicated = "^Test(Conformance|ConformanceReplicas|ConformanceLayouts|Plain.*|Layout(Full|Late).*)$"
)

// newer lists the servers of scripts/newer-servers, by the names of their directories.
var newer = []struct {
	name, product string
	// program prints its version with flag. ZooKeeper has no such program, and its jar has the
	// version in its name.
	program, flag string
	suite         string   // the package of the store's tests
	tests         string   // the tests that run on every version
	more          string   // further tests, beside those; may be empty
	locals        []string // the targets of TestCheckPassesOnNewerServers
}{
	{"mysql", "MySQL", "mysqld", "--version", "mysql", databases, failures, []string{"mysql-pessimistic", "mysql-optimistic", "mysql-named"}},
	{"mysql84", "MySQL", "mysqld", "--version", "mysql", "", fewFailures, nil}, // a version between two on which all tests run
	{"mysql80", "MySQL", "mysqld", "--version", "mysql", databases, fewFailures, []string{"mysql-pessimistic"}},
	{"mariadb", "MariaDB", "mariadbd", "--version", "mysql", databases, "", []string{"mariadb-pessimistic", "mariadb-optimistic", "mariadb-named"}},
	{"postgres", "PostgreSQL", "postgres", "--version", "postgres", databases, "", []string{"postgres-advisory", "postgres-pessimistic", "postgres-optimistic"}},
	{"redis", "Redis", "redis-server", "--version", "redis", replicated, "", []string{"redis"}},
	{"valkey", "Valkey", "redis-server", "--version", "redis", replicated, "", []string{"redis"}},
	{"etcd", "etcd", "etcd", "--version", "etcd", contract, "", []string{"etcd"}},
	{"zookeeper", "ZooKeeper", "", "", "zookeeper", contract, "", []string{"zookeeper"}},
	// A check would grant nothing: contended writes take seconds, so no probe ends between two faults.
	{"seaweedfs", "SeaweedFS", "weed", "version", "s3", "^Test(Conformance|Values|ExamineFindsLifecycleRules)$", "", nil},
}

// use makes the tests of this process start the servers of one directory.
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
	must.Succeed(t, err)
	if _, err := os.Stat(dir); err != nil {
		// The mirror of MySQL 8 may be out of reach.
		if os.Getenv("HOLDFAST_REQUIRE_SERVERS") == "1" && !strings.HasPrefix(name, "mysql8") {
			t.Fatalf("%v: run scripts/newer-servers", err)
		}
		t.Skipf("%v: run scripts/newer-servers", err)
	}
	return dir
}

var number = regexp.MustCompile(`\b(\d+)\.(\d+)`)

// TestSelectionsMatchTests requires that each part of a selection matches a test of its suite. Otherwise a
// renamed test would no longer run on newer servers.
func TestSelectionsMatchTests(t *testing.T) {
	for _, s := range newer {
		files, err := filepath.Glob("../" + s.suite + "/*_test.go")
		if err != nil || len(files) == 0 {
			t.Fatal(files, err)
		}
		var text []byte
		for _, f := range files {
			b, err := os.ReadFile(f)
			must.Succeed(t, err)
			text = append(text, b...)
		}
		for _, selection := range []string{s.tests, s.more} {
			parts, end := strings.CutSuffix(strings.TrimPrefix(selection, "^Test("), ")$")
			parts = strings.TrimSuffix(parts, ")")
			for _, part := range regexp.MustCompile(`[^|(]+(\([^)]*\)[^|]*)?`).FindAllString(parts, -1) {
				pattern := `(?m)^func Test` + part
				if end {
					pattern += `\(`
				}
				if !regexp.MustCompile(pattern).Match(text) {
					t.Errorf("%s: no test of %s matches %q", s.name, s.suite, part)
				}
			}
		}
	}
}

// TestInstalledVersionsAreListed requires that the version of each server is in servers.Tested, the
// list of the documentation.
func TestInstalledVersionsAreListed(t *testing.T) {
	for _, s := range newer {
		t.Run(s.name, func(t *testing.T) {
			dir := use(t, s.name)
			var output string
			if s.program != "" {
				out, err := exec.CommandContext(t.Context(), filepath.Join(dir, s.program), s.flag).CombinedOutput()
				if err != nil {
					t.Fatalf("%v: %s", err, out)
				}
				output = string(out)
			} else {
				jar, err := filepath.EvalSymlinks(filepath.Join(dir, "zookeeper.jar"))
				must.Succeed(t, err)
				output = filepath.Base(jar)
			}
			// The first number is the version; a fork also prints the version of its origin.
			found := number.FindStringSubmatch(output)
			if found == nil {
				t.Fatalf("no version in %q", output)
			}
			version := found[1] + "." + found[2]
			if s.product == "PostgreSQL" {
				version = found[1] // the second number is the patch level
			}
			i := slices.IndexFunc(servers.Tested(), func(p servers.Product) bool { return p.Name == s.product })
			if i < 0 {
				t.Fatalf("%s is not in servers.Tested, from which docs/guarantees.md is generated", s.product)
			}
			if !slices.Contains(servers.Tested()[i].Versions, version) {
				// A newer installed server is no defect of this repository.
				t.Skipf("%s %s is not in servers.Tested, from which docs/guarantees.md is generated: add it", s.product, version)
			}
		})
	}
}

// TestStoresPassOnNewerServers runs the conformance tests of the stores. They mostly wait, so several
// run in parallel.
func TestStoresPassOnNewerServers(t *testing.T) {
	for _, s := range newer {
		for kind, tests := range map[string]string{"tests": s.tests, "more": s.more} {
			if tests == "" {
				continue
			}
			t.Run(s.name+"/"+kind, func(t *testing.T) {
				t.Parallel()
				// The suite of Redis also runs in one of the layouts.
				suite := exec.CommandContext(t.Context(), "go", "test", "-count=1", "-timeout=15m", "-run="+tests, "../"+s.suite)
				suite.Env = append(suite.Environ(), servers.Dirs+"="+directory(t, s.name), "HOLDFAST_LAYOUT_SUITE=plain")
				if out, err := suite.CombinedOutput(); err != nil {
					t.Errorf("%v\n%s", err, out)
				}
			})
		}
	}
}

// TestCheckPassesOnNewerServers runs a check of each store, with faults.
func TestCheckPassesOnNewerServers(t *testing.T) {
	for _, s := range newer {
		for _, local := range s.locals {
			t.Run(s.name+"/"+strings.TrimPrefix(local, s.name+"-"), func(t *testing.T) {
				use(t, s.name)
				target, err := check.StartLocal(t.Context(), local, t.TempDir())
				servertest.Started(t, err)
				if r := checktest.Run(t, check.Config{Target: target, Duration: *duration}); r.Stats.Grants == 0 {
					t.Error("the check made no grant")
				}
			})
		}
	}
}
