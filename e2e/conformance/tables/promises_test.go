package tables

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/must"
)

const (
	promisesFile = "promises.txt"
	repository   = "../../.."
)

// TestEveryPromiseNamesItsTest compares promises.txt with what the stores declare
// and with the tests that exist.
func TestEveryPromiseNamesItsTest(t *testing.T) {
	text, err := os.ReadFile(promisesFile)
	must.Succeed(t, err)
	for _, fault := range judge(string(text), append(subjects(declared(t)), others(t)...), tests(t)) {
		t.Error(fault)
	}
}

// entry is one promise of the file: the tests show that the stores keep it.
type entry struct {
	line    int // of the promise
	stores  []string
	promise string
	tests   string
}

var (
	heading = regexp.MustCompile(`^\[(.+)\]$`)
	row     = regexp.MustCompile(`^\| (.+?) \| (.+) \|$`) // of a table on a page
)

func entries(text string) (all []entry) {
	var stores []string
	promise := ""
	for i, line := range strings.Split(text, "\n") {
		tests, indented := strings.CutPrefix(line, "\t")
		switch m := heading.FindStringSubmatch(line); {
		case m != nil:
			stores = strings.Split(m[1], ", ")
		case indented:
			all = append(all, entry{i, stores, promise, tests})
		case stores != nil:
			promise = line
		}
	}
	return all
}

// suiteRow is the promise to keep the contract of package driver. Its tests run the suite.
const suiteRow = "the contract of package driver"

// promises returns the promises of a store's table. Each way in which a lock may end early has a row of
// its own.
func promises(g driver.Guarantees) []string {
	all := []string{suiteRow}
	for _, r := range g.Rows() {
		if r.Key != "may end early" || len(g.EarlyEnd) == 0 {
			all = append(all, r.Key+": "+r.Value)
			continue
		}
		for _, e := range g.EarlyEnd {
			all = append(all, fmt.Sprintf("%s: %s; noticed within %s", r.Key, e, g.Notice))
		}
	}
	return all
}

const everyStore = "Every store"

// subject is a store or another part of holdfast, with its promises.
type subject struct {
	kind     string
	promises []string
}

func subjects(stores []driver.Guarantees) (all []subject) {
	for _, g := range stores {
		all = append(all, subject{g.Kind, promises(g)})
	}
	return all
}

// guards lists the promises of the contract of fence.Guard, which every guard keeps.
var guards = []string{
	"a smaller token than the largest seen is refused with both tokens, and its write has no effect",
	"the comparison and the write are one step for all clients: of concurrent writes, the content is that of the largest token",
	"an equal token writes again; the high-water mark never falls",
	"token 0, a token of 2^63 or more, and a bad resource are refused before anything is sent",
	"a write after the loss of the lock is refused, also before a newer holder has written",
	"a context that has ended writes nothing",
	"a reader's check raises nothing; a permit is fenced by its slot",
	"a missing table, column or row is an error that names it, and so is a column that holds no integers",
	"a guard's record that cannot be read refuses every token",
	"a holder that was paused beyond its TTL is refused with real processes on every store whose grants can end; without the guard its write is done",
}

// replicated lists the promises of Redis servers with replicas. The guarantees of a single server do not
// include them.
var replicated = []string{
	"may end early: a failover to a replica that has not received the grant; noticed within 3s",
	"a grant and its queue survive a failover to a replica that has received them",
	"if the primary becomes a replica and keeps the connections, clients connect again, to the server at the address now",
	"with replicas=N a grant, a renewal or a release with a minimum hold counts only after N replicas have acknowledged it; otherwise a grant is rolled back",
	"with replicas=N a waiter whose grant they do not acknowledge in time queues again, behind the others",
	"with replicas=N leases are longer by the time that a replica's clock is ahead of the primary's, up to 10s; above that new locks are refused",
	"while a hash slot of a Cluster moves, one client holds a lock, and tokens rise",
}

var guardType = regexp.MustCompile(`(?m)^var _ (?:fence\.)?Guard\[.*\] = (?:\(\*)?(?:fence\.)?(\w+)|^func \(\w+ (\w+)\) Guard\(db \*sql\.DB.* Guard\[Func\]`)

