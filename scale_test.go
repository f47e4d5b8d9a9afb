//go:build !race

package holdfast

import (
	"flag"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/backoff"
)

// # Scale
//
// A simulation of many clients of one server, each with a connection of its own and one name: it holds the lock or
// waits for it. Time is simulated, and nothing runs in the background. A lease is the library's own state machine, and the
// delays are those of the library. The server is a queue: it serves one request after the other, and each takes as
// long as one took a real server. A request that is answered too late has failed for its client, and has cost the server
// its time. So has a connection, which each client opens again after an outage.
//
//	go test -run TestScale . -v -scale 100000
//
// docs/capacity.md has the results, beside those of real servers.

var (
	scaleClients = flag.Int("scale", 0, "simulate this number of clients of each server, and print what the server gets")
	scaleOutage  = flag.Duration("outage", 15*time.Second, "for how long the simulated server is away")
	scaleGroup   = flag.Int("group", 1, "of so many simulated clients one holds a lock, and the others wait for it")
)

type scaleStep uint8

const (
	renewStep scaleStep = iota
	checkStep
	waitStep
	connectStep
	upkeepStep
	scaleSteps
)

// scaleStore has the times of a store, which are in its package, and its costs, which BenchmarkScale of e2e measures.
type scaleStore struct {
	name string
	// requests are those of a step. A request has that many bytes in both directions, and keeps the server busy for that
	// long. A new connection keeps it busy for longer by connect.
	requests      [scaleSteps]float64
	bytes         float64
	busy, connect time.Duration
	// shard is how many clients one server gets: more of them lose locks if it is away for 15 s.
	shard int
	// A client checks its grant at an interval, unless it was proven for less than provenFor. At that interval the
	// upkeep of a client is due: what it asks the server about itself, and keeps a connection open.
	check, provenFor time.Duration
	// refresh returns the delay until the next request of a waiter, and repeat that after failed ones.
	refresh func() time.Duration
	repeat  func(*backoff.Backoff) time.Duration
	// resubscribe is the delay of the connection for messages after failures. With it the client
	// checks its grant, and refreshes its queue entry. quiet means that holders have no such connection.
	resubscribe backoff.Backoff
	quiet       bool
}

const (
	scaleTTL     = 30 * time.Second
	scaleTimeout = 5 * time.Second
	scaleSlot    = time.Millisecond // the resolution of the simulated time
	scaleTrip    = time.Millisecond // a round trip
)

// scaleEvent is due for a client. It is void if the client has set another one of its kind since.
type scaleEvent struct {
	client int32
	kind   scaleStep // connectStep: the connection for messages
	number uint8
	answer bool // to a renewal
}

type scaleClient struct {
	lease     leaseState // of a holder
	sent      time.Duration
	asked     time.Duration // when the renewal under way was sent
	proven    time.Duration
	retry     backoff.Backoff // of resubscribe, or of repeat
	number    [scaleSteps]uint8
	connected int8 // the number of outages before its connections were opened
	failed    bool // the renewal under way
}

// scaleWorld is the simulation. The outage lasts from down to up.
type scaleWorld struct {
	store    scaleStore
	clients  []scaleClient
	slots    [][]scaleEvent // a ring
	now      time.Duration
	down, up time.Duration
	free     time.Duration // when the server has served what it got
	// For each second: the requests, the work that they have given the server, the longest wait for an answer.
	requests    [scaleSteps][]float64
	busy, waits []time.Duration
	lost        int
}

// at schedules the event of a client.
func (w *scaleWorld) at(due time.Duration, i int32, kind scaleStep, answer bool) {
	c := &w.clients[i]
	c.number[kind]++
	n := max(due, w.now+scaleSlot) / scaleSlot % time.Duration(len(w.slots))
	w.slots[n] = append(w.slots[n], scaleEvent{i, kind, c.number[kind], answer})
}

// call makes a request, and returns when it is answered and whether it has failed.
func (w *scaleWorld) call(c *scaleClient, step scaleStep) (answered time.Duration, failed bool) {
	if w.now >= w.down && w.now < w.up {
		return w.now + scaleTrip, true
	}
	steps := []scaleStep{step}
	if outages := int8(min(w.now/w.up, 1)); step != connectStep && c.connected < outages {
		c.connected = outages
		steps = append(steps, connectStep)
	}
	second := int(w.now / time.Second)
	w.free = max(w.free, w.now)
	for _, step := range steps {
		n := w.store.requests[step]
		busy := time.Duration(n * float64(w.store.busy))
		if step == connectStep {
			busy += w.store.connect
		}
		w.requests[step][second] += n
		w.busy[second] += busy
		w.free += busy
	}
	answered = w.free + scaleTrip
	w.waits[second] = max(w.waits[second], answered-w.now)
	if answered > w.now+scaleTimeout {
		return w.now + scaleTimeout, true
	}
	return answered, false
}

