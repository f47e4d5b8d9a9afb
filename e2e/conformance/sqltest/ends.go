package sqltest

import (
	"fmt"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/e2e/conformance/requests"
)

// crashFreesAtOnce requires that the server ends the connections of a crashed client, and grants
// its lock to a waiter long before the TTL has passed.
func crashFreesAtOnce(t *testing.T, d *Database) {
	d.Each(t, d.Sessions, func(t *testing.T, params, database string) {
		s, proxy := d.proxied(t, database, params)
		other := d.Store(t, database, params)
		g, _ := Must(t, s, "crash", driver.Exclusive, time.Hour)
		waiter := Wait(t, t.Context(), other, "crash", driver.Exclusive)
		proxy.Close()
		next := waiter.Granted()
		requests.Rises(t, g, next)
		Release(t, other, next)
	})
}

// breakEndsYoungGrant requires that a break ends a grant that inspections do not show yet.
func breakEndsYoungGrant(t *testing.T, d *Database) {
	d.Each(t, d.Sessions, func(t *testing.T, params, database string) {
		s, other := d.Store(t, database, params), d.Store(t, database, params)
		for _, limit := range []int{driver.Exclusive, driver.Unlimited} {
			if params == "recipe=named" && limit != driver.Exclusive {
				continue
			}
			g, a := Must(t, s, "young", limit, time.Minute)
			if err := other.Break(t.Context(), "young", g.Token); err != nil {
				t.Errorf("limit %d: Break: %v", limit, err)
			}
			a.AwaitLoss(t)
		}
	})
}

// moveDeadlines moves the expiry times of all grants in the only row.
func (d *Database) moveDeadlines(t testing.TB, database string, grants int, by time.Duration) {
	t.Helper()
	db := d.Pool(t, database)
	var state string
	check(t, db.QueryRow("SELECT state FROM holdfast_row").Scan(&state))
	changed := 0
	later := regexp.MustCompile(`"expires":[0-9]+`).ReplaceAllStringFunc(state, func(s string) string {
		n, err := strconv.ParseInt(s[len(`"expires":`):], 10, 64)
		check(t, err)
		changed++
		return fmt.Sprintf(`"expires":%d`, n+by.Microseconds())
	})
	if changed != grants {
		t.Fatalf("%d grants in %s", changed, state)
	}
	d.Exec(t, database, fmt.Sprintf("UPDATE holdfast_row SET version = version + 1, expires = expires + %d, state = '%s'", by.Microseconds(), later))
}
