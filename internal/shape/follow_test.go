package shape_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/shape"
)

func heldBy(id string, token uint64, note string) driver.Holder {
	return driver.Holder{Owner: driver.Owner{ID: id, Host: "h", PID: 1, Reason: id}, Token: token, Limit: 1, Slot: driver.NoSlot, TTL: time.Second, Note: note}
}

func waiter(id string) driver.Waiter {
	return driver.Waiter{Owner: driver.Owner{ID: id, Host: "h", PID: 2, Reason: id}, Limit: 1}
}

func state(name string, holders []driver.Holder, waiters ...driver.Waiter) driver.State {
	return driver.State{Name: name, Holders: holders, Waiters: waiters}
}

func unreadable(name, why string) driver.State {
	return driver.State{Name: name, Err: errors.New(why)}
}

type holders = []driver.Holder

// TestNextReportsEveryChange requires that Next reports every difference between two states.
func TestNextReportsEveryChange(t *testing.T) {
	var f shape.Follower
	for i, step := range []struct {
		states []driver.State
		want   []string
	}{
		{[]driver.State{state("b", holders{heldBy("x", 1, "")}, waiter("y"), waiter("z")), state("a", nil, waiter("q")), state("free", nil)},
			[]string{"a waiting q", "b held x", "b waiting y", "b waiting z", "free free "}},
		{[]driver.State{state("b", holders{heldBy("x", 1, "")}, waiter("y"), waiter("z")), state("a", nil, waiter("q")), state("free", nil)}, nil},
		{[]driver.State{state("b", holders{heldBy("x", 1, "stopped")}, waiter("y"), waiter("z")), state("a", nil)},
			[]string{"a left q", "b noted x"}},
		{[]driver.State{state("b", holders{heldBy("y", 2, "")}, waiter("z"), waiter("r"))},
			[]string{"b released x", "b granted y", "b waiting r"}},
		// The same ID with another token is another grant.
		{[]driver.State{state("b", holders{heldBy("y", 3, "")}, waiter("r"))},
			[]string{"b released y", "b left z", "b granted y"}},
		{[]driver.State{state("c", holders{heldBy("s", 1, ""), heldBy("t", 2, "")})},
			[]string{"b released y", "b left r", "c granted s", "c granted t"}},
		// A broken record shows no holder. The holders of before have not been released.
		{[]driver.State{unreadable("c", "x"), unreadable("d", "x")}, []string{"c broken x", "d broken x"}},
		{[]driver.State{unreadable("c", "x"), unreadable("d", "y")}, []string{"d broken y"}},
		{[]driver.State{state("c", holders{heldBy("t", 2, "")})}, []string{"c released s"}},
		{nil, []string{"c released t"}},
		{nil, nil},
	} {
		var got []string
		for _, e := range f.Next(step.states, time.Unix(0, 0)) {
			id := e.Error
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
