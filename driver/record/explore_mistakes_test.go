//go:build !race

package record

import (
	"testing"

	"github.com/holdfast-go/holdfast/internal/explore"
	plant "github.com/holdfast-go/holdfast/internal/mutation"
)

// mistakes are mistakes in the engine. The exploration must find each of them.
var mistakes = []struct {
	Name   string
	Plants plant.Plants
	In     string // a part of the name of the exploration that finds it
	Deeper int    // than the usual exploration
}{
	{"a grant ends early", plant.Plants{
		"record-live": plant.With("h.Expires", "h.Expires-20e6"),
	}, "batch,_free", 0},
	{"a grant has no allowance for a coarse clock", plant.Plants{
		"record-skew": plant.With("skew)", "skew-skew)"),
	}, "batch,_coarse", 0},
	{"a grant lasts from a read of an old time", plant.Plants{
		"record-written": plant.Is("_ = h"),
	}, "storage,_late", 0},
	{"one permit too many", plant.Plants{"record-admits": plant.With("<", "<=")}, "storage,_late", 0},
	{"a release forgets the other holders", plant.Plants{"record-alone": plant.With("len(c.Holders) == 1", "true")}, "storage,_late", 0},
	{"a release forgets a token that was undone", plant.Plants{
		"record-alone": plant.With("uint64(c.Token) == token", "true"),
	}, "storage,_late_clock,_semaphore,_released", 0},
	{"a token is used twice", plant.Plants{
		"record-draw": plant.With("v.last+1", "v.last"),
	}, "storage,_free", 0},
	{"the record forgets its last token", plant.Plants{
		"record-token": plant.With("max(v.last, p.token)", "p.token"),
	}, "batch,_held", 0},
	{"the token of a removed record is forgotten", plant.Plants{
		"record-floor": plant.With("max(v.Token, int64(o.Floor))", "v.Token"),
	}, "batch,_released", 0},
	{"a renewal may be written after the end", plant.Plants{
		"record-deadline": plant.With("next.before > 0", "next.before < 0"),
	}, "batch,_held", 1},
	{"an undo trusts the first read", plant.Plants{
		"record-undo": plant.With("!first", "(first || !first)"),
	}, "storage,_released", 0},
	{"a release leaves an expired grant to a late renewal", plant.Plants{
		"record-release-expired": plant.Is("return nil, nil"),
		"record-swap-expired":    plant.Is("return nil, nil"),
	}, "storage,_held", 0},
	{"a kept name is free", plant.Plants{
		"record-keep": plant.With("v.now+lasts, lasts", "v.now, lasts"),
	}, "storage,_coarse", 0},
	{"a kept name is still held", plant.Plants{
		"record-keep": plant.With("n.Left, n.Expires, n.TTL = true", "n.Left, n.Expires, n.TTL = false"),
	}, "storage,_coarse", 0},
	{"any write confirms a renewal", plant.Plants{
		"record-renewed": plant.With(" && h.Expires == from.now+lasts", ""),
	}, "storage,_late_clock,_semaphore,_renewed", 0},
	{"a renewal is shorter than it is reported", plant.Plants{
		"record-renew": plant.With("v.now+lasts, lasts", "v.now+lasts/2, lasts"), "record-renewed": plant.With("lasts", "lasts/2"),
	}, "storage,_held", 0},
	{"a swap keeps the grant that it releases", plant.Plants{
		"record-swap": plant.Is(""),
	}, "storage,_held", 0},
	{"a clock that was set back keeps a name forever", plant.Plants{
		"record-ahead": plant.Is("return nil, &driver.BusyError{}"),
	}, "batch,_clock", 0},
}

func TestExplorationOfARecordFindsMistakes(t *testing.T) {
	marks := explore.Marks(t, "driver")
	for _, m := range mistakes {
		explore.Find(t, m, marks, "github.com/holdfast-go/holdfast/driver/record",
			"TestEveryInterleavingOfARecordKeepsTheInvariants")
	}
}
