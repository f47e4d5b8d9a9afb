package sqltest

import (
	"context"
	"testing"

	"github.com/holdfast-go/holdfast/driver/drivertest"
)

// Shared runs the tests that need no text of the database's own. Each has databases of its own, so they run in
// parallel.
func Shared(t *testing.T, d *Database) {
	for _, test := range []struct {
		name string
		run  func(*testing.T, *Database)
	}{
		{"Values", values},
		{"KilledSessionLosesGrant", killedSessionLosesGrant},
		{"SilentHolderLosesLockAfterTTL", silentHolderLosesLockAfterTTL},
		{"RestartEndsSessions", restartEndsSessions},
		{"ConcurrentInsertsGrantInTurn", concurrentInsertsGrantInTurn},
		{"InterruptedWaitGetsNoGrant", interruptedWaitGetsNoGrant},
		{"WritersAreServedInOrder", writersAreServedInOrder},
		{"WaiterLeavesDeadConnection", waiterLeavesDeadConnection},
		{"WaiterNamesPresentHolder", waiterNamesPresentHolder},
		{"DurableTokensRise", durableTokensRise},
		{"TokensOfBothKindsRise", tokensOfBothKindsRise},
		{"FailedTokenWriteLeavesNothingLocked", failedTokenWriteLeavesNothingLocked},
		{"BrokenRowsGrantNothing", brokenRowsGrantNothing},
		{"RowsAreRemoved", rowsAreRemoved},
		{"ManyNamesAreRenewed", manyNamesAreRenewed},
		{"RefusedPortIsUnavailable", refusedPortIsUnavailable},
		{"LeasesExpireAfterClockSetBack", leasesExpireAfterClockSetBack},
		{"CancelledWaitStrandsNothing", cancelledWaitStrandsNothing},
		{"CrashFreesAtOnce", crashFreesAtOnce},
		{"BreakEndsYoungGrant", breakEndsYoungGrant},
		{"FirstPermitsAreGranted", firstPermitsAreGranted},
		{"ManyClientsCreateTables", manyClientsCreateTables},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			test.run(t, d)
		})
	}
}

// values runs the suite of versioned values for every recipe.
func values(t *testing.T, d *Database) {
	d.Each(t, d.Recipes, func(t *testing.T, params, _ string) {
		database := d.Create(t)
		drivertest.RunValues(t, func(t testing.TB, namespace string) Store {
			s, err := d.Open(context.Background(), d.URL(d.Server(t).Address, database, params), namespace)
			check(t, err)
			return s
		})
	})
}
