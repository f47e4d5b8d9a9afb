package tables

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/etcdstore"
	"github.com/holdfast-go/holdfast/filestore"
	"github.com/holdfast-go/holdfast/internal/examine"
	"github.com/holdfast-go/holdfast/internal/must"
	"github.com/holdfast-go/holdfast/mysqlstore"
	"github.com/holdfast-go/holdfast/natsstore"
	"github.com/holdfast-go/holdfast/pgstore"
	"github.com/holdfast-go/holdfast/redisstore"
	"github.com/holdfast-go/holdfast/redisstore/redlock"
	"github.com/holdfast-go/holdfast/s3store"
	"github.com/holdfast-go/holdfast/zkstore"
)

// examined is a store that examines its server, and the files of its tests.
type examined struct {
	title string
	store driver.Store
	tests []string
}

// TestDoctorPageIsCurrent compares docs/doctor.md with the checks of the stores. With the flag -update it writes the
// page. It requires that the tests of each store name each check. The page has the consequence of a check that breaks
// a promise, and of a note; doctor prints that of every finding.
func TestDoctorPageIsCurrent(t *testing.T) {
	const path = "../../../docs/doctor.md"
	page, err := os.ReadFile(path)
	must.Succeed(t, err)
	head, _, _ := strings.Cut(string(page), "\n## ")
	want := strings.TrimRight(head, "\n") + "\n"
	var before []driver.Check
	for _, e := range everyExaminer(t) {
		want += fmt.Sprintf("\n## %s\n", e.title)
		var source string
		for _, file := range e.tests {
			text, err := os.ReadFile("../../../" + file)
			must.Succeed(t, err)
			source += string(text)
		}
		checks := e.store.(driver.Examiner).Checks()
		slices.SortStableFunc(checks, func(a, b driver.Check) int { return strings.Compare(string(a.Weight), string(b.Weight)) })
		weight := driver.Weight("")
		for _, c := range checks {
			if slices.Contains(before, c) {
				continue
			}
			if !strings.Contains(source, `"`+c.Name+`"`) {
				t.Errorf("%s: no test names the check %q", e.title, c.Name)
			}
			if c.Name == examine.Unread { // the head of the page has it
				continue
			}
			if c.Weight != weight {
				weight = c.Weight
				want += map[driver.Weight]string{
					driver.WeightBreaks: "\n| check | wanted | otherwise |\n| --- | --- | --- |\n",
					driver.WeightCosts:  "\nWanted, because it costs time otherwise:\n\n",
					driver.WeightNote:   "\nGood to know:\n\n",
				}[weight]
			}
			switch weight {
			case driver.WeightBreaks:
				want += fmt.Sprintf("| `%s` | %s | %s |\n", c.Name, c.Want, c.Consequence)
			case driver.WeightCosts:
				want += fmt.Sprintf("- `%s`: %s\n", c.Name, c.Want)
			default:
				want += fmt.Sprintf("- `%s`: %s. Otherwise: %s\n", c.Name, c.Want, c.Consequence)
			}
		}
		before = append(before, checks...)
		must.Report(t, e.store.Close(t.Context()))
	}
	writeOrCompare(t, path, string(page), want)
}

// everyExaminer returns the stores, without a server.
func everyExaminer(t *testing.T) []examined {
	t.Helper()
	of := func(s driver.Store, err error) driver.Store {
		t.Helper()
		must.Succeed(t, err)
		return s
	}
	ctx := t.Context()
	file, err := filestore.Open(ctx, t.TempDir())
	files := of(file, err)
	redis, err := redisstore.Open(ctx, "redis://127.0.0.1:1")
	one := of(redis, err)
	lock, err := redlock.Open(ctx, "redlock://?node=127.0.0.1:1&node=127.0.0.1:2&node=127.0.0.1:3")
	fleet := of(lock, err)
	pg, err := pgstore.Open(ctx, "postgres://app@127.0.0.1:1/app?sslmode=disable")
	postgres := of(pg, err)
	my, err := mysqlstore.Open(ctx, "mysql://app@127.0.0.1:1/app?recipe=optimistic")
	mysql := of(my, err)
	etcd, err := etcdstore.Open(ctx, "etcd://127.0.0.1:1")
	members := of(etcd, err)
	zk, err := zkstore.Open(ctx, "zk://127.0.0.1:1")
	ensemble := of(zk, err)
	nats, err := natsstore.Open(ctx, "nats://127.0.0.1:1?bucket=locks", "")
	bucket := of(nats, err)
	s3, err := s3store.Open(ctx, "s3://key:secret@locks", "")
	objects := of(s3, err)
	const e2e = "e2e/conformance/"
	return []examined{
		{"Redis", one, []string{e2e + "redis/examine_test.go"}},
		{"Redlock: as the checks of one server of Redis, and", fleet, []string{e2e + "redlock/examine_test.go", e2e + "redis/examine_test.go"}},
		{"PostgreSQL", postgres, []string{e2e + "postgres/examine_test.go"}},
		{"MySQL and MariaDB", mysql, []string{e2e + "mysql/examine_test.go"}},
		{"etcd", members, []string{e2e + "etcd/examine_test.go"}},
		{"ZooKeeper", ensemble, []string{e2e + "zookeeper/examine_test.go"}},
		{"NATS", bucket, []string{e2e + "nats/examine_test.go"}},
		{"S3", objects, []string{e2e + "s3/examine_test.go"}},
		{"Files and SQLite", files, []string{"filestore/examine_linux_test.go", "internal/filesystem/filesystem_linux_test.go"}},
	}
}
