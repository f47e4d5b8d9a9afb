//go:build linux || darwin

package check

import (
	"testing"

	"github.com/holdfast-go/holdfast/internal/ticks"
)

const tickPeriod = 300 * ms

// tickAt returns the time of day of the nth tick. In these stories the time of day is that of the
// history.
func (s *story) tickAt(n int64) int64 { return 2700*ms + n*tickPeriod }

// replica records that a worker serves the ticks of a schedule.
func (s *story) replica(w string) *story {
	return s.add(Event{K: kindEvery, W: w, Name: "job", Value: s.t + ms, For: tickPeriod})
}

// serve records that w serves the nth tick. At the end of the work s.t is 10 ms after the tick.
func (s *story) serve(w string, n int64) *story {
	s.begin(w, n)
	return s.add(Event{K: kindTicked, W: w, Name: "job", Value: s.tickAt(n)})
}

func (s *story) begin(w string, n int64) *story {
	s.t = max(s.t, s.tickAt(n)+8*ms)
	return s.add(Event{K: kindTick, W: w, Name: "job", Value: s.tickAt(n)})
}

func (s *story) miss(w string, n int64, err string) *story {
	return s.add(Event{K: kindMissed, W: w, Name: "job", Value: s.tickAt(n), Err: err})
}

// record serves the nth tick at w1 with a marker of the given TTL. The release that leaves the marker standing takes
// the given time and ends with the event k. The other events of the marker are between. Then w2 reports the tick as missed.
func record(ttl int64, k Kind, took int64, others ...Event) func(*story) {
	return replicas(func(s *story) {
		const n = 2
		s.t = s.tickAt(n)
		e := Event{W: "w1", Name: ticks.Lock("job", ticks.Marker, ticks.Slot(0, n)), ID: "marker", Limit: 1, TTL: ttl}
		request, answer, release := e, e, e
		request.K, answer.K, answer.Token = kindRequest, kindAnswer, 1
		s.add(request).add(answer).serve("w1", n)
		release.K, release.Token, release.Until = k, 1, s.t
		for _, o := range others {
			o.W, o.Name, o.ID, o.Token = e.W, e.Name, e.ID, 1
			s.add(o)
		}
		s.t += took
		s.add(release).miss("w2", n, "")
	})
}

// replicas returns a story in which w1 and w2 are replicas. w1 serves all ticks until the end
// of the watch of tick 2, except for tick 2, for which special is called.
func replicas(special func(*story)) func(*story) {
	return func(s *story) {
		s.events[0].Store.Linger = true
		s.replica("w1").replica("w2")
		for n := int64(0); n < 26; n++ {
			if n == 2 {
				special(s)
				continue
			}
			s.serve("w1", n)
		}
	}
}

// once records a call of Once for "k" in which the work runs, unless ran is false.
func (s *story) once(w string, ran bool, err string) *story {
	s.ops[w]++
	e := Event{W: w, Op: s.ops[w], Res: "k"}
	call, run, done := e, e, e
	call.K, run.K, done.K = kindOnce, kindRan, kindOnceDone
	done.Err = err
	s.add(call)
	if ran {
		s.add(run)
		done.Value = 1
	}
	return s.add(done)
}

func (s *story) id(w string, ids ...int64) *story {
	for _, id := range ids {
		s.add(Event{K: kindID, W: w, Res: "ids", Value: id})
	}
	return s
}

func (s *story) get(w, data string) *story {
	s.add(Event{})
	return s.add(Event{K: kindGet, W: w, Res: "v", ID: data, For: ms})
}

// put records the beginning of a write. The result records its answer.
func (s *story) put(w, data, before string) func(outcome string) {
	s.ops[w]++
	e := Event{K: kindPut, W: w, Op: s.ops[w], Res: "v", ID: data, Note: before}
	s.add(e)
	return func(outcome string) {
		e.K, e.Err = kindPutDone, outcome
		s.add(e)
	}
}

