//go:build !race

package failover

import (
	"testing"

	"github.com/holdfast-go/holdfast/internal/explore"
	plant "github.com/holdfast-go/holdfast/internal/mutation"
)

// mistakes are mistakes in the store and its scripts. The exploration must find each of them.
var mistakes = []explore.Mistake{
	{Name: "a grant is reported before WAIT", Plants: plant.Plants{
		"failover-acked": plant.With("acked <", "acked+1 <"),
	}, In: "acknowledged,_free"},
	{Name: "a confirmation is read from a former primary", Plants: plant.Plants{
		"failover-grant-acked": plant.With("> 0", `> 0 && (len(args) < fastArgs+2 || args[fastArgs+1] == "0")`),
	}, In: "former_primary,_released"},
	{Name: "WAIT counts an earlier write", Plants: plant.Plants{
		"failover-keep-again": plant.Is("do return 'R' end"),
	}, In: "acknowledged,_kept"},
	{Name: "a push is believed without a confirmation", Plants: plant.Plants{
		"failover-provisional": plant.With(" && s.srv.Config.Replicas == 0", ""),
	}, In: "acknowledged,_released"},
	{Name: "a release that keeps the name is not acknowledged", Plants: plant.Plants{
		"failover-keep-acked": plant.With("> 0 {", "> 99 {"),
	}, In: "acknowledged,_held"},
	{Name: "a renewal is not acknowledged", Plants: plant.Plants{
		"failover-renew-acked": plant.With("== 0", ">= 0"),
	}, In: "acknowledged,_held"},
	{Name: "validity begins with the answer of WAIT", Plants: plant.Plants{
		"failover-acked-sent": plant.Is("sent = driver.Now()\nrep, err := s.Read(sc, keys, sent, at, values, err)"),
	}, In: "acknowledged,_free", Deeper: 1},
	{Name: "validity begins with the push", Plants: plant.Plants{
		"failover-push-sent": plant.With("a.tagged", "driver.Now()"),
	}, In: "push,_released"},
	{Name: "a push of an earlier call is believed", Plants: plant.Plants{
		"failover-push-tag": plant.With(" || part[2] != a.tag", ""),
	}, In: "push,_released"},
	{Name: "a push is believed for the requested TTL", Plants: plant.Plants{
		"failover-push-ttl": plant.With("min(", "max("),
	}, In: "push,_held"},
}

func TestExplorationOfAFailoverFindsMistakes(t *testing.T) {
	marks := explore.Marks(t, "redisstore")
	for _, m := range mistakes {
		explore.Find(t, m, marks, "github.com/holdfast-go/holdfast/e2e/conformance/failover",
			"TestEveryInterleavingOfAFailoverKeepsTheInvariants")
	}
}
