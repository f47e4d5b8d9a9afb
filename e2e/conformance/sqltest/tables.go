package sqltest

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// TablesThatDoNotExcludeAreRefused requires that a store is opened on a user's table only if a name has at
// most one row there. bad and good have the statements that create a table THIS with a column name.
func TablesThatDoNotExcludeAreRefused(t *testing.T, d *Database, bad, good map[string]string) {
	database := d.Create(t)
	create := func(t *testing.T, name, script string) (params string) {
		for statement := range strings.SplitSeq(strings.ReplaceAll(script, "THIS", "locks_"+name), "; ") {
			d.Exec(t, database, statement)
		}
		return "recipe=pessimistic&table=locks_" + name + "&column=name"
	}
	for _, name := range slices.Sorted(maps.Keys(bad)) {
		t.Run(name, func(t *testing.T) {
			params := create(t, name, bad[name])
			s, err := d.Open(t.Context(), d.URL(d.Server(t).Address, database, params), "")
			if err == nil {
				Close(t, s)
			}
			if driver.CodeOf(err) != driver.CodeRefused || !strings.Contains(err.Error(), "locks_"+name) {
				t.Fatalf("Open: %v; want refused, with the name of the table", err)
			}
		})
	}
	for _, name := range slices.Sorted(maps.Keys(good)) {
		t.Run(name, func(t *testing.T) {
			params := create(t, name, good[name])
			a, b := d.Store(t, database, params), d.Store(t, database, params)
			g, _ := Must(t, a, "x", driver.Exclusive, time.Minute)
			Busy(t, b, "x", driver.Exclusive)
			Release(t, a, g)
		})
	}
}

// manyClientsCreateTables requires that Init succeeds although many replicas of a service call it at the same
// time.
func manyClientsCreateTables(t *testing.T, d *Database) {
	const clients = 30
	for range 3 {
		database := d.Bare(t)
		var stores []Store
		for range clients {
			s := d.Store(t, database, "recipe=optimistic")
			stores = append(stores, s)
		}
		AtOnce(t, clients, func(ctx context.Context, i int) error { return stores[i].Init(ctx) })
	}
}

// AtOnce calls f n times at the same time, and fails the test if a call returns an error.
func AtOnce(t *testing.T, n int, f func(ctx context.Context, i int) error) {
	t.Helper()
	start := make(chan struct{})
	failed := make([]error, n)
	var calls sync.WaitGroup
	for i := range n {
		calls.Go(func() {
			<-start
			failed[i] = f(t.Context(), i)
		})
	}
	close(start)
	calls.Wait()
	for i, err := range failed {
		if err != nil {
			t.Errorf("call %d of %d: %v", i, n, err)
		}
	}
}

// BreakSparesOtherTables requires that clients with the parameters of others, which lock the same name in other ways,
// neither hide the holder of a name from a break, nor are broken by it.
func BreakSparesOtherTables(t *testing.T, d *Database, params, others string) {
	database := d.Create(t)
	d.Exec(t, database, "CREATE TABLE own (name VARCHAR(100) PRIMARY KEY)")
	a, b := d.Store(t, database, params), d.Store(t, database, others)
	recorded, _ := Must(t, a, "x", driver.Exclusive, time.Minute)
	Shown(t, a, recorded)
	young, lost := Must(t, b, "x", driver.Exclusive, time.Minute)
	if err := b.Break(t.Context(), "x", young.Token); err != nil {
		t.Errorf("breaking the holder of %s: %v", others, err)
	}
	lost.AwaitLoss(t)
	Release(t, a, recorded)
}
