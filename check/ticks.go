//go:build linux || darwin

package check

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/ticks"
)

// schedule is what the history has about the ticks of one name.
type schedule struct {
	period   int64
	sessions []*attendance
	runs     map[int64][]*tickRun // by the time of the tick
	reports  map[int64][]Event
}

// attendance is the interval in which a client served ticks. ahead is the difference between
// the time of day and the clock of the history.
type attendance struct {
	client     opKey
	begin, end int64
	ahead      int64
}

// tickRun is the work of a tick at one worker. Its end is 0 if the worker has not recorded it.
type tickRun struct {
	client     opKey
	begin, end int64
	events     []Event
}

func (c *collected) addTick(e *Event) {
	s := c.schedules[e.Name]
	if s == nil {
		s = &schedule{runs: map[int64][]*tickRun{}, reports: map[int64][]Event{}}
		c.schedules[e.Name] = s
	}
	client := opKey{e.W, e.Gen}
	switch e.K {
	case kindEvery:
		s.period = e.For
		s.sessions = append(s.sessions, &attendance{client: client, begin: e.T, ahead: e.Value - e.T})
	case kindEveryEnd:
		for _, a := range s.sessions {
			if a.client == client && a.end == 0 {
				a.end = e.T
			}
		}
	case kindTick:
		s.runs[e.Value] = append(s.runs[e.Value], &tickRun{client: client, begin: e.T, events: []Event{*e}})
	case kindTicked:
		for _, r := range s.runs[e.Value] {
			if r.client == client && r.end == 0 {
				r.end = e.T
				r.events = append(r.events, *e)
			}
		}
	case kindMissed:
		s.reports[e.Value] = append(s.reports[e.Value], *e)
	}
}

// ended returns the moment at which a client stopped working, or the end of the history.
func (c *collected) ended(client opKey) int64 {
	end := c.last
	for _, t := range []int64{c.drain, c.killed[client.worker], c.closing[client], c.vanished[client]} {
		if t != 0 {
			end = min(end, t)
		}
	}
	return end
}

// settling is the time that a replica may take until it knows which tick is the next one. It counts
// the ticks since midnight.
const settling = 3 * Slack

// watchedFor returns how long after a tick a replica of Every still reports it at the latest:
// it watches for eight distances, and then its requests about the ticks that it watches may take time.
func (s *schedule) watchedFor() int64 { return 8*s.period + 8*s.period + 2*int64(Slack) }

// judgeEvery finds ticks that two replicas served, and ticks that were neither served nor reported
// although a replica ran all the time.
func (c *collected) judgeEvery(r *Report, name string, s *schedule) {
	for _, at := range slices.Sorted(maps.Keys(s.runs)) {
		runs := s.runs[at]
		r.Stats.Ticks++
		for _, again := range runs[1:] {
			if first := runs[0]; !c.mayServeAgain(first, again) {
				r.add(Violation{Rule: RuleEvery, Name: name, Excerpt: append(slices.Clone(first.events), again.events...),
					Text: fmt.Sprintf("the tick %s of %q was served twice, by %s and by %s", tickTime(at), name, first.client.worker, again.client.worker)})
			}
		}
	}
	for _, at := range slices.Sorted(maps.Keys(s.reports)) {
		c.judgeMissed(r, name, at, s)
	}
	judged := map[int64]bool{}
	for _, a := range s.sessions {
		end := c.ended(a.client)
		if a.end != 0 {
			end = min(end, a.end)
		}
		next := holdfast.Period(s.period).Next(time.Unix(0, a.begin+a.ahead+int64(settling)))
		for ; next.UnixNano()-a.ahead+s.watchedFor() < end; next = next.Add(time.Duration(s.period)) {
			at := next.UnixNano()
			if judged[at] || c.ranTooLate(a.client.worker, at-a.ahead, s) {
				continue
			}
			judged[at] = true
			if c.accounted(s, at) || c.diedReporting(name, at, s, a) {
				continue
			}
			v := Violation{Rule: RuleEvery, Name: name, From: at - a.ahead, To: at - a.ahead + s.watchedFor(),
				Excerpt: []Event{{T: a.begin, W: a.client.worker, K: kindEvery, Name: name, For: s.period}},
				Text:    fmt.Sprintf("the tick %s of %q was neither served nor reported, although %s ran all the time", tickTime(at), name, a.client.worker)}
			for _, run := range s.runs[at] {
				v.Excerpt = append(v.Excerpt, run.events...)
			}
			r.add(v)
		}
	}
	r.Stats.Accounted += len(judged)
}

