//go:build linux || darwin

package check

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/anishathalye/porcupine"
)

// TestModelsFindEveryOrder makes small histories at random. It requires that judgeLockModel convicts those, and only
// those, for which porcupine finds no order among all that there are. The same holds for judgeUpdates.
func TestModelsFindEveryOrder(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	count := map[string]int{}
	for i := range 20000 {
		grants := randomGrants(rng)
		r := &Report{}
		(&collected{}).judgeLockModel(r, &nameHistory{name: "a", sections: grants})
		legal := porcupine.CheckOperations(lockModel, lockOperations(grants))
		if legal != r.OK() {
			t.Fatalf("history %d of a lock: an order exists: %v%s", i, legal, explain(r))
		}
		updates := randomUpdates(rng)
		r = &Report{}
		judgeRegister(r, "r", updates)
		first := slices.MinFunc(updates, func(a, b *work) int { return int(a.value - b.value) }).value
		ordered := porcupine.CheckOperations(registerModel(first), registerOperations(updates))
		if ordered != r.OK() {
			t.Fatalf("history %d of a register: an order exists: %v%s", i, ordered, explain(r))
		}
		for kind, ok := range map[string]bool{"lock": legal, "register": ordered} {
			if ok {
				count[kind]++
			}
		}
	}
	for kind, n := range count {
		if n < 2000 || n > 18000 {
			t.Errorf("%d of 20,000 histories of a %s have an order, want 2,000 to 18,000", n, kind)
		}
	}
}

// randomGrants returns up to five grants of one name with random times, limits and tokens.
func randomGrants(rng *rand.Rand) (all []*section) {
	limits := [][]int{{1}, {1, 2}, {1, 3, 3}}[rng.IntN(3)]
	for i := range 2 + rng.IntN(4) {
		s := &section{name: "a", worker: "w", token: uint64(1 + i), limit: limits[rng.IntN(len(limits))], until: forever}
		s.requested = 1 + int64(4*i) + rng.Int64N(12)
		s.granted = s.requested + rng.Int64N(12)
		s.unlock = s.granted + rng.Int64N(6)
		all = append(all, s)
	}
	switch rng.IntN(16) {
	case 0:
		all[0].token = all[1].token
	case 1:
		all[0].token = 0
	}
	rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all
}

// randomUpdates returns up to six updates of one register with random times and values; some are pending.
func randomUpdates(rng *rand.Rand) (all []*work) {
	for i := range 2 + rng.IntN(5) {
		w := &work{worker: "w", token: 1, guarded: true, read: 1, value: int64(i), outcome: kindWrote}
		if rng.IntN(12) == 0 {
			w.value += rng.Int64N(3) - 1
		}
		w.begin = 1 + int64(4*i) + rng.Int64N(8)
		w.end = w.begin + rng.Int64N(8)
		if rng.IntN(4) == 0 {
			w.outcome, w.end = "", 0
		}
		all = append(all, w)
	}
	rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all
}

// step is one operation of lockModel: a grant, or the end of one.
type step struct {
	s   *section
	end bool
}

// lockState is the state of the sequential lock: its holders and the last token.
type lockState struct {
	last    uint64
	holders []*section
}

var lockModel = porcupine.Model{
	Init: func() any { return lockState{} },
	Step: func(state, input, _ any) (bool, any) {
		was, in := state.(lockState), input.(step)
		if in.end {
			i := slices.Index(was.holders, in.s)
			return i >= 0, lockState{was.last, slices.DeleteFunc(slices.Clone(was.holders), func(s *section) bool { return s == in.s })}
		}
		with := append(slices.Clone(was.holders), in.s)
		return in.s.token > was.last && len(with) <= strictest(with), lockState{in.s.token, with}
	},
	Equal: func(a, b any) bool {
		x, y := a.(lockState), b.(lockState)
		return x.last == y.last && slices.Equal(x.holders, y.holders)
	},
}

func lockOperations(all []*section) (ops []porcupine.Operation) {
	for _, s := range all {
		end := s.end()
		if end == s.granted {
			end = s.requested
		}
		ops = append(ops, porcupine.Operation{Input: step{s, false}, Call: s.requested, Return: s.granted},
			porcupine.Operation{Input: step{s, true}, Call: end, Return: s.end()})
	}
	return ops
}

func registerModel(initial int64) porcupine.Model {
	return porcupine.Model{
		Init: func() any { return initial },
		Step: func(state, input, _ any) (bool, any) {
			value, w := state.(int64), input.(*work)
			if value == w.value {
				return true, value + 1
			}
			return w.pending(), value
		},
	}
}

func registerOperations(all []*work) (ops []porcupine.Operation) {
	for _, w := range all {
		ops = append(ops, porcupine.Operation{Input: w, Call: w.begin, Return: w.written()})
	}
	return ops
}
