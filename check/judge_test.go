//go:build linux || darwin

package check

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/must"
)

const ms = int64(time.Millisecond)

// promises are the guarantees of a strict store with leases.
var promises = driver.Guarantees{
	Kind: "test", Order: driver.OrderFIFO, Wake: driver.WakePush, Fallback: time.Second,
	Shared: true, Semaphore: true, Mixed: true, Slots: true,
	MinTTL: time.Millisecond, MaxTTL: time.Hour, LeftoversExpire: true,
}

// story is a hand-written history. Its methods add the events of workers. The test chooses their
// order, times and values, and so whether the history is correct.
type story struct {
	t      int64 // the present time
	events []Event
	ops    map[string]int    // by worker: the number of its operations
	token  map[string]uint64 // by name: the largest token
	value  map[string]int64  // by name: the value of its register
	ids    int               // the number of request IDs
}

func newStory() *story {
	s := &story{t: 1000 * ms, ops: map[string]int{}, token: map[string]uint64{}, value: map[string]int64{}}
	g := promises
	s.add(Event{K: kindRun, Store: &g})
	return s
}

func (s *story) add(e Event) *story {
	if e.T == 0 {
		s.t += ms
		e.T = s.t
	}
	s.events = append(s.events, e)
	return s
}

// noticed returns a story in which a flush takes a grant away. The store declares that holders
// notice this within 3 s. Other faults follow: each begins 2 s after the end of the one before,
// and lasts for 4 s. The holder w1 notices the loss late nanoseconds after the latest moment
// that the judge allows, which is 3 s and Slack after the end of the last fault. If late is
// negative, w1 notices it before that moment.
func noticed(late int64, faults ...Event) func(*story) {
	return func(s *story) {
		s.events[0].Store.Notice = 3 * time.Second
		a := s.request("w1", "a", 1)
		a.ttl = 21000 * ms
		a.grantedWith(1, s.t+20000*ms)
		s.add(Event{K: kindFault, Fault: "flush", Early: true})
		s.add(Event{K: kindHealed, Fault: "flush"})
		reached := s.t
		b := s.request("w2", "a", 1).granted()
		for _, f := range faults {
			s.t = reached + 2000*ms
			s.add(Event{K: kindFault, Fault: f.Fault, W: f.W})
			s.t += 4000 * ms
			s.add(Event{K: kindHealed, Fault: f.Fault, W: f.W})
			reached = s.t
		}
		s.t = reached + int64(3*time.Second+Slack) + late
		a.event(kindLost, Event{Cause: "gone"}).unlock()
		b.unlock()
	}
}

// secondConfirmedFirst returns a story in which a release grants two queued requests of one client
// together. The client reports the grant of the second request before that of the first.
func secondConfirmedFirst(limit int) func(*story) {
	return func(s *story) {
		h := s.request("w0", "a", 1).granted()
		a := s.request("w1", "a", limit).placed()
		b := s.request("w1", "a", limit).placed()
		h.unlock()
		b.grantedWith(3, s.t+1000*ms)
		a.grantedWith(4, s.t+1000*ms)
		b.unlock()
		a.unlock()
	}
}

// stall stops and continues a server that keeps its queue.
func (s *story) stall() {
	s.add(Event{K: kindFault, Fault: faultStall, KeepsOrder: true})
	s.t += 2500 * ms
	s.add(Event{K: kindHealed, Fault: faultStall, KeepsOrder: true})
}

// lock is one lock of the story.
type lock struct {
	s     *story
	w, n  string // the worker and the name
	op    int
	id    string
	limit int
	token uint64
	ttl   int64 // 1,200 ms if 0
}

func (s *story) request(w, n string, limit int) *lock {
	s.ops[w]++
	s.ids++
	l := &lock{s: s, w: w, n: n, op: s.ops[w], id: fmt.Sprintf("r%d", s.ids), limit: limit}
	s.add(Event{K: kindLock, W: w, Name: n, Op: l.op, Limit: limit, Wait: true})
	s.add(Event{K: kindRequest, W: w, Name: n, ID: l.id, Limit: limit, Wait: true})
	return l
}

func (l *lock) placed() *lock {
	l.s.add(Event{K: kindPlaced, W: l.w, Name: l.n, ID: l.id})
	return l
}

// granted records a grant with the next token and a validity of one second.
func (l *lock) granted() *lock { return l.grantedWith(l.s.token[l.n]+1, l.s.t+1000*ms) }

func (l *lock) grantedWith(token uint64, until int64) *lock {
	l.token = token
	l.s.token[l.n] = max(l.s.token[l.n], token)
	l.s.add(Event{K: kindAnswer, W: l.w, Name: l.n, ID: l.id, Token: token, TTL: cmp.Or(l.ttl, 1200*ms)})
	l.s.add(Event{K: kindGranted, W: l.w, Name: l.n, Op: l.op, Token: token, Limit: l.limit, Until: until})
	return l
}

// lasting records a grant with the given TTL.
func (l *lock) lasting(ttl int64) *lock {
	l.ttl = ttl
	return l.grantedWith(l.s.token[l.n]+1, l.s.t+ttl*5/6)
}

// try records a request without waiting that the store refuses.
func (s *story) try(w, n string, limit int) {
	s.ids++
	e := Event{K: kindRequest, W: w, Name: n, ID: fmt.Sprintf("r%d", s.ids), Limit: limit, TTL: 600 * ms}
	s.add(e)
	e.K, e.Err = kindAnswer, driver.CodeBusy.String()
	s.add(e)
}

// undoneFor returns a story in which a client retries the undo of a request for that time, and its grant of 600 ms
// stands afterwards.
func undoneFor(time int64) func(*story) {
	return func(s *story) {
		s.events[0].Store.LeftoversExpire = true
		e := Event{W: "w1", Name: "a", ID: "r", Limit: 1, TTL: 600 * ms}
		for _, k := range []Kind{kindRequest, kindUnknown, kindUndo, kindLeft} {
			if e.K = k; k == kindUndo {
				s.t += time
			}
			s.add(e)
		}
	}
}

// killed returns a story in which w1 is killed while it has a grant of 600 ms, beside w2 whose grant is
// of 16 s. Then w3 requests a place: it waits, or it tries after that time.
func killed(limit int, after int64, waits bool) func(*story) {
	return func(s *story) {
		s.request("w1", "a", limit).lasting(600 * ms)
		s.add(Event{K: kindKill, W: "w1"})
		if limit > 1 {
			s.request("w2", "a", limit).lasting(16000 * ms)
		}
		if !waits {
			s.t += after
			s.try("w3", "a", limit)
			return
		}
		q := s.request("w3", "a", limit).placed()
		s.t += after
		q.granted().unlock()
	}
}

