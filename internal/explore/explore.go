// Package explore visits the states that a model reaches, the nearest ones first, and finds the shortest way to a
// state that breaks an invariant. It also runs real code one request at a time, so that a model can decide what
// each request does.
package explore

import (
	"testing"
	"time"
)

// Depth returns the depth of a search: one action less in short tests, because most of the states are at the last one.
func Depth(depth, deeper int) int {
	if testing.Short() {
		depth--
	}
	return depth + deeper
}

// Model is a model with states W and actions A.
type Model[W, A any] interface {
	// Do carries out an action. It reports whether the action was possible; if not, w is unchanged.
	Do(w *W, a A) bool
	// Broken returns the invariant that the last action or its state breaks, "" if there is none.
	Broken(w *W) string
	// Hash returns a number that equal states have in common.
	Hash(w *W) uint64
	// Quiet reports whether nothing waits and nothing is left.
	Quiet(w *W) bool
}

// Search is an exploration.
type Search[W, A any] struct {
	Model Model[W, A]
	// Actions are tried in every state. The first Calm of them are no faults: from every Nth state the search goes
	// on with the first of them that is possible, until a state is quiet. The Model of that is Settles.
	Actions []A
	Calm    int
	Settles Model[W, A]
	Nth     int
}

// Found is the outcome of a search.
type Found[A any] struct {
	States, Depth int
	Broken        string // "" if each state keeps the invariants
	Path          []A    // the actions that break it
	Took          time.Duration
}

// Run visits the states that up to depth actions reach from start. It stops at the first that breaks an invariant.
func (s *Search[W, A]) Run(start W, depth int) (f Found[A]) {
	began := time.Now()
	defer func() { f.Took = time.Since(began).Round(time.Millisecond) }()
	type step struct {
		from, act int32
	}
	type state struct {
		w  W
		at int32
	}
	seen := map[uint64]struct{}{}
	steps := []step{{-1, -1}}
	layer := []state{{start, 0}}
	for ; f.Depth < depth && len(layer) > 0; f.Depth++ {
		var next []state
		for i := range layer {
			w := layer[i].w
			for act, a := range s.Actions {
				if !s.Model.Do(&w, a) {
					continue
				}
				h := s.Model.Hash(&w)
				if _, old := seen[h]; !old {
					seen[h] = struct{}{}
					f.States++
					at := int32(len(steps))
					steps = append(steps, step{layer[i].at, int32(act)})
					f.Broken = s.Model.Broken(&w)
					if f.Broken == "" && f.States%s.Nth == 0 {
						f.Broken = s.settle(w)
					}
					if f.Broken != "" {
						for ; at > 0; at = steps[at].from {
							f.Path = append([]A{s.Actions[steps[at].act]}, f.Path...)
						}
						f.Depth++
						return f
					}
					next = append(next, state{w, at})
				}
				w = layer[i].w
			}
		}
		layer = next
	}
	return f
}

// maxSettle limits the actions on the way to a quiet state.
const maxSettle = 200

func (s *Search[W, A]) settle(w W) string {
	for range maxSettle {
		if s.Settles.Quiet(&w) {
			return ""
		}
		for _, a := range s.Actions[:s.Calm] {
			if s.Settles.Do(&w, a) {
				break
			}
		}
		if broken := s.Settles.Broken(&w); broken != "" {
			return broken
		}
	}
	return "no quiet state is reached: a client waits, or something is left"
}

// Report logs the outcome, and fails the test with the story of what breaks an invariant.
func (f Found[A]) Report(t *testing.T, story func(path []A) string) {
	t.Logf("%d states, depth %d, %s", f.States, f.Depth, f.Took)
	if f.Broken != "" {
		t.Errorf("%s\n%s", f.Broken, story(f.Path))
	}
}

// Ranges returns the actions of the kinds 0 to len(ranges)-1, with each pair of values below those of ranges.
func Ranges[A any](ranges [][2]int8, action func(kind int, a, b int8) A) (all []A) {
	for kind, n := range ranges {
		for a := range n[0] {
			for b := range n[1] {
				all = append(all, action(kind, a, b))
			}
		}
	}
	return all
}

// Script gives code the answers to its requests, and stops it at the request after the last one. So a model runs real
// code again from its beginning, with one answer more, and needs no copy of its variables.
type Script[Request, Answer any] struct {
	answers []Answer
	at      int
	next    *Request
}

type stopped struct{}

// Play runs code until it returns, or asks for more than the answers. It returns the request that has no answer, or nil.
func (s *Script[Request, Answer]) Play(answers []Answer, code func()) (next *Request) {
	*s = Script[Request, Answer]{answers: answers}
	defer func() {
		next = s.next
		if r := recover(); r != nil && r != (stopped{}) {
			panic(r)
		}
	}()
	code()
	return nil
}

// Ask returns the answer to a request of the code. It does not return if there is none.
func (s *Script[Request, Answer]) Ask(r Request) Answer {
	if s.at == len(s.answers) {
		if s.next == nil { // deferred calls may ask, too
			s.next = &r
		}
		panic(stopped{})
	}
	s.at++
	return s.answers[s.at-1]
}

// At returns how many answers the code has got.
func (s *Script[Request, Answer]) At() int { return s.at }
