package follow_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/follow"
	"github.com/holdfast-go/holdfast/driver"
)

func holder(id string, token uint64, note string) driver.Holder {
	return driver.Holder{Owner: driver.Owner{ID: id, Host: "h", PID: 1, Reason: id}, Token: token, Limit: 1, Slot: driver.NoSlot, TTL: time.Second, Note: note}
}

func waiter(id string) driver.Waiter {
	return driver.Waiter{Owner: driver.Owner{ID: id, Host: "h", PID: 2, Reason: id}, Limit: 1}
}

func state(name string, holders []driver.Holder, waiters ...driver.Waiter) driver.State {
	return driver.State{Name: name, Holders: holders, Waiters: waiters}
}

type holders = []driver.Holder

// TestNextReportsEveryChange requires that Next reports every difference between two states.
func TestNextReportsEveryChange(t *testing.T) {
	var f follow.Follower
	for i, step := range []struct {
		states []driver.State
		want   []string
	}{
		{[]driver.State{state("b", holders{holder("x", 1, "")}, waiter("y"), waiter("z")), state("a", nil, waiter("q")), state("free", nil)},
			[]string{"a waiting q", "b held x", "b waiting y", "b waiting z", "free free "}},
		{[]driver.State{state("b", holders{holder("x", 1, "")}, waiter("y"), waiter("z")), state("a", nil, waiter("q")), state("free", nil)}, nil},
		{[]driver.State{state("b", holders{holder("x", 1, "stopped")}, waiter("y"), waiter("z")), state("a", nil)},
			[]string{"a left q", "b noted x"}},
		{[]driver.State{state("b", holders{holder("y", 2, "")}, waiter("z"), waiter("r"))},
			[]string{"b released x", "b granted y", "b waiting r"}},
		// The same ID with another token is another grant.
		{[]driver.State{state("b", holders{holder("y", 3, "")}, waiter("r"))},
			[]string{"b released y", "b left z", "b granted y"}},
		{[]driver.State{state("c", holders{holder("s", 1, ""), holder("t", 2, "")})},
			[]string{"b released y", "b left r", "c granted s", "c granted t"}},
		{nil, []string{"c released s", "c released t"}},
		{nil, nil},
	} {
		var got []string
		for _, e := range f.Next(step.states, time.Unix(0, 0)) {
			id := ""
			switch {
			case e.Holder != nil:
				id = e.Holder.ID
			case e.Waiter != nil:
				id = e.Waiter.ID
			}
			got = append(got, e.Name+" "+e.Event+" "+id)
		}
		if !slices.Equal(got, step.want) {
			t.Errorf("step %d: %q, want %q", i, got, step.want)
		}
	}
}

// TestLineHasFixedFields requires that a line has the fields that scripts depend on.
func TestLineHasFixedFields(t *testing.T) {
	var f follow.Follower
	var b strings.Builder
	h := holder("x", 1<<62, "end requested, stopped")
	h.Reason, h.Instance = "a\tb", "i"
	events := f.Next([]driver.State{state("n\x1b", holders{h}, waiter("w")), state("free", nil)}, time.Unix(0, 0))
	for _, e := range events {
		if err := e.Line(&b); err != nil {
			t.Fatal(err)
		}
	}
	const at = "1970-01-01T00:00:00.000Z|"
	want := at + "free|free|-|-|-|-|-|-\n" +
		at + `"n\x1b"|held|exclusive|4611686018427387904|h:1|i|"a\tb"|end requested, stopped` + "\n" +
		at + `"n\x1b"|waiting|exclusive|1|h:2|-|w|-` + "\n"
	if got := strings.ReplaceAll(b.String(), "\t", "|"); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}