// deadBefore returns a story of Redisson's fair lock. Three waiters die while another client holds the lock for longer than their
// entries keep a free name. After its release w4 is granted the lock after the given time, or is refused it if it does not wait.
// With served, a request that was sent after their death is granted before.
func deadBefore(after int64, waits, served bool) func(*story) {
	return func(s *story) {
		s.events[0].Store.Kind = "redis-redisson-fair"
		h := s.request("w0", "a", 1).lasting(30000 * ms)
		for _, w := range []string{"w1", "w2", "w3"} {
			s.request(w, "a", 1).placed()
			s.add(Event{K: kindKill, W: w})
		}
		s.t += 10000 * ms
		if served {
			h.unlock()
			h = s.request("w5", "a", 1).granted()
		}
		if !waits {
			h.unlock()
			s.t += after
			s.try("w4", "a", 1)
			return
		}
		q := s.request("w4", "a", 1).placed()
		h.unlock()
		s.t += after
		q.granted().unlock()
	}
}

// twoLimits returns a story in which a request for one of three permits is refused, beside one of two permits.
func twoLimits(mixed bool) func(*story) {
	return func(s *story) {
		s.events[0].Store.Mixed = mixed
		s.request("w1", "a", 2).lasting(16000 * ms)
		s.t += 4000 * ms
		s.try("w3", "a", 3)
	}
}

// place returns a story in which a worker repeats a request until it is killed, and a request is refused the given time
// after the end of the lock. With undone, the worker gives the request up instead.
func place(order driver.Order, after int64, undone bool) func(*story) {
	return func(s *story) {
		s.events[0].Store.Order = order
		h := s.request("w0", "a", 1).granted()
		for range 3 {
			e := Event{K: kindRequest, W: "w1", Name: "a", ID: "repeated", Limit: 1, TTL: 3000 * ms, Repeated: true}
			s.add(e)
			e.K, e.Err = kindAnswer, driver.CodeBusy.String()
			s.add(e)
		}
		if undone {
			s.add(Event{K: kindUndone, W: "w1", Name: "a", ID: "repeated"})
		} else {
			s.add(Event{K: kindKill, W: "w1"})
		}
		h.unlock()
		s.t += after
		s.try("w3", "a", 1)
	}
}

// writer returns a story in which a writer repeats its request beside a reader, and another reader is refused meanwhile.
func writer(order driver.Order) func(*story) {
	return func(s *story) {
		s.events[0].Store.Order = order
		s.request("w0", "a", driver.Unlimited).lasting(16000 * ms)
		e := Event{W: "w1", Name: "a", ID: "repeated", Limit: 1, TTL: 1000 * ms, Err: driver.CodeBusy.String()}
		for range 9 {
			e.K = kindRequest
			s.add(e)
			e.K, e.Repeated = kindAnswer, true
			s.add(e)
			s.t += 500 * ms
		}
		s.try("w3", "a", driver.Unlimited)
		e.K = kindRequest
		s.add(e)
		e.K = kindAnswer
		s.add(e)
	}
}

// firstPermit returns a story in which a request for one of two permits is refused while another one gets the
// first permit of the name.
func firstPermit(mixed bool) func(*story) {
	return func(s *story) {
		s.events[0].Store.Mixed = mixed
		s.t += 4000 * ms
		s.ids++
		e := Event{K: kindRequest, W: "w1", Name: "a", ID: fmt.Sprintf("r%d", s.ids), Limit: 2, TTL: 600 * ms}
		s.add(e)
		s.try("w3", "a", 2)
		e.K, e.Token = kindAnswer, 1
		s.add(e)
		e.K = kindFreed
		s.add(e)
	}
}

// restored returns a story in which a store goes back to an earlier state, and refuses w3 after the given
// time. The longest TTL is 8 s. With next, another lock is granted before.
func restored(after int64, next bool) func(*story) {
	return func(s *story) {
		s.add(Event{K: kindRequest, W: "w1", Name: "b", ID: "longest", Limit: 1, TTL: 8000 * ms})
		s.add(Event{K: kindFault, Fault: "restore", Early: true, Rewinds: true, Loses: true})
		s.add(Event{K: kindHealed, Fault: "restore", Early: true, Rewinds: true, Loses: true})
		if next {
			s.request("w2", "a", 1).granted().unlock()
		}
		s.t += after
		s.try("w3", "a", 1)
	}
}

func (l *lock) event(k Kind, e Event) *lock {
	e.K, e.W, e.Name, e.Op, e.Token = k, l.w, l.n, l.op, l.token
	l.s.add(e)
	return l
}

func (l *lock) work() *lock {
	v := l.s.value[l.n]
	l.s.value[l.n]++
	return l.workOn(v)
}

func (l *lock) workOn(v int64) *lock {
	e := Event{Res: l.n, Guarded: true}
	l.event(kindBegin, e)
	e.Value = v
	return l.event(kindRead, e).event(kindWrote, e)
}

// leave records the release of a lock with a MinHold of half a second. The store confirms that it
// keeps the grant for that time.
func (l *lock) leave() *lock {
	l.event(kindUnlock, Event{For: 500 * ms})
	l.s.add(Event{K: kindLeave, W: l.w, Name: l.n, ID: l.id, Limit: l.limit, Token: l.token, For: 500 * ms, Until: l.s.t})
	return l.event(kindUnlocked, Event{})
}

// kept returns a story in which w1 has a lock with a MinHold. After its release between happens, and
// w2 gets the lock after the given time.
func kept(limit int, after int64, between func(*story)) func(*story) {
	return func(s *story) {
		s.events[0].Store.Linger = true
		a := s.request("w1", "a", 1).granted().leave()
		if between != nil {
			between(s)
		}
		s.t = max(s.t, s.events[slices.IndexFunc(s.events, func(e Event) bool { return e.K == kindLeave })].T+after*ms)
		s.request("w2", "a", limit).grantedWith(a.token+1, s.t+1000*ms).unlock()
	}
}

// keep records an Unlock after which the Locker may keep the grant for that time.
func (l *lock) keep(sticky int64) *lock {
	return l.event(kindUnlock, Event{Sticky: sticky}).event(kindUnlocked, Event{})
}

// take records that a lock of the same worker takes the kept grant.
func (l *lock) take() *lock {
	l.s.ops[l.w]++
	l.op, l.token = l.s.ops[l.w], l.token+1
	l.s.token[l.n] = max(l.s.token[l.n], l.token)
	l.s.add(Event{K: kindLock, W: l.w, Name: l.n, Op: l.op, Limit: l.limit, Wait: true})
	l.s.add(Event{K: kindGranted, W: l.w, Name: l.n, Op: l.op, Token: l.token, Limit: l.limit, Until: l.s.t + 1000*ms})
	return l
}

// sticky returns a story in which w1 gets a grant with 65 tokens for 60 s, and keeps it after the Unlock for the time sticky.
func sticky(sticky int64, then func(s *story, a *lock)) func(*story) {
	return func(s *story) {
		a := s.request("w1", "a", 1)
		s.add(Event{K: kindAnswer, W: "w1", Name: "a", ID: a.id, Token: 1, Tokens: 65, TTL: 60000 * ms})
		a.token = 1
		s.token["a"] = 65
		a.event(kindGranted, Event{Limit: 1, Until: s.t + 50000*ms})
		a.keep(sticky)
		then(s, a)
	}
}