// simulateScale simulates the clients of one server. Of each group of that size one client holds the lock. The locks are
// granted within began. The server is down from the time down, and up again after outage.
func simulateScale(s scaleStore, clients, group int, began, down, outage, end time.Duration) *scaleWorld {
	w := &scaleWorld{store: s, clients: make([]scaleClient, clients), slots: make([][]scaleEvent, 1<<15), down: down, up: down + outage}
	seconds := int(end/time.Second) + 1
	for step := range scaleSteps {
		w.requests[step] = make([]float64, seconds)
	}
	w.busy, w.waits = make([]time.Duration, seconds), make([]time.Duration, seconds)
	for i := range int32(clients) {
		c := &w.clients[i]
		first := rand.N(began)
		w.at(first+s.check, i, checkStep, false)
		if !s.quiet || int(i)%group != 0 {
			w.at(w.down+c.subscribeAgain(&s), i, connectStep, false)
		}
		if int(i)%group != 0 {
			w.at(first, i, waitStep, false)
			continue
		}
		c.sent, c.proven = first, first
		c.lease.apply(&event{kind: granted, sent: first, ttl: scaleTTL, valid: scaleTTL * 9 / 10}, &facts{now: first})
		c.lease.apply(&event{kind: opened}, &facts{now: first})
		w.at(c.lease.due(c.facts(first)), i, renewStep, false)
	}
	for ; w.now < end; w.now += scaleSlot {
		n := w.now / scaleSlot % time.Duration(len(w.slots))
		for _, e := range w.slots[n] {
			if c := &w.clients[e.client]; c.number[e.kind] == e.number {
				w.step(c, e)
			}
		}
		w.slots[n] = w.slots[n][:0]
	}
	return w
}

func (c *scaleClient) facts(now time.Duration) *facts {
	return &facts{now: now, age: now - c.sent, used: true}
}

func (c *scaleClient) subscribeAgain(s *scaleStore) time.Duration {
	if c.retry.Max == 0 {
		c.retry = s.resubscribe
	}
	return c.retry.Next()
}

func (w *scaleWorld) step(c *scaleClient, e scaleEvent) {
	switch e.kind {
	case renewStep:
		w.renewal(c, e)
	case checkStep:
		next := w.now + w.store.check
		if w.store.requests[upkeepStep] > 0 {
			w.call(c, upkeepStep)
		}
		if !c.lease.alive() {
			w.at(next, e.client, checkStep, false)
			return
		}
		if c.proven == 0 { // internal/held spreads the checks after a reason to check all grants
			next -= rand.N(w.store.check * 7 / 8)
		}
		if w.now-c.proven >= w.store.provenFor {
			answered, failed := w.call(c, checkStep)
			if !failed {
				c.proven = w.now
			}
			next = max(next, answered+w.store.check/8)
		}
		w.at(next, e.client, checkStep, false)
	case waitStep:
		answered, failed := w.call(c, waitStep)
		if failed {
			w.at(answered+w.store.repeat(&c.retry), e.client, waitStep, false)
			return
		}
		c.retry = backoff.Backoff{}
		w.at(answered+w.store.refresh(), e.client, waitStep, false)
	case connectStep:
		answered, failed := w.call(c, connectStep)
		switch {
		case failed:
			w.at(answered+c.subscribeAgain(&w.store), e.client, connectStep, false)
		case c.lease.alive():
			c.proven = 0 // so that the check includes the grant
			w.at(answered, e.client, checkStep, false)
		default:
			c.retry = backoff.Backoff{}
			w.at(answered, e.client, waitStep, false)
		}
	}
}

// renewal applies what is due for a lease.
func (w *scaleWorld) renewal(c *scaleClient, e scaleEvent) {
	var fx effects
	switch {
	case !e.answer:
		fx = c.lease.apply(&event{kind: ticked}, c.facts(w.now))
	case c.failed:
		fx = c.lease.apply(&event{kind: renewalFailed, keep: renewAgain(scaleTTL)}, c.facts(w.now))
	default:
		c.sent, c.proven = c.asked, c.asked
		fx = c.lease.apply(&event{kind: renewed, sent: c.sent, ttl: scaleTTL, valid: scaleTTL * 9 / 10, early: rand.Float64()}, c.facts(w.now))
	}
	switch {
	case fx.do&renew != 0:
		c.asked = w.now
		var answered time.Duration
		answered, c.failed = w.call(c, renewStep)
		w.at(answered, e.client, renewStep, true)
	case c.lease.alive():
		w.at(c.lease.due(c.facts(w.now)), e.client, renewStep, false)
	default:
		w.lost++
	}
}