// judgeMissed finds a tick that was reported as missed although its work has ended, if the store keeps
// the record of that.
func (c *collected) judgeMissed(r *Report, name string, at int64, s *schedule) {
	i := slices.IndexFunc(s.reports[at], func(e Event) bool { return e.Err == "" })
	if i < 0 {
		return
	}
	r.Stats.Missed++
	report := s.reports[at][i]
	for _, run := range s.runs[at] {
		if c.guarantees.Linger && run.end != 0 && run.end < report.T && c.ended(run.client) > report.T &&
			c.undisturbed(run.begin, report.T, "", run.client.worker) && !c.unrecorded(name, run) {
			r.add(Violation{Rule: RuleEvery, Name: name, Excerpt: append(slices.Clone(run.events), report),
				Text: fmt.Sprintf("%s reported the tick %s of %q as missed, although %s had served it", report.W, tickTime(at), name, run.client.worker)})
		}
	}
}

// unrecorded reports whether the marker of a tick ran out before its replica could record the end of the work:
// the store did not confirm that it keeps the marker, and the replica had little time, or got no
// answer to its request.
func (c *collected) unrecorded(schedule string, run *tickRun) bool {
	var marker *request
	var h *nameHistory // of marker
	for name, n := range c.names {
		if job, kind, ok := ticks.Job(name); !ok || job != schedule || kind != ticks.Marker {
			continue
		}
		for _, q := range n.requests {
			ours := q.token != 0 && run.client == opKey{q.worker, q.gen} && q.answer <= run.begin
			if ours && (marker == nil || q.answer > marker.answer) {
				marker, h = q, n
			}
		}
	}
	if marker == nil || slices.ContainsFunc(h.leaves, func(e Event) bool { return e.ID == marker.id }) {
		return false
	}
	var deadline int64 // as the replica knew it at the end of the work
	for _, b := range h.bounds {
		if b.token == marker.token && b.at <= run.end {
			deadline = max(deadline, b.at+b.ttl)
		}
	}
	released := marker.freed != 0 && marker.freed < marker.sent+marker.ttl-marker.ttl/8 // its validity is shorter than the TTL
	// A request has a third of the TTL to be answered.
	return marker.unanswered >= marker.ttl/4 || !released && deadline-run.end < int64(Slack)
}

func tickTime(at int64) string { return time.Unix(0, at).UTC().Format("15:04:05.000") }

// accounted reports whether the tick was served to its end or reported. What a client does after it has
// vanished is not known to any other.
func (c *collected) accounted(s *schedule, at int64) bool {
	return len(s.reports[at]) > 0 || slices.ContainsFunc(s.runs[at], func(r *tickRun) bool {
		vanished := c.vanished[r.client]
		return r.end != 0 && (vanished == 0 || r.end <= vanished)
	})
}

// diedReporting reports whether a replica was killed, or vanished, after it had requested the marker by which it
// reports the tick. Then no other replica reports it: the marker may stand. A replica that serves a tick requests the marker
// within one distance, and one that reports it a TTL later.
func (c *collected) diedReporting(name string, at int64, s *schedule, a *attendance) bool {
	const day = int64(24 * time.Hour)
	h := c.names[ticks.Lock(name, ticks.Marker, ticks.Slot(at/day%2, int(at%day/s.period)))]
	due := at - a.ahead
	return h != nil && slices.ContainsFunc(h.requests, func(q *request) bool {
		died := max(c.killed[q.worker], c.vanished[opKey{q.worker, q.gen}])
		reports := q.sent > due+s.period+q.ttl/2 && q.sent < due+s.watchedFor()
		stands := q.answer == 0 || q.token != 0 || q.unknown != 0 && q.undone == 0
		return died != 0 && reports && q.freed == 0 && stands
	})
}

// ranTooLate reports whether a worker was stopped while it had to watch a tick, or whether an older tick
// may still have the locks of this one, because the store went back to an earlier state, its clock
// was set, or it counted the time of kept locks anew.
func (c *collected) ranTooLate(worker string, at int64, s *schedule) bool {
	const slots = 16 // of Every
	until := at + s.watchedFor()
	return slices.ContainsFunc(c.disturbances, func(d disturbance) bool {
		if d.from >= until {
			return false
		}
		if d.rewinds || strings.Contains(d.kind, "clock") || c.recounts(&d) {
			return at-slots*s.period < d.to+int64(Slack)
		}
		return d.kind == faultPause && d.worker == worker && at < d.to+int64(Slack)
	})
}

// mayServeAgain reports whether the locks with which a replica served a tick may have ended
// before another replica began it. A store that does not keep a lock without its client loses
// them with the client.
func (c *collected) mayServeAgain(first, again *tickRun) bool {
	return slices.ContainsFunc(c.disturbances, func(d disturbance) bool {
		if d.from > again.begin || d.name != "" || d.to+c.notice() < first.begin {
			return false
		}
		return d.early || d.rewinds || d.loses || !c.guarantees.Linger && d.worker == first.client.worker
	})
}