// recalled returns what follows in such a story: w2 waits, and w1 releases the grant after that time.
func recalled(after int64, between func(s *story, a *lock)) func(*story, *lock) {
	return func(s *story, a *lock) {
		q := s.request("w2", "a", 1).placed()
		end := s.t + after
		if between != nil {
			between(s, a)
		}
		s.t = end
		s.add(Event{K: kindFreed, W: "w1", Name: "a", ID: a.id, Token: 1})
		q.granted().unlock()
	}
}

// again takes the kept grant and keeps it, every 100 ms for the given time.
func again(during int64) func(*story, *lock) {
	return func(s *story, a *lock) {
		for end := s.t + during; s.t < end; s.t += 100 * ms {
			a.take().keep(60000 * ms)
		}
	}
}

func (l *lock) unlock() *lock {
	l.event(kindUnlock, Event{})
	l.s.add(Event{K: kindFreed, W: l.w, Name: l.n, ID: l.id, Token: l.token})
	return l.event(kindUnlocked, Event{})
}

// judgeStory judges a story. It fails the test unless the story breaks the rule, with a violation whose text contains the
// given one. Without a rule, the story must be correct.
func judgeStory(t *testing.T, record func(*story), rule Rule, text string) (*Report, Violation) {
	t.Helper()
	s := newStory()
	record(s)
	s.add(Event{K: kindDrain})
	r := s.judge(t)
	if rule == "" {
		if !r.OK() {
			t.Fatalf("convicted a correct history: %s", explain(r))
		}
		return r, Violation{}
	}
	i := slices.IndexFunc(r.Violations, func(v Violation) bool { return v.Rule == rule && strings.Contains(v.Text, text) })
	if i < 0 {
		t.Fatalf("no violation of rule %s contains %q; found:%s", rule, text, explain(r))
	}
	return r, r.Violations[i]
}

func (s *story) judge(t *testing.T) *Report {
	t.Helper()
	r, err := Judge(s.events)
	must.Succeed(t, err)
	return r
}

// lose records that the outcome of a request is unknown. undo records that the client has
// undone the request.
func (l *lock) lose() { l.s.add(Event{K: kindUnknown, W: l.w, Name: l.n, ID: l.id}) }
func (l *lock) undo() { l.s.add(Event{K: kindUndone, W: l.w, Name: l.n, ID: l.id}) }