// rate returns the mean and the peak of the requests in a second, of the steps or of all, from one time to another.
func (w *scaleWorld) rate(from, to time.Duration, steps ...scaleStep) (mean, peak float64) {
	if steps == nil {
		steps = []scaleStep{renewStep, checkStep, waitStep, connectStep, upkeepStep}
	}
	for second := int(from / time.Second); second < int(to/time.Second); second++ {
		n := 0.0
		for _, step := range steps {
			n += w.requests[step][second]
		}
		mean, peak = mean+n, max(peak, n)
	}
	return mean / (to - from).Seconds(), peak
}

func jitter(d time.Duration) time.Duration { return d - rand.N(d/5+1) }

var scaleRedis = scaleStore{
	name: "Redis", requests: [scaleSteps]float64{1, 1, 1, 6, 2}, bytes: 600, busy: 30 * time.Microsecond, shard: 8000,
	check: time.Second, provenFor: 1200 * time.Millisecond,
	refresh: func() time.Duration { return jitter(700 * time.Millisecond) },
	repeat: func(b *backoff.Backoff) time.Duration {
		b.First, b.Max = 40*time.Millisecond, 700*time.Millisecond
		return jitter(b.Next())
	},
	resubscribe: backoff.Backoff{First: 5 * time.Millisecond, Max: time.Second},
}

var scaleStores = []scaleStore{scaleRedis, {
	name: "etcd", requests: [scaleSteps]float64{1, 1, 1.2, 8, 2.1}, bytes: 70, busy: 100 * time.Microsecond, shard: 2000,
	check:       time.Second,
	refresh:     func() time.Duration { return time.Second },
	repeat:      func(b *backoff.Backoff) time.Duration { return time.Second },
	resubscribe: backoff.Backoff{First: 250 * time.Millisecond, Max: time.Second},
}, {
	name: "PostgreSQL, optimistic", requests: [scaleSteps]float64{1, 1, 1, 3}, busy: 100 * time.Microsecond, connect: 3 * time.Millisecond, shard: 1000,
	check:       time.Second,
	refresh:     func() time.Duration { return time.Second - rand.N(500*time.Millisecond) },
	repeat:      func(b *backoff.Backoff) time.Duration { return time.Second - rand.N(500*time.Millisecond) },
	resubscribe: backoff.Backoff{First: 500 * time.Millisecond, Max: 500 * time.Millisecond},
	quiet:       true,
}}

// TestScale prints what the simulated clients make of a server that is away for a while.
func TestScale(t *testing.T) {
	if *scaleClients == 0 {
		t.Skip("without -scale")
	}
	const down, end = 60 * time.Second, 110 * time.Second
	outage := *scaleOutage
	for _, s := range scaleStores {
		servers := (*scaleClients + s.shard - 1) / s.shard
		w := simulateScale(s, *scaleClients/servers, *scaleGroup, scaleTTL/3, down, outage, end)
		steady, _ := w.rate(40*time.Second, down)
		_, storm := w.rate(down+outage, down+outage+8*time.Second)
		_, later := w.rate(down+outage+8*time.Second, end)
		renewals, _ := w.rate(40*time.Second, down, renewStep)
		_, renewStorm := w.rate(down+outage, end, renewStep)
		busy, longest := time.Duration(0), slices.Max(w.waits[down/time.Second:])
		for _, b := range w.busy[40:60] {
			busy += b
		}
		n := float64(servers)
		t.Logf("%s, %d clients in groups of %d, servers %d: requests/s %.0f, after the outage up to %.0f, later up to %.0f; "+
			"renewals/s %.0f, after the outage up to %.0f; KB/s %.0f; a server: cores %.3f, longest wait %s, lost locks %d",
			s.name, *scaleClients, *scaleGroup, servers, n*steady, n*storm, n*later, n*renewals, n*renewStorm, n*steady*s.bytes/1000,
			busy.Seconds()/20, longest.Round(time.Millisecond), w.lost)
	}
}

// TestRenewalsDoNotStayInStep: the leases of many clients are granted within a second, or their renewals fail for
// 15 s. From the renewal after next on they are spread over their interval, and no lease has ended.
func TestRenewalsDoNotStayInStep(t *testing.T) {
	const clients = 5000
	steady := clients / (scaleTTL / 3).Seconds()
	for name, w := range map[string]*scaleWorld{
		"granted at one moment": simulateScale(scaleRedis, clients, 1, time.Second, time.Hour, 0, 100*time.Second),
		"after an outage":       simulateScale(scaleRedis, clients, 1, scaleTTL/3, 30*time.Second, 15*time.Second, 100*time.Second),
	} {
		_, peak := w.rate(50*time.Second, 100*time.Second, renewStep)
		if peak > 2*steady {
			t.Errorf("%s: up to %.0f renewals in a second, %.0f on average", name, peak, steady)
		}
		if w.lost > 0 {
			t.Errorf("%s: %d leases have ended", name, w.lost)
		}
	}
}
