// Package tables checks that the tables of the documentation equal what the code
// declares.
package tables

import (
	"flag"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/e2e/servertest"
	"github.com/holdfast-go/holdfast/etcdstore"
	"github.com/holdfast-go/holdfast/filestore"
	"github.com/holdfast-go/holdfast/internal/must"
	"github.com/holdfast-go/holdfast/internal/servers"
	"github.com/holdfast-go/holdfast/memstore"
	"github.com/holdfast-go/holdfast/mysqlstore"
	"github.com/holdfast-go/holdfast/natsstore"
	"github.com/holdfast-go/holdfast/pgstore"
	"github.com/holdfast-go/holdfast/redisstore"
	"github.com/holdfast-go/holdfast/redisstore/layouts"
	"github.com/holdfast-go/holdfast/redisstore/redlock"
	"github.com/holdfast-go/holdfast/s3store"
	"github.com/holdfast-go/holdfast/sqlitestore"
	"github.com/holdfast-go/holdfast/zkstore"
)

var update = flag.Bool("update", false, "write the documentation's tables")

// TestGuaranteesPageIsCurrent compares docs/guarantees.md with the tested versions of the servers and the
// stores' declarations. With the flag -update it writes the page.
func TestGuaranteesPageIsCurrent(t *testing.T) {
	const path = "../../../docs/guarantees.md"
	page, err := os.ReadFile(path)
	must.Succeed(t, err)
	head, _, _ := strings.Cut(string(page), "\n## ")
	want := strings.TrimRight(head, "\n") + "\n\n## tested versions\n\n"
	for _, p := range servers.Tested() {
		want += "- " + p.Name + ": " + strings.Join(p.Versions, ", ") + "\n"
	}

	want += "\n## every store, unless its list states otherwise\n\n"
	for _, r := range usual {
		want += "- **" + r.Key + "**: " + r.Value + "\n"
	}

	var whole []driver.Guarantees // the stores that the page does not show as variants
	for _, g := range declared(t) {
		rows := g.Rows()
		want += "\n## " + g.Kind + "\n\n"
		if base := baseOf(whole, g); base != nil {
			want += "As [" + base.Kind + "](#" + strings.ReplaceAll(base.Kind, " ", "-") + "), except:\n\n"
			rows = slices.DeleteFunc(rows, func(r driver.Row) bool { return slices.Contains(base.Rows(), r) })
		} else {
			whole = append(whole, g)
			rows = slices.DeleteFunc(rows, func(r driver.Row) bool { return slices.Contains(usual, r) })
		}
		for _, r := range rows {
			if r.Key == "note" {
				want += "- " + r.Value + "\n"
			} else {
				want += "- **" + r.Key + "**: " + r.Value + "\n"
			}
		}
	}
	writeOrCompare(t, path, string(page), want)
}

// writeOrCompare writes a page with -update. Otherwise it requires that the page is as the stores declare.
func writeOrCompare(t *testing.T, path, page, want string) {
	t.Helper()
	if *update {
		servertest.Check(t, os.WriteFile(path, []byte(want), 0o644))
	} else if page != want {
		t.Errorf("%s differs from what the stores declare; run go test ./conformance/tables -update in e2e", path)
	}
}

// usual has the rows of most stores. The page shows them once.
var usual = []driver.Row{
	{Key: "limits", Value: "exclusive, shared, semaphore with slots; any mix on one name"},
	{Key: "a crash frees", Value: driver.CrashFreesAfterTTL.Describe()},
	{Key: "a paused holder", Value: driver.PauseLoses.Describe()},
	{Key: "minimum hold", Value: "kept by the store"},
	{Key: "break", Value: driver.BreakNow.Describe()},
}

// baseOf returns the last of the stores of which g is a variant, or nil. A variant is a layout or a recipe of the
// same store, and has all notes of its base. The page shows only the rows in which it differs.
func baseOf(stores []driver.Guarantees, g driver.Guarantees) *driver.Guarantees {
	product := func(g driver.Guarantees) string {
		return strings.FieldsFunc(g.Kind, func(r rune) bool { return r == ' ' || r == '-' })[0]
	}
	for _, base := range slices.Backward(stores) {
		missing := func(note string) bool { return !slices.Contains(g.Notes, note) }
		if product(base) == product(g) && base.Crash == g.Crash && !slices.ContainsFunc(base.Notes, missing) {
			return &base
		}
	}
	return nil
}

// fewestNotesFirst sorts the variants of a store, so that the one without notes of its own is the base of the others.
func fewestNotesFirst(variants []driver.Guarantees) []driver.Guarantees {
	slices.SortStableFunc(variants, func(a, b driver.Guarantees) int { return len(a.Notes) - len(b.Notes) })
	return variants
}

// declared returns the guarantees of every store. A store with variants comes before them.
func declared(t *testing.T) []driver.Guarantees {
	t.Helper()
	var all []driver.Guarantees
	of := func(s driver.Store, err error) driver.Guarantees {
		t.Helper()
		must.Succeed(t, err)
		g, err := s.Guarantees(t.Context())
		must.Succeed(t, err)
		must.Report(t, s.Close(t.Context()))
		return g
	}
	address := redis(t)
	all = append(all, of(memstore.New(), nil), of(filestore.Open(t.Context(), t.TempDir())))
	lite, err := sqlitestore.Open(t.TempDir()+"/locks.db", "")
	all = append(all, of(lite, err), of(redisstore.Open(t.Context(), "redis://"+address)))
	var variants []driver.Guarantees
	for _, l := range layouts.All() {
		variants = append(variants, of(layouts.Open(t.Context(), "redis://"+address, l)))
	}
	all = append(all, fewestNotesFirst(variants)...)
	fleet := url.Values{}
	for range 3 {
		fleet.Add("node", redis(t))
	}
	all = append(all, of(redlock.Open(t.Context(), "redlock://?"+fleet.Encode())), of(etcdstore.Open(t.Context(), "etcd://"+etcd(t))))
	for _, layout := range []zkstore.Layout{zkstore.ReadWrite, zkstore.Mutex, zkstore.Semaphore} {
		g, err := zkstore.Declared(zkstore.WithLayout(layout))
		must.Succeed(t, err)
		all = append(all, g)
	}
	// They declare the same without a server.
	all = append(all, of(natsstore.Open(t.Context(), "nats://127.0.0.1:1?bucket=locks", "")),
		of(s3store.Open(t.Context(), "s3://key:secret@bucket", "")))
	variants = nil
	for _, r := range mysqlstore.Recipes() {
		variants = append(variants, mysqlstore.Declared(r))
	}
	all = append(all, fewestNotesFirst(variants)...)
	variants = nil
	for _, r := range pgstore.Recipes() {
		variants = append(variants, pgstore.Declared(r))
	}
	return append(all, fewestNotesFirst(variants)...)
}

// started skips or fails the test if err reports that a server is not installed. It fails the test for any
// other error.
func started(t *testing.T, err error) {
	t.Helper()
	servertest.Started(t, err)
}

func redis(t *testing.T) string {
	t.Helper()
	r, err := servers.StartRedis(t.Context(), t.TempDir())
	started(t, err)
	t.Cleanup(r.Kill)
	return r.Address()
}

func etcd(t *testing.T) string {
	t.Helper()
	members, err := servers.StartEtcd(t.Context(), servers.EtcdConfig{Dir: t.TempDir()})
	started(t, err)
	t.Cleanup(members[0].Kill)
	return members[0].Client
}