func TestSoundHistoriesPass(t *testing.T) {
	for name, record := range map[string]func(s *story){
		"a writer behind a killed reader and a later one": func(s *story) {
			s.request("w0", "a", driver.Unlimited).lasting(8000 * ms)
			s.add(Event{K: kindKill, W: "w0"})
			s.t += 3000 * ms
			r := s.request("w1", "a", driver.Unlimited).granted()
			a := s.request("w2", "a", 1).placed()
			r.unlock()
			s.t += 4000 * ms
			a.granted().unlock()
		},
		"a waiter behind a grant whose answer was lost": func(s *story) {
			h := s.request("w0", "a", 1).granted()
			lost := s.request("w1", "a", 1)
			a := s.request("w2", "a", 1).placed()
			h.unlock()
			lost.lose()
			s.t += 4000 * ms
			lost.undo()
			lost.event(kindFailed, Event{})
			a.granted().unlock()
		},
		"the first waiter queues again after a stall": func(s *story) {
			h := s.request("w0", "a", 1).granted()
			a := s.request("w1", "a", 2).placed()
			b := s.request("w2", "a", 1).placed()
			h.unlock()
			s.stall()
			b.granted().unlock()
			a.granted().unlock()
		},
		"a permit that is first beside another one queues again after a stall": func(s *story) {
			h := s.request("w0", "a", 1).granted()
			a, b := s.request("w1", "a", 2).placed(), s.request("w2", "a", 2).placed()
			d := s.request("w3", "a", 1).placed()
			h.unlock()
			s.stall()
			a.granted().unlock()
			d.granted().unlock()
			b.granted().unlock()
		},
		"exclusive after exclusive": func(s *story) {
			a, b := s.request("w1", "a", 1), s.request("w2", "a", 1)
			a.granted().work()
			b.placed()
			a.unlock()
			b.granted().work().unlock()
		},
		"shared together": func(s *story) {
			a, b := s.request("w1", "a", driver.Unlimited).granted(), s.request("w2", "a", driver.Unlimited).granted()
			a.unlock()
			b.unlock()
		},
		"a semaphore of two": func(s *story) {
			a, b := s.request("w1", "a", 2).granted(), s.request("w2", "a", 2).granted()
			c := s.request("w3", "a", 2).placed()
			a.unlock()
			c.granted().unlock()
			b.unlock()
		},
		"the next lock after a MinHold":    kept(1, 501, nil),
		"a MinHold that a flush has ended": kept(1, 100, func(s *story) { s.add(Event{K: kindFault, Fault: "flush", Early: true}) }),
		"a MinHold that a break has ended": kept(1, 100, func(s *story) { s.add(Event{K: kindFault, Fault: faultBreak, Early: true, Name: "a"}) }),
		"a MinHold that a failover has lost": kept(1, 100, func(s *story) {
			s.add(Event{K: kindFault, Fault: "demote-primary", Loses: true, For: 5 * ms})
		}),
		"a MinHold whose release was not confirmed": func(s *story) {
			s.events[0].Store.Linger = true
			s.request("w1", "a", 1).granted().event(kindUnlock, Event{For: 5000 * ms}).event(kindUnlocked, Event{Err: "no answer"})
			s.request("w2", "a", 1).granted().unlock()
		},
		"a MinHold that Close has dropped": func(s *story) {
			s.events[0].Store.Linger = true
			a := s.request("w1", "a", 1).granted()
			s.add(Event{K: kindClosing, W: "w1"})
			a.event(kindUnlock, Event{For: 5000 * ms}).event(kindUnlocked, Event{})
			s.request("w2", "a", 1).granted().unlock()
		},
		"a MinHold of a Locker whose process was killed": func(s *story) {
			s.request("w1", "a", 1).granted().event(kindUnlock, Event{For: 500 * ms}).event(kindUnlocked, Event{})
			s.add(Event{K: kindKill, W: "w1"})
			s.request("w2", "a", 1).granted().unlock()
		},
		"a waiter behind a MinHold": func(s *story) {
			a := s.request("w1", "a", 1).granted()
			b := s.request("w2", "a", 1).placed()
			a.event(kindUnlock, Event{For: 4000 * ms}).event(kindUnlocked, Event{})
			s.t += 4000 * ms
			b.granted().unlock()
		},
		"refused within the TTL of a killed holder": killed(1, 1500*ms, false),
		"refused beside a grant of another limit":   twoLimits(false),
		"refused beside the first grant of a name":  firstPermit(false),
		"refused for a dead waiter that was first":  place(driver.OrderLongest, 2500*ms, false),
		"refused for a writer that goes on":         writer(driver.OrderLongest),
		"refused by a grant that a restore revived": restored(4000*ms, false),
		"a waiter behind a killed holder":           killed(1, 2500*ms, true),
		"a waiter behind dead ones of a fair lock":  deadBefore(5900*ms, true, false),
		"refused for dead waiters of a fair lock":   deadBefore(20000*ms, false, false),
		"a waiter for the place of a killed permit": killed(2, 2500*ms, true),
		"refused beside a waiter that is served at its moment": func(s *story) {
			h := s.request("w1", "a", 1).lasting(20000 * ms)
			q := s.request("w2", "a", 1).placed()
			s.t += 4000 * ms
			h.unlock()
			s.try("w3", "a", 1)
			q.granted().unlock()
		},
		"refused beside another request that gets no answer": func(s *story) {
			s.ids++
			e := Event{K: kindRequest, W: "w1", Name: "a", ID: fmt.Sprintf("r%d", s.ids), Limit: 1, TTL: 600 * ms}
			s.add(e)
			s.try("w3", "a", 1)
			e.K, e.Err = kindAnswer, driver.CodeWithdrawn.String()
			s.add(e)
		},
		"refused within a MinHold": func(s *story) {
			s.request("w1", "a", 1).granted().leave()
			s.try("w3", "a", 1)
		},
		"a MinHold whose release was applied, and confirmed when it was repeated": func(s *story) {
			s.events[0].Store.Linger = true
			a := s.request("w1", "a", 1).granted().event(kindUnlock, Event{For: 400 * ms})
			sent := s.t
			s.t += 450 * ms
			s.add(Event{K: kindUnsure, W: "w1", Name: "a", ID: a.id, Token: 1, TTL: 400 * ms, Until: sent})
			s.add(Event{K: kindLeave, W: "w1", Name: "a", ID: a.id, Limit: 1, Token: 1, For: 400 * ms, Until: s.t})
			a.event(kindUnlocked, Event{})
			s.request("w2", "a", 1).granted().unlock()
		},
		"refused after a renewal whose answer was lost": func(s *story) {
			a := s.request("w1", "a", 1).lasting(600 * ms)
			s.t += 500 * ms
			s.add(Event{K: kindUnsure, W: "w1", Name: "a", ID: a.id, Token: 1, TTL: 600 * ms}).add(Event{K: kindKill, W: "w1"})
			s.t += 1500 * ms
			s.try("w3", "a", 1)
		},
		"a waiter behind a server that was away": func(s *story) {
			h := s.request("w1", "a", 1).granted()
			q := s.request("w2", "a", 1).placed()
			s.add(Event{K: kindFault, Fault: faultKillServer})
			h.unlock()
			s.t += 4000 * ms
			s.add(Event{K: kindHealed, Fault: faultKillServer})
			q.granted().unlock()
		},
		"a killed holder": func(s *story) {
			a := s.request("w1", "a", 1).granted()
			a.event(kindBegin, Event{Res: "a", Guarded: true}).event(kindRead, Event{Res: "a", Guarded: true})
			s.add(Event{K: kindKill, W: "w1"})
			// The history does not show whether w1 wrote before it died. The value that w2
			// reads shows that it did.
			s.request("w2", "a", 1).granted().workOn(1).unlock()
		},
		"a stopped holder past its validity": func(s *story) {
			a := s.request("w1", "a", 1).granted()
			s.add(Event{K: kindPause, W: "w1", For: 3000 * ms})
			s.t += 1300 * ms
			b := s.request("w2", "a", 1).granted()
			s.add(Event{K: kindResume, W: "w1"})
			a.event(kindLost, Event{Cause: "expired"}).unlock()
			b.unlock()
		},
		"a lock that was dead when its holder got it": func(s *story) {
			// The Locker was closed while the store granted the lock, so the client
			// released it. The store granted it to the next waiter before the goroutine of
			// the first waiter ran.
			a, b := s.request("w1", "a", driver.Unlimited), s.request("w2", "a", 1)
			s.add(Event{K: kindAnswer, W: "w1", Name: "a", ID: a.id, Token: 1, TTL: 1200 * ms})
			b.grantedWith(2, s.t+1000*ms)
			a.token = 1
			a.event(kindGranted, Event{Limit: a.limit, Until: s.t - ms})
			a.event(kindLost, Event{Cause: "closed"}).unlock()
			b.unlock()
		},
		"a lock that expired while its holder was stopped": func(s *story) {
			// When the lease has ended, the holder cannot read its deadline, and records
			// the present moment.
			a := s.request("w1", "a", 1)
			s.add(Event{K: kindAnswer, W: "w1", Name: "a", ID: a.id, Token: 1, TTL: 600 * ms})
			s.add(Event{K: kindPause, W: "w1", For: 1000 * ms})
			s.t += 1000 * ms
			s.add(Event{K: kindResume, W: "w1"})
			a.token = 1
			a.event(kindGranted, Event{Limit: a.limit, Until: s.t})
			a.event(kindLost, Event{Cause: "expired"}).unlock()
		},
		"two readers granted together, the second confirmed first": secondConfirmedFirst(driver.Unlimited),
		"two permits granted together, the second confirmed first": secondConfirmedFirst(2),
		"a waiter that lost its entry behind a request whose answer was lost": func(s *story) {
			h := s.request("w0", "a", 1).granted()
			a := s.request("w2", "a", 1).placed()
			s.add(Event{K: kindFault, Fault: faultCut, W: "w2"})
			s.add(Event{K: kindHealed, Fault: faultCut, W: "w2"})
			lost := s.request("w1", "a", 1)
			h.unlock()
			lost.lose()
			s.t += 4000 * ms
			lost.undo()
			lost.event(kindFailed, Event{})
			a.granted().unlock()
		},
		"taken away, and noticed in time": func(s *story) {
			a := s.request("w1", "a", 1).granted()
			s.add(Event{K: kindFault, Fault: "lose", Name: "a", Early: true})
			b := s.request("w2", "a", 1).granted()
			a.event(kindLost, Event{Cause: "taken"}).unlock()
			b.unlock()
		},
		"taken away, and noticed at the end of the declared time": noticed(-50 * ms),
		"taken away, and noticed in time after the server could be reached again": noticed(-50*ms,
			Event{Fault: faultDropServer}, Event{Fault: faultCut, W: "w1"}),
		"taken away, and recorded again by a goroutine that ran late": func(s *story) {
			a := s.request("w1", "a", 1).granted()
			s.add(Event{K: kindFault, Fault: "break", Name: "a", Early: true})
			a.event(kindLost, Event{Cause: "taken"})
			s.t += 700 * ms
			b := s.request("w2", "a", 1).granted()
			a.event(kindLost, Event{Cause: "taken"}).unlock()
			b.unlock()
		},
		"taken away while the answer was on its way": func(s *story) {
			a, b := s.request("w1", "a", 1), s.request("w2", "a", 1)
			s.add(Event{K: kindFault, Fault: "flush", Early: true, For: 5 * ms})
			s.t += 10 * ms
			b.grantedWith(2, s.t+1000*ms)
			a.grantedWith(1, s.t+1000*ms)
			a.unlock()
			b.unlock()
		},
		"an older grant of a former primary, handed on": func(s *story) {
			former := s.request("w1", "a", 1).placed()
			s.add(Event{K: kindFault, Fault: "demote-primary", Early: true, Loses: true, For: 50 * ms})
			s.request("w2", "a", 1).grantedWith(9, s.t+1000*ms).unlock()
			s.ops["w1"]++
			next := &lock{s: s, w: "w1", n: "a", op: s.ops["w1"], id: former.id, limit: 1}
			s.add(Event{K: kindLock, W: "w1", Name: "a", Op: next.op, Limit: 1, Wait: true})
			former.grantedWith(3, s.t+1000*ms).unlock()
			next.token = 4
			next.event(kindGranted, Event{Limit: 1, Until: s.t + 1000*ms})
			next.unlock()
		},
		"evicted after it was held for long": func(s *story) {
			a := s.request("w1", "a", 1).granted()
			s.add(Event{K: kindFault, Fault: "evict-keys", Early: true, Takes: 100 * ms, For: 300 * ms})
			s.t += 200 * ms
			s.request("w2", "a", 1).granted().unlock()
			a.event(kindLost, Event{Cause: "gone"}).unlock()
		},
		"a release that a failover has lost": func(s *story) {
			a := s.request("w1", "a", 1).granted()
			a.unlock()
			s.add(Event{K: kindFault, Fault: "demote-primary", Early: true, Loses: true, For: 5 * ms})
			s.add(Event{K: kindLeft, W: "w1", Name: "a", ID: a.id, Note: "a grant"})
		},
		"a grant of a request that could not be undone for three TTLs": undoneFor(1900 * ms),
		"a grant of a client that was paused for the rest of three TTLs": func(s *story) {
			undoneFor(1000 * ms)(s)
			s.add(Event{K: kindPause, W: "w1", For: 900 * ms})
			s.t += 900 * ms
			s.add(Event{K: kindResume, W: "w1", For: 900 * ms})
		},
		"tokens repeat in a store that was rewound, until its clients notice": func(s *story) {
			s.request("w1", "a", 1).grantedWith(5, s.t+1000*ms).unlock()
			s.add(Event{K: kindFault, Fault: "restore", Early: true, Rewinds: true})
			s.add(Event{K: kindHealed, Fault: "restore"})
			s.request("w2", "a", 1).grantedWith(3, s.t+1000*ms).unlock()
			s.request("w2", "a", 1).grantedWith(5, s.t+1000*ms).unlock()
			s.t += 1000 * ms
			s.request("w2", "a", 1).grantedWith(6, s.t+1000*ms).unlock()
		},
		"a waiter that recalls a kept lock":                          sticky(60000*ms, recalled(4500*ms, nil)),
		"a waiter that recalls a kept lock which is used until then": sticky(60000*ms, recalled(4500*ms, again(900*ms))),
		"a waiter behind a kept lock that is held for long again": sticky(60000*ms, recalled(9000*ms, func(s *story, a *lock) {
			a.take()
			s.t += 8000 * ms
			a.keep(60000 * ms)
		})),
		"a waiter behind the kept lock of a killed worker": sticky(60000*ms, func(s *story, _ *lock) {
			s.add(Event{K: kindKill, W: "w1"})
			q := s.request("w2", "a", 1).placed()
			s.t += 58000 * ms
			q.granted().unlock()
		}),
		"a waiter behind a kept lock whose worker is cut off": sticky(60000*ms, recalled(12000*ms, func(s *story, _ *lock) {
			s.add(Event{K: kindFault, Fault: faultCut, W: "w1"})
			s.t += 3000 * ms
			s.add(Event{K: kindHealed, Fault: faultCut, W: "w1"})
		})),
		"refused beside a kept lock": sticky(8000*ms, func(s *story, a *lock) {
			s.t += 9000 * ms
			s.try("w3", "a", 1)
			s.add(Event{K: kindFreed, W: "w1", Name: "a", ID: a.id, Token: 1})
		}),
		"a kept lock that is taken after a break, before its worker notices": sticky(60000*ms, func(s *story, a *lock) {
			s.add(Event{K: kindFault, Fault: faultBreak, Name: "a", Early: true})
			s.add(Event{K: kindHealed, Fault: faultBreak, Name: "a"})
			b := s.request("w2", "a", 1).grantedWith(66, s.t+1000*ms)
			a.take().event(kindLost, Event{Cause: "taken"}).unlock()
			b.unlock()
		}),
		"taken away by a rewind, with a smaller token": func(s *story) {
			a := s.request("w1", "a", 1).grantedWith(5, s.t+1000*ms)
			s.add(Event{K: kindFault, Fault: "restore", Early: true, Rewinds: true})
			b := s.request("w2", "a", 1).grantedWith(3, s.t+1000*ms)
			a.event(kindLost, Event{Cause: "gone"}).unlock()
			b.unlock()
			s.add(Event{K: kindHealed, Fault: "restore"})
		},
	} {
		t.Run(name, func(t *testing.T) { judgeStory(t, record, "", "") })
	}
}

