package sqltest

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// ManyNamesAreRenewed requires that a client renews grants of many names although another program has
// locked a row, or an answer is lost. It requires the same while other clients renew grants of these
// names.
func ManyNamesAreRenewed(t *testing.T, d *Database) {
	const names = 8
	database := d.Create(t)
	db := d.Pool(t, database)
	s, proxy := d.proxied(t, database, "recipe=optimistic")
	defer Close(t, s)
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
		if err := db.QueryRow(fmt.Sprintf(query, args...)).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	t.Run("a locked row", func(t *testing.T) {
		before := number(t, "SELECT MAX(touched) FROM holdfast_row")
		tx, err := db.Begin()
		if err != nil {
			t.Fatal(err)
		}
		defer tx.Rollback()
		if _, err := tx.Exec("SELECT name FROM holdfast_row ORDER BY name LIMIT 1 FOR UPDATE"); err != nil {
			t.Fatal(err)
		}
		done := make(chan []driver.Renewal, 1)
		go func() { done <- s.Renew(t.Context(), grants) }()
		if !Soon(func() bool {
			return number(t, "SELECT COUNT(*) FROM holdfast_row WHERE touched > %d", before) == names-1
		}) {
			t.Error("rows that no other program has locked are not renewed")
		}
		if err := tx.Rollback(); err != nil {
			t.Fatal(err)
		}
		renewed(t, s, grants, <-done)
	})
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
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = tx.Rollback() })
			for _, i := range rows {
				var name []byte
				if err := tx.QueryRow("SELECT name FROM holdfast_row WHERE name = "+d.Parameter+" FOR UPDATE", []byte("\x00"+grants[i].Name)).Scan(&name); err != nil {
					t.Fatal(err)
				}
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
		if err := brief.Rollback(); err != nil {
			t.Fatal(err)
		}
		if !Soon(func() bool { return untouched() == locked }) {
			t.Error("a row that is free again is not renewed beside rows that are locked")
		}
		if err := long.Rollback(); err != nil {
			t.Fatal(err)
		}
		renewed(t, s, grants, <-done)
	})
	t.Run("a lost answer", func(t *testing.T) {
		for after := range 3 {
			if err := proxy.LoseAnswer(after); err != nil {
				t.Fatal(err)
			}
			renewed(t, s, grants, s.Renew(t.Context(), grants))
			if err := proxy.Heal(); err != nil {
				t.Fatal(err)
			}
		}
	})
	t.Run("beside others", func(t *testing.T) {
		other := d.Store(t, database, "recipe=optimistic")
		defer Close(t, other)
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

// OneWriteRenewsManyPermits requires that one write renews hundreds of permits of one name.
func OneWriteRenewsManyPermits(t *testing.T, d *Database) {
	const permits = 600
	database := d.Create(t)
	s := d.Store(t, database, "recipe=optimistic")
	defer Close(t, s)
	first, _ := Must(t, s, "permits", permits, time.Hour)
	db := d.Pool(t, database)
	// The other permits are copies of the first one, which the test writes into the row: to
	// acquire them one by one would take long.
	var state string
	if err := db.QueryRow("SELECT state FROM holdfast_row").Scan(&state); err != nil {
		t.Fatal(err)
	}
	var content struct {
		Holders []map[string]any `json:"holders"`
	}
	decoder := json.NewDecoder(strings.NewReader(state))
	decoder.UseNumber()
	if err := decoder.Decode(&content); err != nil || len(content.Holders) != 1 {
		t.Fatalf("the state %s: %v", state, err)
	}
	grants := []driver.Grant{first}
	for i := 1; i < permits; i++ {
		g := first
		g.ID, g.Slot, g.Token = fmt.Sprintf("%s-%d", first.ID, i), i, first.Token+uint64(i)
		h := maps.Clone(content.Holders[0])
		h["id"], h["slot"], h["token"] = g.ID, g.Slot, g.Token
		grants, content.Holders = append(grants, g), append(content.Holders, h)
	}
	filled, err := json.Marshal(content)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := db.Exec(fmt.Sprintf("UPDATE holdfast_row SET version = version + 1, token = %d, state = '%s'", grants[permits-1].Token, filled)); err != nil {
		t.Fatal(err)
	}
	version := func() (n int64) {
		t.Helper()
		if err := db.QueryRow("SELECT version FROM holdfast_row").Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	before := version()
	for i, a := range s.Renew(t.Context(), grants) {
		if a.Err != nil || a.TTL != grants[i].TTL {
			t.Fatalf("answer %d: %+v", i, a)
		}
	}
	if writes := version() - before; writes != 1 {
		t.Errorf("%d writes renewed %d permits, want 1", writes, permits)
	}
	Busy(t, s, "permits", permits)
	Release(t, s, grants[permits/2])
	again, _ := Must(t, s, "permits", permits, time.Hour)
	Release(t, s, again)
}
