package sqltest

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/e2e/conformance/requests"
	"github.com/holdfast-go/holdfast/internal/must"
)

// concurrentInsertsGrantInTurn sends concurrent requests for a name without a row. It requires that the
// waiting requests get the lock one after the other, and that none of them returns a busy
// error.
func concurrentInsertsGrantInTurn(t *testing.T, d *Database) {
	d.Each(t, []string{"pessimistic"}, func(t *testing.T, params, database string) {
		const waiters, tries, rounds = 3, 2, 40
		var stores [waiters + tries]Store
		for i := range stores {
			stores[i] = d.Store(t, database, params)
		}
		for round := range rounds {
			name := fmt.Sprintf("race-%d", round)
			AtOnce(t, len(stores), func(ctx context.Context, i int) error {
				r, _ := Request(name, driver.Exclusive, time.Minute)
				r.Wait = i < waiters
				g, err := stores[i].Acquire(ctx, r)
				switch {
				case err == nil:
					return stores[i].Release(ctx, g, 0)
				case r.Wait || stores[i].Classify(err) != driver.CodeBusy:
					return fmt.Errorf("%s, wait %t: %w", name, r.Wait, err)
				}
				return nil
			})
		}
	})
}

// interruptedWaitGetsNoGrant requires that a request gets no grant if another client ends its waiting
// statement, or if the statement exceeds the server's lock timeout.
func interruptedWaitGetsNoGrant(t *testing.T, d *Database) {
	d.Each(t, d.Sessions, func(t *testing.T, params, database string) {
		s := d.Store(t, database, params)
		g, _ := Must(t, s, "interrupted", driver.Exclusive, time.Minute)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		r, _ := Request("interrupted", driver.Exclusive, time.Minute)
		w := requests.QueueWith(t, ctx, s, r)
		db := d.Pool(t, database)
		numbers := d.running(t, db, r.ID)
		if len(numbers) != 1 {
			t.Fatalf("sessions %v run the request", numbers)
		}
		if _, err := db.Exec(fmt.Sprintf(d.Interrupt, numbers[0])); err != nil {
			t.Fatal(err)
		}
		// The request may wait again, or return an unknown outcome.
		Busy(t, s, "interrupted", driver.Exclusive)
		cancel()
		<-w.Done
		if w.Err == nil {
			t.Fatalf("granted while it is held: %+v", w.Grant)
		}
		if s.Classify(w.Err) == driver.CodeUnknown {
			requests.Undone(t, s, r)
		}
		Release(t, s, g)
		next, _ := Must(t, s, "interrupted", driver.Exclusive, time.Minute)
		Release(t, s, next)
	})
	t.Run("optimistic", func(t *testing.T) {
		database := d.Create(t)
		s := d.Store(t, database, "recipe=optimistic&"+d.LockTimeout)
		g, _ := Must(t, s, "interrupted", driver.Exclusive, time.Minute) // the name has a row
		Release(t, s, g)
		tx, err := d.Pool(t, database).Begin()
		check(t, err)
		defer tx.Rollback()
		if _, err := tx.Exec("SELECT * FROM holdfast_row FOR UPDATE"); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second) // for at least one lock timeout
		defer cancel()
		r, _ := Request("interrupted", driver.Exclusive, time.Minute)
		got, err := s.Acquire(ctx, r)
		if err == nil {
			t.Fatalf("granted although the row could not be written: %+v", got)
		}
		check(t, tx.Rollback())
		if s.Classify(err) == driver.CodeUnknown {
			requests.Undone(t, s, r)
		}
		next, _ := Must(t, s, "interrupted", driver.Exclusive, time.Minute)
		Release(t, s, next)
	})
}

// cancelledWaitStrandsNothing requires that a cancelled wait leaves neither a session nor a queue
// entry at the server.
func cancelledWaitStrandsNothing(t *testing.T, d *Database) {
	d.Each(t, d.Sessions, func(t *testing.T, params, database string) {
		s := d.Store(t, database, params)
		g, _ := Must(t, s, "cancel", driver.Exclusive, time.Minute)
		for range 5 {
			cancelWait(t, s, "cancel")
			st, err := s.Inspect(t.Context(), "cancel")
			if err != nil || len(st.Waiters) != 0 {
				t.Errorf("after a cancelled wait: %+v, %v", st, err)
			}
		}
		Release(t, s, g)
		next, _ := Must(t, s, "cancel", driver.Exclusive, time.Minute)
		Release(t, s, next)
	})
}

// cancelWait cancels a request that waits for a lock that is held. It requires that the request ends.
func cancelWait(t *testing.T, s Store, name string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	r, _ := Request(name, driver.Exclusive, time.Minute)
	w := requests.QueueWith(t, ctx, s, r)
	cancel()
	<-w.Done
	if w.Err == nil {
		t.Fatalf("granted while it is held: %+v", w.Grant)
	}
	switch c := s.Classify(w.Err); c {
	case driver.CodeWithdrawn:
	case driver.CodeUnknown: // the server has not confirmed the end in time
		requests.Undone(t, s, r)
	default:
		t.Errorf("a cancelled wait returns %v: %v", c, w.Err)
	}
}