func TestBrokenHistoriesAreConvicted(t *testing.T) {
	for _, test := range []struct {
		name  string
		rule  Rule
		text  string // a part of the violation's text
		spoil func(s *story)
	}{
		{"two at once", RuleExclusion, "held by 2 at once where at most 1", func(s *story) {
			a := s.request("w1", "a", 1).granted()
			s.request("w2", "a", 1).granted().unlock()
			a.unlock()
		}},
		{"a smaller token used after a larger one", RuleModel, "that of 2 grants, tokens 4 to 5", func(s *story) {
			a, b := s.request("w1", "a", 1), s.request("w2", "a", 1)
			b.grantedWith(5, s.t+1000*ms).unlock()
			a.grantedWith(4, s.t+1000*ms).unlock()
		}},
		{"two readers and a writer", RuleExclusion, "held by 3 at once where at most 1", func(s *story) {
			a, b := s.request("w1", "a", driver.Unlimited).granted(), s.request("w2", "a", driver.Unlimited).granted()
			s.request("w3", "a", 1).granted().unlock()
			a.unlock()
			b.unlock()
		}},
		{"three of two permits", RuleExclusion, "held by 3 at once where at most 2", func(s *story) {
			a, b := s.request("w1", "a", 2).granted(), s.request("w2", "a", 2).granted()
			s.request("w3", "a", 2).granted().unlock()
			a.unlock()
			b.unlock()
		}},
		{"the next begins before the validity has ended", RuleExclusion, "held by 2", func(s *story) {
			a := s.request("w1", "a", 1).granted()
			s.t += 400 * ms // the first lease is valid for 600 ms more
			b := s.request("w2", "a", 1).granted()
			s.t += 700 * ms
			a.event(kindLost, Event{Cause: "expired"}).unlock()
			b.unlock()
		}},
		{"taken away, and not noticed for long", RuleExclusion, "held by 2", func(s *story) {
			a := s.request("w1", "a", 1).grantedWith(1, s.t+20000*ms)
			s.add(Event{K: kindFault, Fault: "lose", Name: "a", Early: true})
			b := s.request("w2", "a", 1).granted()
			s.t += 2000 * ms
			a.event(kindLost, Event{Cause: "gone"}).unlock()
			b.unlock()
		}},
		{"taken away, and noticed after the declared time", RuleExclusion, "held by 2", noticed(50 * ms)},
		{"taken away, and noticed late after the server could be reached again", RuleExclusion, "held by 2",
			noticed(50*ms, Event{Fault: faultDropServer}, Event{Fault: faultCut, W: "w1"})},
		{"taken away, and noticed late while another worker was cut off", RuleExclusion, "held by 2",
			noticed(-50*ms, Event{Fault: faultCut, W: "w2"})},
		{"taken away, and noticed late beside a fault that leaves the server reachable", RuleExclusion, "held by 2",
			noticed(-50*ms, Event{Fault: faultBreak})},
		{"requested too late for an eviction to have ended the other", RuleExclusion, "held by 2", func(s *story) {
			s.add(Event{K: kindFault, Fault: "evict-keys", Early: true, Takes: 100 * ms, For: 300 * ms})
			s.t += 200 * ms
			a := s.request("w1", "a", 1).granted()
			s.request("w2", "a", 1).granted().unlock()
			a.event(kindLost, Event{Cause: "gone"}).unlock()
		}},
		{"tokens of a rewound store that do not rise again", RuleTokens, "do not rise", func(s *story) {
			s.request("w1", "a", 1).grantedWith(5, s.t+1000*ms).unlock()
			s.add(Event{K: kindFault, Fault: "restore", Early: true, Rewinds: true})
			s.add(Event{K: kindHealed, Fault: "restore"})
			s.t += 1000 * ms
			s.request("w2", "a", 1).grantedWith(4, s.t+1000*ms).unlock()
		}},
		{"two holders before a rewind", RuleExclusion, "held by 2", func(s *story) {
			a := s.request("w1", "a", 1).granted()
			s.request("w2", "a", 1).granted().unlock()
			a.unlock()
			s.add(Event{K: kindFault, Fault: "restore", Early: true, Rewinds: true})
			s.add(Event{K: kindHealed, Fault: "restore"})
		}},
		{"a context that does not end", RuleValidity, "went on", func(s *story) {
			a := s.request("w1", "a", 1).granted()
			s.t += 1100 * ms
			a.event(kindAlive, Event{}).unlock()
		}},
		{"validity beyond the deadline", RuleValidity, "beyond the last deadline", func(s *story) {
			s.request("w1", "a", 1).grantedWith(1, s.t+1500*ms).unlock()
		}},
		{"a token twice", RuleTokens, "the same token 1", func(s *story) {
			s.request("w1", "a", 1).granted().unlock()
			s.request("w2", "a", 1).grantedWith(1, s.t+1000*ms).unlock()
		}},
		{"a smaller token", RuleTokens, "do not rise", func(s *story) {
			s.request("w1", "a", 1).grantedWith(7, s.t+1000*ms).unlock()
			s.request("w2", "a", 1).grantedWith(6, s.t+1000*ms).unlock()
		}},
		{"a lost update", RuleRegister, "both read 0 and both wrote 1", func(s *story) {
			s.request("w1", "a", 1).granted().work().unlock()
			s.request("w2", "a", 1).granted().workOn(0).unlock()
		}},
		{"a value out of nowhere", RuleRegister, "no update has written that", func(s *story) {
			s.request("w1", "a", 1).granted().work().unlock()
			s.request("w2", "a", 1).granted().workOn(5).unlock()
		}},
		{"a MinHold that the store drops", RuleKept, "had to stand for 97ms more", kept(1, 400, nil)},
		{"a MinHold that the store drops for readers", RuleKept, "had to stand", kept(driver.Unlimited, 400, nil)},
		{"a MinHold that the store drops beside a fault that takes nothing", RuleKept, "had to stand", kept(1, 400, func(s *story) {
			s.add(Event{K: kindFault, Fault: faultDropServer})
		})},
		{"a MinHold that the store drops beside a break of another name", RuleKept, "had to stand", kept(1, 400, func(s *story) {
			s.add(Event{K: kindFault, Fault: faultBreak, Early: true, Name: "b"})
		})},
		{"a MinHold that the store drops after its holder was killed", RuleKept, "had to stand", kept(1, 400, func(s *story) {
			s.add(Event{K: kindKill, W: "w1"})
		})},
		{"a MinHold that the Locker does not send", RuleKept, "had to stand", func(s *story) {
			s.events[0].Store.Linger = true
			s.request("w1", "a", 1).granted().event(kindUnlock, Event{For: 500 * ms}).event(kindUnlocked, Event{})
			s.request("w2", "a", 1).granted().unlock()
		}},
		{"a MinHold that the Locker does not keep", RuleKept, "had to stand", func(s *story) {
			s.request("w1", "a", 1).granted().event(kindUnlock, Event{For: 500 * ms}).event(kindUnlocked, Event{})
			s.request("w2", "a", 1).granted().unlock()
		}},
		{"overtaking", RuleOrder, "was served after it", func(s *story) {
			h := s.request("w0", "a", 1).granted()
			a := s.request("w1", "a", 1).placed()
			b := s.request("w2", "a", 1).placed()
			h.unlock()
			b.granted().unlock()
			a.granted().unlock()
		}},
		{"overtaking a waiter that is not the first one in a stall", RuleOrder, "was served after it", func(s *story) {
			h := s.request("w0", "a", 1).granted()
			first := s.request("w1", "a", 1).placed()
			a := s.request("w2", "a", 2).placed()
			b := s.request("w3", "a", 1).placed()
			h.unlock()
			s.stall()
			first.granted().unlock()
			b.granted().unlock()
			a.granted().unlock()
		}},
		{"overtaking the first waiter after a stall", RuleOrder, "was served after it", func(s *story) {
			h := s.request("w0", "a", 1).granted()
			s.stall()
			a := s.request("w1", "a", 1).placed()
			b := s.request("w2", "a", 1).placed()
			h.unlock()
			b.granted().unlock()
			a.granted().unlock()
		}},
		{"a reader that overtakes a waiting writer", RuleOrder, "was served after it", func(s *story) {
			h := s.request("w0", "a", driver.Unlimited).granted()
			a := s.request("w1", "a", 1).placed()
			b := s.request("w2", "a", driver.Unlimited).granted()
			h.unlock()
			b.unlock()
			a.granted().unlock()
		}},
		{"a reader that overtakes a waiting reader", RuleOrder, "was served after it", func(s *story) {
			h := s.request("w0", "a", 1).granted()
			a := s.request("w1", "a", driver.Unlimited).placed()
			b := s.request("w2", "a", driver.Unlimited).placed()
			h.unlock()
			b.granted()
			s.t += 600 * ms
			a.granted().unlock()
			b.unlock()
		}},
		{"a permit that overtakes a waiting one, without room for both", RuleOrder, "was served after it", func(s *story) {
			h, o := s.request("w0", "a", 2).granted(), s.request("w3", "a", 2).granted()
			a := s.request("w1", "a", 2).placed()
			b := s.request("w2", "a", 2).placed()
			h.unlock()
			b.granted()
			o.unlock()
			a.granted().unlock()
			b.unlock()
		}},
		{"no waiter is woken", RuleWaiting, "never got", func(s *story) {
			h := s.request("w0", "a", 1).granted()
			a := s.request("w1", "a", 1).placed()
			h.unlock()
			s.t += 3000 * ms
			a.event(kindStuck, Event{})
		}},
		{"a free lock is not given", RuleLate, "which was free", func(s *story) {
			h := s.request("w0", "a", 1).granted()
			a := s.request("w1", "a", 1).placed()
			h.unlock()
			s.t += 4000 * ms
			a.granted().unlock()
		}},
		{"a free lock is not given, long after a killed reader", RuleLate, "which was free", func(s *story) {
			s.request("w0", "a", driver.Unlimited).granted()
			s.add(Event{K: kindKill, W: "w0"})
			s.t += 3000 * ms
			h := s.request("w1", "a", 1).granted()
			a := s.request("w2", "a", 1).placed()
			h.unlock()
			s.t += 4000 * ms
			a.granted().unlock()
		}},
		{"a lock is not given after an undo", RuleLate, "which was free", func(s *story) {
			h := s.request("w0", "a", 1).granted()
			lost := s.request("w1", "a", 1)
			a := s.request("w2", "a", 1).placed()
			h.unlock()
			lost.lose()
			lost.undo()
			lost.event(kindFailed, Event{})
			s.t += 4000 * ms
			a.granted().unlock()
		}},
		{"a free lock is not given, while a request behind its waiter is lost", RuleLate, "which was free", func(s *story) {
			h := s.request("w0", "a", 1).granted()
			a := s.request("w2", "a", 1).placed()
			lost := s.request("w1", "a", 1)
			h.unlock()
			lost.lose()
			s.t += 4000 * ms
			lost.undo()
			lost.event(kindFailed, Event{})
			a.granted().unlock()
		}},
		{"refused long after the TTL of a killed holder", RuleLate, "had been free", killed(1, 3000*ms, false)},
		{"a killed holder that keeps a waiter out", RuleLate, "which was free", killed(1, 5000*ms, true)},
		{"a killed permit whose place lasts as long as the other one", RuleLate, "which was free", killed(2, 5000*ms, true)},
		{"a waiter of a fair lock long after dead ones", RuleLate, "which was free", deadBefore(6100*ms, true, false)},
		{"a waiter of a fair lock without dead ones", RuleLate, "which was free", deadBefore(3100*ms, true, true)},
		{"refused a fair lock without dead waiters", RuleLate, "had been free", deadBefore(3100*ms, false, true)},
		{"refused a permit beside a long one", RuleLate, "had been free", killed(2, 3000*ms, false)},
		{"refused a permit beside one of another limit", RuleLate, "had been free", twoLimits(true)},
		{"refused a permit beside the first one", RuleLate, "had been free", firstPermit(true)},
		{"refused long after the death of the first waiter", RuleLate, "had been free", place(driver.OrderLongest, 5500*ms, false)},
		{"refused for a waiter that has left", RuleLate, "had been free", place(driver.OrderLongest, 2500*ms, true)},
		{"refused for a writer without a place", RuleLate, "had been free", writer(driver.OrderNone)},
		{"refused for a dead waiter without a place", RuleLate, "had been free", place(driver.OrderNone, 2500*ms, false)},
		{"refused long after a restore", RuleLate, "had been free", restored(11000*ms, false)},
		{"refused after a restore and the next grant", RuleLate, "had been free", restored(4000*ms, true)},
		{"refused long after a MinHold", RuleLate, "had been free", func(s *story) {
			s.request("w1", "a", 1).granted().leave()
			s.t += 2000 * ms
			s.try("w3", "a", 1)
		}},
		{"a waiter that is not served after a server was away", RuleLate, "which was free", func(s *story) {
			h := s.request("w1", "a", 1).granted()
			q := s.request("w2", "a", 1).placed()
			s.add(Event{K: kindFault, Fault: faultKillServer})
			h.unlock()
			s.add(Event{K: kindHealed, Fault: faultKillServer})
			s.t += 5000 * ms
			q.granted().unlock()
		}},
		{"a kept lock is not recalled", RuleLate, "kept after its Unlock", sticky(60000*ms, recalled(6000*ms, nil))},
		{"a kept lock is taken again and again beside a waiter", RuleLate, "kept after its Unlock", sticky(60000*ms, recalled(6000*ms, again(5500*ms)))},
		{"a kept lock is not recalled long after its worker was cut off", RuleLate, "kept after its Unlock", sticky(60000*ms, recalled(18000*ms, func(s *story, _ *lock) {
			s.add(Event{K: kindFault, Fault: faultCut, W: "w1"})
			s.t += 3000 * ms
			s.add(Event{K: kindHealed, Fault: faultCut, W: "w1"})
		}))},
		{"the kept lock of a killed worker stands for longer than its TTL", RuleLate, "which was free", sticky(60000*ms, func(s *story, _ *lock) {
			s.add(Event{K: kindKill, W: "w1"})
			q := s.request("w2", "a", 1).placed()
			s.t += 64000 * ms
			q.granted().unlock()
		})},
		{"refused beside a lock that is kept for too long", RuleLate, "kept after its Unlock", sticky(8000*ms, func(s *story, a *lock) {
			s.t += 11000 * ms
			s.try("w3", "a", 1)
			s.add(Event{K: kindFreed, W: "w1", Name: "a", ID: a.id, Token: 1})
		})},
		{"a kept lock is taken beside the next holder", RuleExclusion, "held by 2", sticky(60000*ms, func(s *story, a *lock) {
			b := s.request("w2", "a", 1).grantedWith(66, s.t+1000*ms)
			a.take().unlock()
			b.unlock()
		})},
		{"a kept lock is taken long after a break", RuleExclusion, "held by 2", sticky(60000*ms, func(s *story, a *lock) {
			s.add(Event{K: kindFault, Fault: faultBreak, Name: "a", Early: true})
			s.add(Event{K: kindHealed, Fault: faultBreak, Name: "a"})
			s.t += 3000 * ms
			b := s.request("w2", "a", 1).grantedWith(66, s.t+1000*ms)
			a.take().unlock()
			b.unlock()
		})},
		{"every handoff takes as long as a poll", RuleWaiting, "waiters are not woken", func(s *story) {
			h := s.request("w0", "a", 1).granted()
			for range 9 {
				a := s.request("w1", "a", 1).placed()
				h.unlock()
				s.t += 800 * ms
				h = a.granted()
			}
			h.unlock()
		}},
		{"an unlock without end", RuleWaiting, "did not return", func(s *story) {
			s.request("w1", "a", 1).granted().event(kindUnlock, Event{})
		}},
		{"a request that is not undone", RuleLeftovers, "has not undone it", func(s *story) {
			l := s.request("w1", "a", 1)
			s.add(Event{K: kindUnknown, W: "w1", Name: "a", ID: l.id})
			l.event(kindFailed, Event{})
			s.add(Event{K: kindStop, W: "w1"})
		}},
		{"a grant that stays", RuleLeftovers, "left behind", func(s *story) {
			s.add(Event{K: kindLeft, Name: "a", Note: "a grant"})
		}},
		{"a grant of a request that was undone too shortly", RuleLeftovers, "left behind", undoneFor(1700 * ms)},
		{"a grant that stays long after a failover", RuleLeftovers, "left behind", func(s *story) {
			a := s.request("w1", "a", 1).granted()
			a.unlock()
			s.add(Event{K: kindFault, Fault: "demote-primary", Early: true, Loses: true, For: 5 * ms})
			s.t += int64(time.Minute)
			s.add(Event{K: kindLeft, W: "w1", Name: "a", ID: a.id, Note: "a grant"})
		}},
		{"a grant that stays before a failover", RuleLeftovers, "left behind", func(s *story) {
			a := s.request("w1", "a", 1).granted()
			a.unlock()
			s.add(Event{K: kindLeft, W: "w1", Name: "a", ID: a.id, Note: "a grant"})
			s.add(Event{K: kindFault, Fault: "demote-primary", Early: true, Loses: true, For: 5 * ms})
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			r, v := judgeStory(t, test.spoil, test.rule, test.text)
			if len(v.Excerpt) > 14 || len(v.Excerpt) == 0 && !strings.Contains(v.Text, "handoffs") {
				t.Errorf("the excerpt has %d events, want 1 to 14:%s", len(v.Excerpt), explain(r))
			}
		})
	}
}

