package sqltest

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// LeftSettingsKeepLocksExact requires that a store on a caller's pool, which open opens, excludes the store plain, and is
// excluded by it, or that it is refused and leaves nothing. Other code leaves a setting in the sessions of the pool.
// refused are the recipes that are refused.
func LeftSettingsKeepLocksExact(t *testing.T, plain Store, name, recipe string, refused []string, open func() (Store, error)) {
	held, kept := Must(t, plain, name, driver.Exclusive, time.Minute)
	other, err := open()
	if err == nil {
		t.Cleanup(func() { Close(t, other) })
	}
	if slices.Contains(refused, recipe) {
		for _, name := range []string{name, name + " free"} {
			r, _ := Request(name, driver.Exclusive, time.Minute)
			if other != nil {
				_, err = other.Acquire(t.Context(), r)
			}
			if code := driver.CodeOf(err); code != driver.CodeRefused && (code != driver.CodeBusy || r.Name != held.Name) {
				t.Fatalf("%s: %v; want refused", name, err)
			}
		}
		next, _ := Must(t, plain, name+" free", driver.Exclusive, time.Minute)
		Release(t, plain, next)
		Release(t, plain, held)
		return
	}
	check(t, err)
	Busy(t, other, name, driver.Exclusive)
	if recipe != "optimistic" { // whose requests do not wait at the server
		cancelWait(t, other, name)
	}
	var st driver.State
	if !Soon(func() bool { // a role may not see whose session it is
		st, err = other.Inspect(t.Context(), name)
		return err == nil && len(st.Holders) == 1
	}) {
		t.Errorf("Inspect: %+v, %v; want the holder", st, err)
	}
	check(t, plain.Renew(t.Context(), []driver.Grant{held})[0].Err)
	kept.Keeps(t)
	Release(t, plain, held)
	last := held.Token
	for range 2 {
		g, kept := Must(t, other, name, driver.Exclusive, time.Minute)
		second, _ := Must(t, other, name+" second", driver.Exclusive, time.Minute)
		if g.Token <= last || time.Since(time.UnixMicro(int64(g.Token))).Abs() > time.Minute {
			t.Errorf("token %d after %d", g.Token, last)
		}
		Busy(t, plain, name, driver.Exclusive)
		for _, r := range other.Renew(t.Context(), []driver.Grant{g, second}) {
			check(t, r.Err)
		}
		kept.Keeps(t)
		Release(t, other, g)
		Release(t, other, second)
		last = g.Token
	}
	key := fmt.Sprint(name, recipe)
	version, err := other.Put(t.Context(), key, []byte(`\'`), "")
	if len(refused) > 0 {
		if driver.CodeOf(err) != driver.CodeRefused {
			t.Errorf("Put: %v; want refused", err)
		}
		return
	}
	check(t, err)
	if data, seen, err := plain.Get(t.Context(), key); err != nil || seen != version || string(data) != `\'` {
		t.Errorf("Get: %q, version %q, %v; want version %q", data, seen, err, version)
	}
}
