package sqltest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/e2e/conformance/requests"
	"github.com/holdfast-go/holdfast/internal/must"
	"github.com/holdfast-go/holdfast/internal/servers"
)

// RenewsOverFewConnections requires that a client renews all its grants although the server accepts
// few connections of its user. The renewal needs more scripts than there are connections. The
// statements create a user USER_NAME with such a limit, and grant it the rights on DATABASE.
func RenewsOverFewConnections(t *testing.T, d *Database, statements ...string) {
	database := d.Create(t)
	for _, q := range statements {
		d.Exec(t, database, strings.NewReplacer("DATABASE", database, "USER_NAME", "few_"+database).Replace(q))
	}
	s := d.OpenURL(t, as("few_"+database, d.URL(d.Server(t).Address, database, "recipe=optimistic")))
	// Once a second the store checks its held grants, and may use all connections for it.
	var grants []driver.Grant
	for tries := 0; len(grants) < 300; tries++ {
		r, _ := Request(fmt.Sprint("few-", len(grants)), driver.Exclusive, time.Hour)
		g, err := s.Acquire(t.Context(), r)
		switch {
		case err == nil:
			grants = append(grants, g)
		case s.Classify(err) != driver.CodeUnavailable || tries >= 3000:
			t.Fatalf("try %d, after %d grants: %v", tries, len(grants), err)
		}
	}
	for range 10 {
		all := true
		for _, r := range s.Renew(t.Context(), grants) {
			if r.Err != nil && s.Classify(r.Err) != driver.CodeUnavailable {
				t.Fatal(r.Err)
			}
			all = all && r.Err == nil
		}
		if all {
			return
		}
	}
	t.Error("none of 10 renewals succeeded for all grants")
}

// LocksLeaveConnectionsToOthers requires that a process which requests more locks than the server accepts
// connections gets them all, one after another, and leaves connections to the server's other users. The server
// accepts 30 connections. A try for a lock that the process holds is busy.
func LocksLeaveConnectionsToOthers(t *testing.T, d *Database, server Server) {
	const locks = 60
	for _, recipe := range d.Sessions {
		t.Run(recipe, func(t *testing.T) {
			s := d.StoreAt(t, server.Address, d.Home, "recipe="+recipe)
			check(t, s.Init(t.Context()))
			l, err := holdfast.New(s)
			check(t, err)
			defer l.Close(context.Background())
			var all sync.WaitGroup
			held := make(chan string, locks)
			end := make(chan struct{})
			for i := range locks {
				all.Go(func() {
					name := fmt.Sprint("many-", i)
					err := l.Do(t.Context(), name, func(context.Context) error {
						held <- name
						<-end
						return nil
					})
					must.Report(t, err)
				})
			}
			name := requests.Receive(t, "the name of a held lock", held)
			// Each of the others' statements has a new connection, while locks are held and requested.
			for range 5 {
				var users sync.WaitGroup
				for range 5 {
					users.Go(func() {
						db := d.PoolAt(t, server.Address, d.Home)
						defer db.Close()
						if _, err := db.ExecContext(t.Context(), "SELECT 1"); err != nil {
							t.Errorf("another user: %v", err)
						}
					})
				}
				users.Wait()
			}
			r, _ := Request("one more", driver.Exclusive, 10*time.Second)
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			if _, err := s.Acquire(ctx, r); err == nil || !strings.Contains(err.Error(), "max_conns") {
				t.Errorf("a request that does not wait: %v; want an error that names max_conns", err)
			}
			_, err = l.Lock(t.Context(), "one more", holdfast.Wait(100*time.Millisecond))
			if !errors.Is(err, holdfast.ErrUnavailable) || errors.Is(err, holdfast.ErrBusy) || !strings.Contains(err.Error(), "max_conns") {
				t.Errorf("a wait that ends: %v; want unavailable, and max_conns", err)
			}
			_, err = l.TryLock(t.Context(), name)
			busy, ok := errors.AsType[*holdfast.BusyError](err)
			if !ok || len(busy.Holders) != 1 || busy.Holders[0].PID != os.Getpid() {
				t.Errorf("a try for a lock that this process holds: %v; want busy", err)
			}
			close(end)
			all.Wait()
		})
	}
}

// refusedPortIsUnavailable requires that a store reports a port that refuses connections at once, and does not
// repeat its attempt until the context ends.
func refusedPortIsUnavailable(t *testing.T, d *Database) {
	port, err := servers.FreePort()
	check(t, err)
	for _, recipe := range d.Recipes {
		t.Run(recipe, func(t *testing.T) {
			s := d.StoreAt(t, fmt.Sprint("127.0.0.1:", port), d.Home, "recipe="+recipe)
			if _, err := s.Guarantees(t.Context()); s.Classify(err) != driver.CodeUnavailable || !errors.Is(err, syscall.ECONNREFUSED) {
				t.Errorf("Guarantees: %v; want unavailable, connection refused", err)
			}
			l, err := holdfast.New(s)
			check(t, err)
			defer l.Close(context.Background())
			if _, err := l.TryLock(t.Context(), "x"); !errors.Is(err, holdfast.ErrUnavailable) || !errors.Is(err, syscall.ECONNREFUSED) {
				t.Errorf("TryLock: %v; want unavailable, connection refused", err)
			}
		})
	}
}