// TestModelAgreesWithSweep makes correct histories, and changes every other one at random. It
// requires that the model and the sweep of RuleExclusion convict the same histories, so that each
// verifies the other.
func TestModelAgreesWithSweep(t *testing.T) {
	broken := 0
	for seed := range uint64(300) {
		s := simulate(seed, 400)
		rng := rand.New(rand.NewPCG(seed, 99))
		if seed%2 == 1 {
			// One holder unlocks up to 30 ms later.
			i := rng.IntN(len(s.events))
			for s.events[i].K != kindUnlock {
				i = (i + 1) % len(s.events)
			}
			s.events[i].T += int64(rng.IntN(30)) * ms
			slices.SortStableFunc(s.events, func(a, b Event) int { return int(a.T - b.T) })
		}
		r := s.judge(t)
		rules := map[Rule]bool{}
		for _, v := range r.Violations {
			rules[v.Rule] = true
		}
		if rules[RuleModel] != rules[RuleExclusion] {
			t.Fatalf("seed %d: model and sweep disagree: %v%s", seed, rules, explain(r))
		}
		if seed%2 == 0 && !r.OK() {
			t.Fatalf("seed %d: convicted a correct history:%s", seed, explain(r))
		}
		if !r.OK() {
			broken++
		}
	}
	if broken < 50 {
		t.Fatalf("only %d of 150 changed histories were broken, want 50 or more", broken)
	}
}

