package redis

import (
	"strconv"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/servers"
	"github.com/holdfast-go/holdfast/redisstore/layouts"
)

// executed returns how many executions of a command have succeeded at the server.
func executed(t *testing.T, r *servers.Redis, command string) (n int) {
	t.Helper()
	info, err := r.Info(t.Context(), "commandstats")
	check(t, err)
	field := map[string]int{}
	for part := range strings.SplitSeq(info["cmdstat_"+command], ",") {
		k, v, _ := strings.Cut(part, "=")
		field[k], _ = strconv.Atoi(v)
	}
	return field["calls"] - field["failed_calls"]
}

// answers reports whether the server executes a command.
func answers(t *testing.T, r *servers.Redis, args ...string) bool {
	_, err := r.Do(t.Context(), args...)
	return err == nil
}

// TestPlainUsesConditionalCommands renews and releases locks of the layout plain. The store uses the
// commands that compare a string, if the server has them and the user has the right to them. Otherwise
// it uses scripts. The server may also have no free memory, and refuse SET.
func TestPlainUsesConditionalCommands(t *testing.T) {
	r := start(t)
	deletes, sets := "", answers(t, r, "SET", "probe", "1", "IFEQ", "1")
	for _, command := range [][]string{{"DELEX", "probe", "IFEQ", "1"}, {"DELIFEQ", "probe", "1"}} {
		if deletes == "" && answers(t, r, command...) {
			deletes = strings.ToLower(command[0])
		}
	}
	t.Logf("the server has SET with IFEQ: %t; it has %q", sets, deletes)
	restrict(t, []*servers.Redis{r}, layoutRights...)
	do(t, r, "ACL", "SETUSER", "app", "~*", "&*")
	for _, of := range []struct {
		name string
		s    *layouts.Store
		may  bool
	}{
		{"with all rights", openLayout(t, "redis://"+r.Address(), layouts.Plain), true},
		{"without the right", openLayout(t, "redis://app:app-secret@"+r.Address(), layouts.Plain), false},
	} {
		t.Run(of.name, func(t *testing.T) {
			other := openLayout(t, "redis://"+r.Address(), layouts.Plain)
			pair := func(full bool) {
				t.Helper()
				one, two := must(t, of.s, request("one", driver.Exclusive, long)), must(t, of.s, request("two", driver.Exclusive, long))
				var w *waiter
				if full {
					do(t, r, "CONFIG", "SET", "maxmemory", "1")
				} else {
					w = queue(t, other, request("one", driver.Exclusive, long))
				}
				do(t, r, "PEXPIRE", "two", "5000")
				for i, a := range of.s.Renew(t.Context(), []driver.Grant{one, two}) {
					if a.Err != nil {
						t.Errorf("renewing grant %d: %v", i, a.Err)
					}
				}
				if left := do(t, r, "PTTL", "two").(int64); left <= 5000 {
					t.Errorf("after a renewal the lease is %d ms", left)
				}
				for _, g := range []driver.Grant{one, two} {
					if err := of.s.Release(t.Context(), g, 0); err != nil {
						t.Errorf("releasing: %v", err)
					}
				}
				do(t, r, "CONFIG", "SET", "maxmemory", "0")
				if w != nil {
					release(t, other, w.Granted())
				}
				for _, g := range []driver.Grant{one, two} {
					code(t, of.s, of.s.Release(t.Context(), g, 0), driver.CodeNotHeld)
				}
				// Another client replaces the first grant, and an operator breaks the second.
				one, two = must(t, of.s, request("one", driver.Exclusive, long)), must(t, of.s, request("two", driver.Exclusive, long))
				do(t, r, "SET", "one", "another client's")
				check(t, other.Break(t.Context(), "two", two.Token))
				for i, want := range []driver.Cause{driver.CauseGone, driver.CauseTaken} {
					g := []driver.Grant{one, two}[i]
					if a := of.s.Renew(t.Context(), []driver.Grant{g})[0]; driver.CodeOf(a.Err) != driver.CodeNotHeld || a.Cause != want {
						t.Errorf("renewing a lost grant: %+v, want the cause %s", a, want)
					}
					code(t, of.s, of.s.Release(t.Context(), g, 0), driver.CodeNotHeld)
				}
				if got := do(t, r, "GET", "one"); got != "another client's" {
					t.Errorf("the other client's lock is now %v", got)
				}
				do(t, r, "DEL", "one")
			}
			pair(false) // the first requests find the commands that the server has
			one := must(t, of.s, request("x", driver.Exclusive, long))
			set := executed(t, r, "set")
			if a := of.s.Renew(t.Context(), []driver.Grant{one})[0]; a.Err != nil {
				t.Error(a.Err)
			}
			renewed := executed(t, r, "set") - set // a renewal by the script uses PEXPIRE instead
			deleted := 0
			if deletes != "" {
				deleted = executed(t, r, deletes)
			}
			if err := of.s.Release(t.Context(), one, 0); err != nil {
				t.Error(err)
			}
			// Both users have the right to SET, which every layout needs.
			if sets != (renewed == 1) {
				t.Errorf("SET has renewed %d of 1; the server has it with IFEQ: %t", renewed, sets)
			}
			if deletes != "" {
				if by := executed(t, r, deletes) - deleted; of.may != (by == 1) {
					t.Errorf("%s has released %d of 1, allowed %t", deletes, by, of.may)
				}
			}
			pair(true)
		})
	}
}