// dies records that w2 requests the marker of the second tick, that long after it, and is killed. The other events of
// the request are before the kill.
func dies(after int64, others ...Event) func(*story) {
	return replicas(func(s *story) {
		const n = 2
		s.t = s.tickAt(n) + after
		marker := ticks.Lock("job", ticks.Marker, ticks.Slot(0, int(s.tickAt(n)/tickPeriod)))
		for _, e := range append([]Event{{K: kindRequest, Limit: 1, TTL: 600 * ms}}, others...) {
			e.W, e.Name, e.ID = "w2", marker, "marker"
			s.add(e)
		}
		s.add(Event{K: kindKill, W: "w2"})
	})
}

func TestJobHistories(t *testing.T) {
	flush := Event{K: kindFault, Fault: "flush", Early: true}
	for _, test := range []struct {
		name   string
		rule   Rule // "" for a correct history
		text   string
		record func(s *story)
	}{
		{"every tick served once", "", "", replicas(func(s *story) { s.serve("w2", 2) })},
		{"a tick whose replica is killed, reported as missed", "", "", replicas(func(s *story) {
			s.begin("w2", 2).add(Event{K: kindKill, W: "w2"}).miss("w1", 2, "")
		})},
		{"a tick for which the store was away", "", "", replicas(func(s *story) { s.miss("w2", 2, "store unavailable") })},
		{"a tick served twice after a flush", "", "", replicas(func(s *story) { s.begin("w1", 2).add(flush).serve("w2", 2) })},
		{"a tick whose replica is killed as it reports it", "", "", dies(1000 * ms)},
		{"a tick whose replica is killed while the outcome of its report is unknown", "", "",
			dies(1000*ms, Event{K: kindAnswer, Err: unknown}, Event{K: kindUnknown})},
		{"a tick whose replica is killed after it withdrew its report", RuleEvery, "neither served nor reported",
			dies(1000*ms, Event{K: kindAnswer, Err: unknown}, Event{K: kindUnknown}, Event{K: kindUndone})},
		{"a tick whose replica is killed as it begins it", RuleEvery, "neither served nor reported", dies(100 * ms)},
		{"a tick that no replica could watch", "", "", func(s *story) { s.replica("w1").serve("w1", 0).serve("w1", 2) }},
		{"a tick that only a stopped replica could watch", "", "", func(s *story) {
			s.replica("w1").serve("w1", 0).serve("w1", 1)
			s.add(Event{K: kindPause, W: "w1"})
			s.t += 4000 * ms
			s.add(Event{K: kindResume, W: "w1"})
			for n := int64(15); n < 22; n++ {
				s.serve("w1", n)
			}
		}},
		{"a tick served twice after its replica was killed, by a store that keeps no lock", "", "", replicas(func(s *story) {
			s.events[0].Store.Linger = false
			s.serve("w2", 2).add(Event{K: kindKill, W: "w2"}).serve("w1", 2)
		})},
		{"a tick served twice", RuleEvery, "served twice, by w1 and by w2", replicas(func(s *story) { s.serve("w1", 2).serve("w2", 2) })},
		{"a tick served twice after its replica was killed", RuleEvery, "served twice", replicas(func(s *story) {
			s.begin("w2", 2).add(Event{K: kindKill, W: "w2"}).serve("w1", 2)
		})},
		{"a tick served twice after a flush long before", RuleEvery, "served twice", func(s *story) {
			s.add(flush).add(Event{K: kindHealed, Fault: "flush"})
			s.events[0].Store.Linger = true
			s.serve("w1", 20).serve("w2", 20)
		}},
		{"a tick left out", RuleEvery, "neither served nor reported", replicas(func(*story) {})},
		{"a tick begun by a killed replica, and not reported", RuleEvery, "neither served nor reported", replicas(func(s *story) {
			s.begin("w2", 2).add(Event{K: kindKill, W: "w2"})
		})},
		{"a served tick reported as missed", RuleEvery, "although w1 had served it", replicas(func(s *story) { s.serve("w1", 2).miss("w2", 2, "") })},

		{"a served tick whose record is not answered", "", "", record(2000*ms, kindUnsure, 700*ms)},
		{"a served tick whose marker runs out", "", "", record(400*ms, kindFreed, 450*ms)},
		{"a served tick whose marker is renewed too late", "", "",
			record(400*ms, kindFreed, 450*ms, Event{K: kindKept, TTL: 2000 * ms})},
		{"a served tick whose record is confirmed", RuleEvery, "although w1 had served it", record(400*ms, kindLeave, ms)},
		{"a served tick whose record is refused at once", RuleEvery, "although w1 had served it", record(2000*ms, kindUnsure, ms)},
		{"a served tick whose marker is released", RuleEvery, "although w1 had served it", record(400*ms, kindFreed, ms)},
		{"a served tick that is recorded too late", RuleEvery, "although w1 had served it", record(2000*ms, kindFreed, 2500*ms)},

		{"work done by the first call that does not fail", "", "", func(s *story) {
			s.once("w1", true, "the work failed").once("w2", true, "").once("w1", false, "")
		}},
		{"work that runs beside another call whose lock was lost", "", "", func(s *story) {
			s.add(Event{K: kindOnce, W: "w3", Op: 1, Res: "k"})
			s.once("w1", true, "")
			s.add(Event{K: kindRan, W: "w3", Op: 1, Res: "k"}).add(Event{K: kindOnceDone, W: "w3", Op: 1, Res: "k", Value: 1, Err: "conflict"})
		}},
		{"work done again after a flush", "", "", func(s *story) { s.once("w1", true, "").add(flush).once("w2", true, "") }},
		{"work done twice", RuleOnce, "was done twice: by w1 and by w2", func(s *story) { s.once("w1", true, "").once("w2", true, "") }},
		{"work begun again after it was done", RuleOnce, "began it again", func(s *story) {
			s.once("w1", true, "").once("w2", true, "the answer was lost")
		}},
		{"work begun again after another call found it done", RuleOnce, "began it again", func(s *story) {
			s.once("w1", true, "the answer was lost").once("w2", false, "").once("w3", true, "failed")
		}},

		{"ids of two clients", "", "", func(s *story) { s.id("w1", 1, 2).id("w2", 5, 6).id("w1", 3, 9) }},
		{"ids that begin again after a flush, beside old blocks", "", "", func(s *story) {
			s.id("w1", 1, 2).id("w2", 5, 6).add(flush).id("w3", 1, 2, 5).id("w2", 7)
			s.id("w1", 2, 3)
		}},
		{"an id twice", RuleIDs, "id 5 of ids was drawn twice, by w2 and by w1", func(s *story) { s.id("w1", 1).id("w2", 5).id("w1", 5) }},
		{"an id twice after a flush", RuleIDs, "drawn twice", func(s *story) {
			s.id("w1", 1).add(flush)
			s.t += 1000 * ms
			s.id("w3", 1).id("w4", 1)
		}},
		{"ids that do not rise", RuleIDs, "do not rise: 4 after 5", func(s *story) { s.id("w1", 5, 4) }},

		{"writes and reads in order", "", "", func(s *story) {
			s.get("w1", "").put("w1", "a", "")("")
			s.get("w2", "a").put("w2", "b", "a")("")
			s.put("w1", "c", "a")(conflict)
			s.get("w1", "b")
		}},
		{"a write without an answer that was written later", "", "", func(s *story) {
			s.get("w1", "").put("w1", "a", "")(unknown)
			s.get("w2", "")
			s.get("w2", "a").put("w2", "b", "a")("")
		}},
		{"a write without an answer that was not written", "", "", func(s *story) {
			s.get("w1", "").put("w1", "a", "")(unknown)
			s.get("w2", "").put("w2", "b", "")("")
			s.get("w2", "b")
		}},
		{"a conflict with a write of unknown outcome that nobody has read", "", "", func(s *story) {
			s.get("w1", "").put("w1", "a", "")(unknown)
			s.put("w2", "b", "")(conflict)
		}},
		{"a write of a killed worker", "", "", func(s *story) {
			s.get("w1", "").put("w1", "a", "")
			s.get("w2", "a")
		}},
		{"data from before a flush are gone", "", "", func(s *story) {
			s.get("w1", "").put("w1", "a", "")("")
			s.add(flush).add(Event{K: kindHealed, Fault: "flush"})
			s.t += 2000 * ms
			s.get("w2", "").put("w2", "b", "")("")
		}},
		{"a write that began while data were lost, and is written after that", "", "", func(s *story) {
			s.add(flush)
			put := s.put("w1", "b", "a")
			s.add(Event{K: kindHealed, Fault: "flush"})
			s.t += 2000 * ms
			s.get("w2", "a").get("w2", "b")
			put("")
		}},
		{"a read from before a flush to after it, beside others that end before", "", "", func(s *story) {
			s.get("w1", "x")
			s.t += 40 * ms
			s.put("w1", "a", "x")("")
			s.add(Event{K: kindGet, W: "w2", Res: "v", ID: "a", For: 30 * ms})
			s.add(flush).add(Event{K: kindHealed, Fault: "flush"})
			s.t += 2000 * ms
			s.add(Event{K: kindGet, W: "w3", Res: "v", For: 2015 * ms})
		}},
		{"a write from before a flush to after it has refused another", "", "", func(s *story) {
			s.get("w1", "x")
			refused, put := s.put("w2", "b", "x"), s.put("w1", "a", "x")
			refused(conflict)
			s.add(flush).add(Event{K: kindHealed, Fault: "flush"})
			s.t += 2000 * ms
			put("")
		}},
		{"a stale read after a write that began while data were lost", RuleValues, "no order", func(s *story) {
			s.add(flush)
			put := s.put("w1", "b", "a")
			s.add(Event{K: kindHealed, Fault: "flush"})
			put("")
			s.t += 2000 * ms
			s.get("w2", "a").get("w2", "b")
		}},
		{"a lost update", RuleValues, "no order", func(s *story) {
			s.get("w1", "x").get("w2", "x")
			s.put("w1", "a", "x")("")
			s.put("w2", "b", "x")("")
		}},
		{"a stale read", RuleValues, "no order", func(s *story) {
			s.get("w1", "x").put("w1", "a", "x")("")
			s.get("w2", "x")
		}},
		{"a confirmed write that is gone", RuleValues, "no order", func(s *story) {
			s.get("w1", "x").put("w1", "a", "x")("")
			s.put("w2", "b", "a")(conflict)
		}},
		{"a confirmed write whose answer was a conflict", RuleValues, "no order", func(s *story) {
			s.get("w1", "x").put("w1", "a", "x")(conflict)
			s.get("w2", "a")
		}},
		{"a write of unknown outcome that is written after a later one", RuleValues, "no order", func(s *story) {
			s.get("w1", "x").put("w1", "a", "x")(unknown)
			s.put("w2", "b", "x")("")
			s.get("w2", "b").get("w2", "a")
		}},
		{"a refused write that is read later", RuleValues, "was refused", func(s *story) {
			s.get("w1", "x").put("w1", "a", "x")("store unavailable")
			s.get("w2", "a")
		}},
		{"a write lost beside a fault that loses nothing", RuleValues, "no order", func(s *story) {
			s.get("w1", "x").put("w1", "a", "x")("")
			s.add(Event{K: kindFault, Fault: faultKillServer}).get("w2", "x")
		}},
	} {
		t.Run(test.name, func(t *testing.T) { judgeStory(t, test.record, test.rule, test.text) })
	}
}