// TestLargeHistoryIsJudgedInBoundedMemory limits the memory to judge 100,000 events, and
// logs the time.
func TestLargeHistoryIsJudgedInBoundedMemory(t *testing.T) {
	s := simulate(1, 100_000)
	if len(s.events) < 100_000 {
		t.Fatalf("only %d events", len(s.events))
	}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	began := time.Now()
	r := s.judge(t)
	took := time.Since(began)
	runtime.ReadMemStats(&after)
	t.Logf("%d events, %d grants: %s, %d MB allocated", r.Stats.Events, r.Stats.Grants, took, (after.TotalAlloc-before.TotalAlloc)>>20)
	if !r.OK() {
		t.Fatalf("convicted a correct history:%s", explain(r))
	}
	// TotalAlloc is the sum of all allocations, so the test uses the size of the heap.
	if used := after.HeapSys; used > 1<<30 {
		t.Errorf("the heap grew to %d MB, want less than 1024", used>>20)
	}
	// The judge finds a violation at the end of a large history.
	a := s.request("w1", "name-0", 1).granted()
	s.request("w2", "name-0", 1).granted().unlock()
	a.unlock()
	if r := s.judge(t); r.OK() {
		t.Error("the judge did not find a violation at the end of a large history")
	}
}

// simulate returns a correct history with at least that many events. Four workers, w0 to w2 and
// w5, lock four names as writers, as readers and with permits.
func simulate(seed uint64, events int) *story {
	rng := rand.New(rand.NewPCG(seed, 1))
	s := newStory()
	for len(s.events) < events {
		n := fmt.Sprintf("name-%d", rng.IntN(4))
		limit := []int{1, 1, 2, driver.Unlimited}[rng.IntN(4)]
		group := min(limit, 1+rng.IntN(3))
		var locks []*lock
		for i := range group {
			locks = append(locks, s.request(fmt.Sprintf("w%d", i), n, limit))
		}
		next := s.request("w5", n, 1)
		for _, l := range locks {
			l.granted()
		}
		next.placed()
		for _, l := range locks {
			if limit == 1 {
				l.work()
			}
			l.unlock()
		}
		next.granted().work().unlock()
	}
	return s
}