// others returns the promises of Redis with replicas, files of other users, guards, versioned values, Once and sequences.
// It finds the types of guards in the source.
func others(t *testing.T) []subject {
	t.Helper()
	guard := subject{kind: "guards", promises: guards}
	for _, pattern := range []string{"fence/*.go", "*store/*.go"} {
		files, err := filepath.Glob(filepath.Join(repository, pattern))
		must.Succeed(t, err)
		for _, file := range files {
			text, err := os.ReadFile(file)
			must.Succeed(t, err)
			for _, m := range guardType.FindAllStringSubmatch(string(text), -1) {
				guard.promises = append(guard.promises, fmt.Sprintf("`%s.%s` keeps the contract of fence.Guard", filepath.Base(filepath.Dir(file)), m[1]+m[2]))
			}
		}
	}
	if len(guard.promises) != len(guards)+9 {
		t.Fatalf("the guards of the source: %q", guard.promises[len(guards):])
	}
	values := subject{kind: "versioned values", promises: []string{
		"a write succeeds at the value's present version alone; each version is used once",
		"no update is lost, with 32 processes on one value",
		"a conflict repeats the function after a random backoff, until it wins or the context ends, and is counted",
		"a write of unknown outcome is reported and not repeated",
		"an error of the caller's function is returned unchanged, and nothing is written",
		"the same on a row of the user's own table with a version column",
		"a version of a type that cannot be compared, NULL, a missing table, column or row is an error",
		"a session of MySQL that clips numbers or commits nothing writes nothing, and the error has the reason; so with a read-only server",
		"the same on an object store with conditional writes",
		"an object server that ignores a condition is refused; no redirect confirms a write; a PUT that a proxy repeats is applied once",
	}}
	for _, store := range []string{"memory", "file", "redis", "etcd", "zookeeper", "nats", "s3", "mysql", "postgres"} {
		values.promises = append(values.promises, store+" keeps the contract of driver.Values")
	}
	return []subject{{"redis with replicas", replicated}, guard, values,
		{"files of other users", []string{
			"no user of a shared directory makes a process read or change a file outside it, or the mode of one",
			"no user of a shared directory makes a process run a program",
			"no user of a shared directory makes a call wait beyond its context, or use unbounded memory",
			"a forged message grants no lock and ends none",
			"a damaged file grants no lock, and its error names it",
			"a user of a shared directory cannot replace its subdirectories",
			"a directory, a parent or a link that another user could have created first is refused",
			"a file guard changes nothing outside its directory",
		}},
		{"once", []string{
			"of many callers one runs the function, and the others find the mark",
			"the mark is set only after success; a job that ran without its mark is reported",
		}},
		{"sequences", []string{
			"no id is drawn twice, by any number of processes and crashes",
			"an error of Next is that of a reservation during the call",
			"ids of a process rise; a write of unknown outcome leaves a gap",
			"blocks grow with the rate, and the next block is fetched ahead",
			"the usual table of segments works as it stands, beside other programs",
		}},
	}
}

// judge returns the faults of the file. Each fault names the change to make.
func judge(text string, declared []subject, exists func(test string) bool) (faults []string) {
	all := entries(text)
	about := func(e entry, store string) bool {
		return slices.Contains(e.stores, store) || e.stores[0] == everyStore
	}
	used := map[entryKey]bool{}
	for _, g := range declared {
		for _, p := range g.promises {
			found := false
			for _, e := range all {
				if e.promise == p && about(e, g.kind) {
					found = true
					used[entryKey{e.line, g.kind}] = true
				}
			}
			if !found {
				faults = append(faults, fmt.Sprintf("promises.txt names no test for a promise of %s: add, below a heading with that store,\n%s\n\tpackage.TestName", g.kind, p))
			}
		}
	}
	kinds := map[string]bool{}
	for _, g := range declared {
		kinds[g.kind] = true
	}
	for _, e := range all {
		at := fmt.Sprintf("promises.txt:%d: ", e.line)
		stale := true
		for kind := range kinds {
			stale = stale && !used[entryKey{e.line, kind}]
		}
		switch {
		case stale:
			faults = append(faults, fmt.Sprintf("%sno store of %q promises %q: remove the lines, or write the promise as docs/guarantees.md has it", at, strings.Join(e.stores, ", "), e.promise))
			continue
		case e.stores[0] != everyStore:
			for _, store := range e.stores {
				if !used[entryKey{e.line, store}] {
					faults = append(faults, fmt.Sprintf("%s%s does not promise %q: move it to a heading without that store", at, store, e.promise))
				}
			}
		}
		for _, test := range strings.Split(e.tests, ", ") {
			if strings.HasPrefix(e.tests, "nothing is promised") || strings.HasPrefix(e.tests, "no test: ") {
				break
			}
			if !exists(test) {
				faults = append(faults, fmt.Sprintf("%sthere is no test %q: write package.TestName, \"sqltest Name\" for one that both SQL stores run, or \"suite Name\" for one of the suite in driver/drivertest that the harness of the store can run", at, test))
			}
		}
	}
	return faults
}

type entryKey struct {
	line  int
	store string
}

var (
	suiteTests = regexp.MustCompile(`(?m)^\t\t\{"([^"]+)", \w+\},$`)
	functions  = regexp.MustCompile(`(?m)^func (Test\w+)\(t \*testing\.T\)`)
	bubble     = regexp.MustCompile(`\bBubble\s*[:=]+\s*true\b`)
)