// waiterLeavesDeadConnection lets the connection of a waiter carry nothing any more, while it stays open. It requires
// that the waiter gets the lock over another connection after the holder has released it.
func waiterLeavesDeadConnection(t *testing.T, d *Database) {
	d.Each(t, d.Sessions, func(t *testing.T, params, database string) {
		t.Parallel()
		waiting, proxy := d.proxied(t, database, params)
		holder := d.Store(t, database, params)
		g, _ := Must(t, holder, "dead connection, "+params, driver.Exclusive, time.Minute)
		r, _ := Request("dead connection, "+params, driver.Exclusive, 2*time.Second)
		w := requests.QueueWith(t, t.Context(), waiting, r)
		proxy.Mute()
		released := time.Now()
		Release(t, holder, g)
		for w.Ended() != nil {
			requests.Code(t, waiting, w.Err, driver.CodeUnknown)
			requests.Undone(t, waiting, w.Request)
			r, _ := Request("dead connection, "+params, driver.Exclusive, time.Minute)
			w = requests.Submit(t, waiting, r)
		}
		t.Logf("granted %s after the release", time.Since(released))
		Release(t, waiting, w.Grant)
	})
}

// waiterNamesPresentHolder requires that a waiter reports the next holder as soon as the lock has changed hands.
func waiterNamesPresentHolder(t *testing.T, d *Database) {
	d.Each(t, d.Sessions, func(t *testing.T, params, database string) {
		t.Parallel()
		s := d.Store(t, database, params)
		g, _ := Must(t, s, "present holder, "+params, driver.Exclusive, time.Minute)
		next := Wait(t, t.Context(), s, "present holder, "+params, driver.Exclusive)
		w := Wait(t, t.Context(), s, "present holder, "+params, driver.Exclusive)
		Release(t, s, g)
		g = next.Granted()
		for holders := []driver.Holder(nil); len(holders) != 1 || holders[0].Token != g.Token; {
			holders = requests.Receive(t, "a report of the present holder", requests.Of(w.Request).Waits)
		}
		Release(t, s, g)
		Release(t, s, w.Granted())
	})
}

// ReadersDoNotStarveAWriter requires that a writer gets the lock although readers overlap all the
// time, with each of these recipes.
func ReadersDoNotStarveAWriter(t *testing.T, d *Database, recipes ...string) {
	d.Each(t, recipes, func(t *testing.T, params, database string) {
		s := d.Store(t, database, params)
		overlap(t, s, 4)
	})
}

// overlap takes shared locks without a gap until a writer gets the lock.
func overlap(t *testing.T, s driver.Store, readers int) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	var all sync.WaitGroup
	defer all.Wait()
	defer stop()
	turn := make(chan struct{}, readers)
	for range readers - 1 {
		turn <- struct{}{}
	}
	for range readers {
		all.Go(func() {
			for ctx.Err() == nil {
				r, _ := Request("overlap", driver.Unlimited, time.Minute)
				r.Wait = true
				g, err := s.Acquire(ctx, r)
				if err != nil {
					if s.Classify(err) == driver.CodeUnknown {
						requests.Undone(t, s, r)
					}
					return
				}
				turn <- struct{}{} // another reader starts before this one ends
				<-turn
				must.Report(t, s.Release(context.WithoutCancel(ctx), g, 0))
			}
		})
	}
	writing, cancel := context.WithTimeout(ctx, soon)
	defer cancel()
	r, _ := Request("overlap", driver.Exclusive, time.Minute)
	r.Wait = true
	g, err := s.Acquire(writing, r)
	if err != nil {
		t.Errorf("a writer among readers: %v", err)
		if s.Classify(err) == driver.CodeUnknown {
			requests.Undone(t, s, r)
		}
		return
	}
	Release(t, s, g)
}

// writersAreServedInOrder requires that exclusive waiters get the lock in the order of their
// requests. On PostgreSQL that is so as long as none of them repeats its statement.
func writersAreServedInOrder(t *testing.T, d *Database) {
	d.Each(t, d.Sessions, func(t *testing.T, params, database string) {
		s := d.Store(t, database, params)
		g, _ := Must(t, s, "order", driver.Exclusive, time.Minute)
		began := time.Now()
		var queue []*requests.Waiter
		for range 8 {
			queue = append(queue, Wait(t, t.Context(), s, "order", driver.Exclusive))
		}
		if time.Since(began) > 2*time.Second {
			t.Skip("on this machine the waiters may repeat their statements meanwhile")
		}
		for _, w := range queue {
			Release(t, s, g)
			next := w.Granted()
			requests.Rises(t, g, next)
			g = next
		}
		Release(t, s, g)
	})
}

// firstPermitsAreGranted requires that clients that request the first permits of a name at the same time get
// them, although each of them prepares the rows of the name.
func firstPermitsAreGranted(t *testing.T, d *Database) {
	const params, clients, names = "recipe=pessimistic", 3, 40
	database := d.Create(t)
	stores := make([]Store, clients)
	for i := range stores {
		stores[i] = d.Store(t, database, params)
	}
	for n := range names {
		name := fmt.Sprint("fresh-", n)
		var grants [clients]driver.Grant
		AtOnce(t, clients, func(ctx context.Context, i int) (err error) {
			r, _ := Request(name, clients, time.Minute)
			grants[i], err = stores[i].Acquire(ctx, r)
			return err
		})
		for i, g := range grants {
			if g.Token != 0 {
				Release(t, stores[i], g)
			}
		}
	}
}

// PermitWaitsForOpenInsert requires that a waiter for a permit waits while a transaction of another client, which has
// inserted the row of the name, is open. insert is its statement.
func PermitWaitsForOpenInsert(t *testing.T, d *Database, insert string) {
	database := d.Create(t)
	s := d.Store(t, database, "recipe=pessimistic")
	tx, err := d.Pool(t, database).Begin()
	check(t, err)
	defer tx.Rollback()
	if _, err := tx.Exec(insert); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	if _, err := Wait(t, ctx, s, "fresh", 3).Failed(); s.Classify(err) != driver.CodeWithdrawn {
		t.Errorf("the wait ended with %v; want withdrawn", err)
	}
}