func explain(r *Report) string {
	var b strings.Builder
	_ = r.Explain(&b)
	return b.String()
}

// TestExplanationNamesTheCause requires that the explanation of an overlap names the last
// renewal and the fault before it. The stretch in which the model fails comes
// after the other findings.
func TestExplanationNamesTheCause(t *testing.T) {
	s := newStory()
	for i := range 50 { // events without a connection to the overlap
		s.request(fmt.Sprintf("w%d.1", i%3), "n", driver.Exclusive).granted().unlock()
	}
	a := s.request("w0.1", "n", driver.Exclusive).granted()
	a.event(kindRenewed, Event{Until: s.t + 5000*ms})
	s.add(Event{K: kindFault, Fault: "refuse-command", Note: "HSET", For: 400 * ms})
	s.request("w1.1", "n", driver.Exclusive).granted().unlock()
	a.unlock()
	for range 50 {
		s.request("w2.1", "n", driver.Exclusive).granted().unlock()
	}
	r, err := Judge(s.events)
	must.Succeed(t, err)
	var b strings.Builder
	must.Succeed(t, r.Explain(&b))
	for _, want := range []string{
		"before it: token 51 of w0.1 was last renewed",
		"before it: fault refuse-command (HSET)",
		"that of 2 grants, tokens 51 to 52",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("the explanation does not contain %q:%s", want, b.String())
		}
	}
	if exclusion, model := strings.Index(b.String(), "\nexclusion: "), strings.Index(b.String(), "\nmodel: "); exclusion < 0 || model < exclusion {
		t.Errorf("the violation of the model is not after that of exclusion:%s", b.String())
	}
}