// inBubble is a test of the suite that skips unless the harness has Bubble.
const inBubble = "suite TokensOfAWrongClock"

// tests returns a function that reports whether a test exists. The name of a package is its directory in
// the repository, in e2e or in e2e/conformance; the package holdfast is the root. If no harness can run
// inBubble, the function reports that inBubble is missing.
func tests(t *testing.T) func(test string) bool {
	t.Helper()
	suite, err := os.ReadFile(filepath.Join(repository, "driver/drivertest/drivertest.go"))
	must.Succeed(t, err)
	shared, err := os.ReadFile("../sqltest/shared.go")
	must.Succeed(t, err)
	found := map[string]bool{}
	for _, m := range suiteTests.FindAllStringSubmatch(string(suite), -1) {
		found["suite "+m[1]] = true
	}
	for _, m := range suiteTests.FindAllStringSubmatch(string(shared), -1) {
		found["sqltest "+m[1]] = true
	}
	bubbles := false
	read := func(directory, name string) {
		files, _ := filepath.Glob(filepath.Join(repository, directory, "*_test.go"))
		for _, file := range files {
			text, err := os.ReadFile(file)
			must.Succeed(t, err)
			bubbles = bubbles || bubble.Match(text)
			for _, m := range functions.FindAllStringSubmatch(string(text), -1) {
				found[name+"."+m[1]] = true
			}
		}
	}
	directories, err := filepath.Glob(filepath.Join(repository, "*"))
	must.Succeed(t, err)
	for _, d := range directories {
		read(filepath.Base(d), filepath.Base(d))
	}
	directories, err = filepath.Glob(filepath.Join(repository, "e2e/conformance/*"))
	must.Succeed(t, err)
	for _, d := range directories {
		read(filepath.Join("e2e/conformance", filepath.Base(d)), filepath.Base(d))
	}
	directories, err = filepath.Glob(filepath.Join(repository, "e2e/interop/*"))
	must.Succeed(t, err)
	for _, d := range directories {
		read(filepath.Join("e2e/interop", filepath.Base(d)), "interop/"+filepath.Base(d))
	}
	for _, d := range []string{"cmd/holdfast", "driver/record", "internal/printable", "internal/storeurl"} {
		read(d, d)
	}
	read(".", "holdfast")
	read("e2e/torture", "torture")
	if !found[inBubble] {
		t.Fatalf("driver/drivertest has no %q", inBubble)
	}
	found[inBubble] = bubbles
	return func(test string) bool { return found[test] }
}

// TestFileOfPromisesIsJudged: judge finds missing, stale and misspelt promises. Each fault names the text to
// write.
func TestFileOfPromisesIsJudged(t *testing.T) {
	stores := []driver.Guarantees{
		{Kind: "a", Order: "first", EarlyEnd: []string{"a flush", "a kill"}},
		{Kind: "b", Order: "last", Notes: []string{"mind this"}},
	}
	var whole strings.Builder
	for _, g := range stores {
		fmt.Fprintf(&whole, "[%s]\n", g.Kind)
		for _, p := range promises(g) {
			fmt.Fprintf(&whole, "%s\n\tp.TestIt\n", p)
		}
	}
	exists := func(test string) bool { return test == "p.TestIt" }
	if faults := judge(whole.String(), subjects(stores), exists); len(faults) > 0 {
		t.Fatalf("a whole file: %q", faults)
	}
	for _, c := range []struct{ replace, with, fault string }{
		{"may end early: a kill; noticed within 0s\n\tp.TestIt\n", "", "may end early: a kill; noticed within 0s\n\tpackage.TestName"},
		{"note: mind this\n\tp.TestIt\n", "", "names no test for a promise of b"},
		{"note: mind this\n\tp.TestIt\n", "note: mind that\n\tp.TestIt\n", `no store of "b" promises "note: mind that"`},
		{"[b]\n", "[b, a]\n", `a does not promise "note: mind this"`},
		{"note: mind this\n\tp.TestIt", "note: mind this\n\tp.TestIt, p.TestThat", `there is no test "p.TestThat"`},
		{"note: mind this\n\tp.TestIt", "note: mind this\n\tsomewhere", `there is no test "somewhere"`},
	} {
		page := strings.Replace(whole.String(), c.replace, c.with, 1)
		if page == whole.String() {
			t.Fatalf("%q is not in the file", c.replace)
		}
		if faults := strings.Join(judge(page, subjects(stores), exists), "\n"); !strings.Contains(faults, c.fault) {
			t.Errorf("%q instead of %q: the faults do not say %q:\n%s", c.with, c.replace, c.fault, faults)
		}
	}
}
