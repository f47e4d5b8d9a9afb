package sqltest

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/e2e/conformance/requests"
)

// Rights are the documented rights for a store's parameters, such as "UPDATE ON holdfast_row".
type Rights struct {
	Params string
	Rights []string
	// Unnoticed are the rights without which every call still succeeds.
	Unnoticed []string
}

// EachRight requires that a user with exactly the documented rights can make every call. Without one of the
// rights, the server refuses a call that needs it. Even then the store grants no lock beside another holder.
// A refused request leaves nothing, and a holder keeps its lock. The statements create a user USER_NAME, and
// grant and revoke a RIGHT of DATABASE.
func EachRight(t *testing.T, d *Database, create, give, take string, all ...Rights) {
	for _, of := range all {
		t.Run(of.Params, func(t *testing.T) {
			database := d.Create(t)
			user := "user_" + database
			exec := func(t *testing.T, statement, right string) {
				t.Helper()
				verb, table, _ := strings.Cut(right, " ON ")
				d.Exec(t, database, strings.NewReplacer("USER_NAME", user, "RIGHT", verb, "DATABASE", database, "TABLE", table).Replace(statement))
			}
			exec(t, create, "")
			for _, right := range of.Rights {
				exec(t, give, right)
			}
			admin := d.Store(t, database, of.Params)
			run := func(t *testing.T, n int) (refused []string) {
				s, err := d.Open(t.Context(), as(user, d.URL(d.Server(t).Address, database, of.Params)), "")
				if err != nil {
					if driver.CodeOf(err) != driver.CodeRefused {
						t.Fatalf("Open: %v; want refused", err)
					}
					return []string{"Open"}
				}
				defer Close(t, s)
				return calls(t, s, admin, fmt.Sprint("name-", n))
			}
			if refused := run(t, 0); len(refused) > 0 {
				t.Fatalf("with every documented right, these calls are refused: %q", refused)
			}
			for i, right := range of.Rights {
				t.Run(right, func(t *testing.T) {
					exec(t, take, right)
					refused := run(t, i+1)
					exec(t, give, right)
					if needed := !slices.Contains(of.Unnoticed, right); needed != (len(refused) > 0) {
						t.Errorf("without the right, these calls are refused: %q", refused)
					}
				})
			}
		})
	}
}

// calls makes every call of store s, and returns the calls that the server refuses. The store admin has all
// rights, and holds locks that s requests.
func calls(t *testing.T, s, admin Store, name string) (refused []string) {
	g, err := admin.Guarantees(t.Context())
	check(t, err)
	// call reports whether a call succeeded.
	call := func(what string, err error) bool {
		t.Helper()
		if err == nil {
			return true
		}
		if code := s.Classify(err); code != driver.CodeRefused && code != driver.CodeUnavailable {
			t.Errorf("%s: %v (%s); want refused", what, err, code)
		}
		refused = append(refused, what)
		t.Logf("%s: %v", what, err)
		return false
	}
	limits := []int{driver.Exclusive}
	if g.Shared {
		limits = append(limits, driver.Unlimited)
	}
	if g.Semaphore {
		limits = append(limits, 3)
	}
	for _, limit := range limits {
		for _, known := range []bool{false, true} { // whether the name has a row
			what, name := fmt.Sprintf("limit %d, known %t", limit, known), fmt.Sprint(name, "-", limit, "-", known)
			if known {
				first, _ := Must(t, admin, name, limit, time.Minute)
				Release(t, admin, first)
			}
			r, a := Request(name, limit, time.Minute)
			held, err := s.Acquire(t.Context(), r)
			if !call("Acquire, "+what, err) {
				freed(t, admin, name)
				continue
			}
			Busy(t, admin, name, driver.Exclusive)
			if call("Renew, "+what, s.Renew(t.Context(), []driver.Grant{held})[0].Err) && limit == driver.Exclusive && !known {
				_, err = s.Inspect(t.Context(), name)
				call("Inspect, "+what, err)
				for _, err := range s.List(t.Context(), name) {
					call("List, "+what, err)
				}
			}
			a.Keeps(t)
			if !call("Release, "+what, s.Release(t.Context(), held, 0)) || limit != driver.Exclusive || known {
				continue
			}
			theirs, _ := Must(t, admin, name, driver.Exclusive, time.Minute)
			r, _ = Request(name, driver.Exclusive, time.Minute)
			if g.Wake == driver.WakePush {
				w := requests.Queue(t, s, r)
				Release(t, admin, theirs)
				Release(t, s, w.Granted())
			} else if _, err := s.Acquire(t.Context(), r); s.Classify(err) != driver.CodeBusy {
				t.Errorf("%s: Acquire of a held lock: %v; want busy", what, err)
			} else {
				Release(t, admin, theirs)
			}
			broken, a := Must(t, s, name, driver.Exclusive, time.Minute)
			if call("Break, "+what, s.Break(t.Context(), name, broken.Token)) {
				a.AwaitLoss(t)
			} else {
				Release(t, s, broken)
			}
			r, _ = Request(name, driver.Exclusive, time.Minute)
			_, err = s.Acquire(t.Context(), r)
			if call("Acquire, "+what, err) && call("Undo, "+what, s.Undo(t.Context(), r)) {
				freed(t, admin, name)
			}
		}
	}
	call("Sweep", s.Sweep(t.Context(), 0))
	return refused
}
