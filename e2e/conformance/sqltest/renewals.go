package sqltest

import (
	"context"
	"database/sql"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/e2e/conformance/requests"
)

// manyNamesAreRenewed requires that a client renews grants of many names although another program has
// locked rows, or an answer is lost. It requires the same while other clients renew grants of these
// names.
func manyNamesAreRenewed(t *testing.T, d *Database) {
	const names = 8
	database := d.Create(t)
	db := d.Pool(t, database)
	s, proxy := d.proxied(t, database, "recipe=optimistic")
	var grants []driver.Grant
	for i := range names {
		g, _ := Must(t, s, fmt.Sprintf("many-%d", i), driver.Unlimited, time.Hour)
		grants = append(grants, g)
	}
	renewed := func(t *testing.T, s Store, grants []driver.Grant, answers []driver.Renewal) {
		t.Helper()
		for i, a := range answers {
			if a.Err != nil || a.TTL != grants[i].TTL {
				t.Errorf("answer %d: %+v", i, a)
			}
		}
	}
	number := func(t *testing.T, query string, args ...any) (n int64) {
		t.Helper()
		check(t, db.QueryRow(fmt.Sprintf(query, args...)).Scan(&n))
		return n
	}
	t.Run("rows locked for long", func(t *testing.T) {
		const many, locked = 64, 16
		var grants []driver.Grant
		for i := range many {
			g, _ := Must(t, s, fmt.Sprintf("long-%02d", i), driver.Exclusive, time.Hour)
			grants = append(grants, g)
		}
		before := number(t, "SELECT MAX(touched) FROM holdfast_row")
		untouched := func() int64 {
			return number(t, "SELECT COUNT(*) FROM holdfast_row WHERE touched <= %d AND expires > %d", before, before+time.Minute.Microseconds()) - names
		}
		lock := func(rows ...int) *sql.Tx {
			tx, err := db.Begin()
			check(t, err)
			t.Cleanup(func() { _ = tx.Rollback() })
			for _, i := range rows {
				var name []byte
				check(t, tx.QueryRow("SELECT name FROM holdfast_row WHERE name = "+d.Parameter+" FOR UPDATE", []byte("\x00"+grants[i].Name)).Scan(&name))
			}
			return tx
		}
		var every []int
		for i := range locked {
			every = append(every, i*many/locked)
		}
		long, brief := lock(every...), lock(many/2+1)
		done := make(chan []driver.Renewal, 1)
		go func() { done <- s.Renew(t.Context(), grants) }()
		if !Soon(func() bool { return untouched() == locked+1 }) {
			t.Errorf("%d rows are not renewed, want the %d that other programs have locked", untouched(), locked+1)
		}
		check(t, brief.Rollback())
		requests.Eventually(t, "a row that is free again is renewed beside rows that are locked", func() bool { return untouched() == locked })
		check(t, long.Rollback())
		renewed(t, s, grants, <-done)
	})
	t.Run("a lost answer", func(t *testing.T) {
		for after := range 3 {
			check(t, proxy.LoseAnswer(after))
			renewed(t, s, grants, s.Renew(t.Context(), grants))
			check(t, proxy.Heal())
		}
	})
	t.Run("beside others", func(t *testing.T) {
		other := d.Store(t, database, "recipe=optimistic")
		var theirs []driver.Grant
		for _, g := range grants {
			next, _ := Must(t, other, g.Name, driver.Unlimited, time.Hour)
			theirs = append(theirs, next)
		}
		ctx, stop := context.WithCancel(t.Context())
		var changing, renewing sync.WaitGroup
		changing.Go(func() { // changes rows in the opposite order
			for ctx.Err() == nil {
				for i := range theirs {
					r, _ := Request(theirs[len(theirs)-1-i].Name, driver.Unlimited, time.Hour)
					g, err := other.Acquire(t.Context(), r)
					if err == nil {
						err = other.Release(t.Context(), g, 0)
					}
					if err != nil {
						t.Error(err)
						return
					}
				}
			}
		})
		for _, of := range []struct {
			s      Store
			grants []driver.Grant
		}{{s, grants}, {other, theirs}, {other, theirs[:names/2]}} {
			renewing.Go(func() {
				for range 20 {
					renewed(t, of.s, of.grants, of.s.Renew(t.Context(), of.grants))
				}
			})
		}
		renewing.Wait()
		stop()
		changing.Wait()
	})
}
