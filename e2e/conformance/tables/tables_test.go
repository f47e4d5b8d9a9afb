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

	"github.com/holdfast-go/holdfast/check/servers"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/e2e/servertest"
	"github.com/holdfast-go/holdfast/etcdstore"
	"github.com/holdfast-go/holdfast/filestore"
	"github.com/holdfast-go/holdfast/memstore"
	"github.com/holdfast-go/holdfast/mysqlstore"
	"github.com/holdfast-go/holdfast/pgstore"
	"github.com/holdfast-go/holdfast/redisstore"
	"github.com/holdfast-go/holdfast/redisstore/redlock"
	"github.com/holdfast-go/holdfast/zkstore"
)

var update = flag.Bool("update", false, "write the documentation's tables")

// TestGuaranteesPageIsCurrent compares docs/guarantees.md with the tested versions of the servers and the
// stores' declarations. With the flag -update it writes the page.
func TestGuaranteesPageIsCurrent(t *testing.T) {
	const path = "../../../docs/guarantees.md"
	page, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	head, _, _ := strings.Cut(string(page), "\n## ")
	want := strings.TrimRight(head, "\n") + "\n\n## tested versions\n\n| | |\n| --- | --- |\n"
	for _, p := range servers.Tested() {
		want += "| " + p.Name + " | " + strings.Join(p.Versions, ", ") + " |\n"
	}

	var base driver.Guarantees // the store of the variants that follow
	for _, g := range declared(t) {
		rows := g.Rows()
		want += "\n## " + g.Kind + "\n\n"
		if isVariant(base, g) {
			want += "As [" + base.Kind + "](#" + base.Kind + "), except:\n\n"
			rows = slices.DeleteFunc(rows, func(r driver.Row) bool { return slices.Contains(base.Rows(), r) })
		} else {
			base = g
		}
		want += "| | |\n| --- | --- |\n"
		for _, r := range rows {
			want += "| " + r.Key + " | " + r.Value + " |\n"
		}
	}
	if *update {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if string(page) != want {
		t.Errorf("%s differs from what the stores declare; run go test ./conformance/tables -update in e2e", path)
	}
}

// isVariant reports whether g is a layout of the same store as base and has all notes of
// base. The page then shows only the rows in which g differs.
func isVariant(base, g driver.Guarantees) bool {
	layout := strings.HasPrefix(g.Kind, "redis-") || strings.HasPrefix(g.Kind, "zookeeper ")
	return layout && !slices.ContainsFunc(base.Notes, func(note string) bool { return !slices.Contains(g.Notes, note) })
}

// declared returns the guarantees of every store. A store with variants comes before them.
func declared(t *testing.T) []driver.Guarantees {
	t.Helper()
	var all []driver.Guarantees
	add := func(s driver.Store, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		g, err := s.Guarantees(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, g)
		if err := s.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
	add(memstore.New(), nil)
	add(filestore.Open(t.Context(), t.TempDir()))
	address := redis(t)
	add(redisstore.Open(t.Context(), "redis://"+address))
	for _, l := range redisstore.Layouts() {
		add(redisstore.Open(t.Context(), "redis://"+address, redisstore.WithLayout(l)))
	}
	fleet := url.Values{}
	for range 3 {
		fleet.Add("node", redis(t))
	}
	add(redlock.Open(t.Context(), "redlock://?"+fleet.Encode()))
	add(etcdstore.Open(t.Context(), "etcd://"+etcd(t)))
	for _, layout := range []zkstore.Layout{zkstore.ReadWrite, zkstore.Mutex, zkstore.Semaphore} {
		g, err := zkstore.Declared(zkstore.WithLayout(layout))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, g)
	}
	for _, r := range mysqlstore.Recipes() {
		all = append(all, mysqlstore.Declared(r))
	}
	for _, r := range pgstore.Recipes() {
		all = append(all, pgstore.Declared(r))
	}
	return all
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
