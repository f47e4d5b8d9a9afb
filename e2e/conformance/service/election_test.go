package service

import (
	"context"
	"errors"
	"flag"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/check"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/must"
)

var changes = flag.Int("changes", 10, "how often the leader changes, on each store")

// candidates is the number of replicas in an election.
const candidates = 4

// term is the interval in which one replica leads.
type term struct {
	token uint64
	p     *process
	begin time.Duration
	// live is the last time at which the leader's context had certainly not ended.
	live time.Duration
	over bool
	// outage reports whether the server was away during the term.
	outage bool
}

// election follows the candidates of a test.
type election struct {
	t     *testing.T
	w     worker
	lines chan report
	terms []*term
	leads *term // nil between two terms
	ready map[*process]bool
}

// take records one report.
func (e *election) take(r report) {
	switch r.Kind {
	case "candidate":
		e.ready[r.worker] = true
	case "leads":
		e.leads = &term{token: r.Token, p: r.worker, begin: r.At, live: r.At}
		e.terms = append(e.terms, e.leads)
	case "led":
		for _, term := range e.terms {
			if term.p == r.worker && term.token == r.Token {
				term.live, term.over = max(term.live, r.Live), true
			}
		}
	case "exited":
		delete(e.ready, r.worker)
	}
	if e.leads != nil && (e.leads.over || r.Kind == "exited" && r.worker == e.leads.p) {
		e.leads = nil
	}
}

// until takes reports until done returns true.
func (e *election) until(what string, done func() bool) {
	e.t.Helper()
	for end := time.After(testTimeout); !done(); {
		select {
		case r := <-e.lines:
			e.take(r)
		case <-end:
			e.t.Fatalf("change %d: no %s", len(e.terms), what)
		}
	}
}

func (e *election) newLeader(than *term) {
	e.t.Helper()
	e.until("new leader", func() bool { return e.leads != nil && e.leads != than })
}

// fill starts n replicas, and waits until all candidates are ready.
func (e *election) fill(n int) {
	e.t.Helper()
	for range n {
		e.w.start(e.t, e.lines)
	}
	e.until("candidate", func() bool { return len(e.ready) >= candidates })
}

// testElection changes the leader by SIGTERM, SIGKILL, SIGSTOP and outages of the server.
// The contexts of two leaders do not live at the same time; after an outage they may, for
// as long as the store declares. Tokens rise.
func testElection(t *testing.T, s store, srv server, url string) {
	observer := open(t, url)
	g, err := observer.Guarantees(t.Context())
	must.Succeed(t, err)
	e := &election{t: t, lines: make(chan report, 10000), ready: map[*process]bool{},
		w: worker{Role: "lead", URL: url, Name: "leader", TTL: s.ttl}}
	e.fill(candidates)
	observed := observe(t, observer)

	var steps []time.Duration // from SIGTERM to the next leader
	counts := map[string]int{}
	for i := range *changes {
		e.newLeader(nil)
		was := e.leads
		kind := "SIGTERM"
		switch i % 20 {
		case 3, 13:
			kind = "SIGKILL"
		case 6, 16:
			if kind = "SIGSTOP"; g.Pause == driver.PauseKeeps {
				kind = "SIGKILL"
			}
		case 9:
			if srv != nil {
				kind = "outage"
			}
		}
		counts[kind]++
		switch kind {
		case "SIGTERM":
			at := monotonic()
			was.p.signal(syscall.SIGTERM)
			e.newLeader(was)
			steps = append(steps, e.leads.begin-at)
			e.until("end", func() bool { return !e.ready[was.p] })
			e.fill(1)
		case "SIGKILL":
			was.p.signal(syscall.SIGKILL)
			e.newLeader(was)
			e.until("end", func() bool { return !e.ready[was.p] })
			e.fill(1)
		case "SIGSTOP":
			was.p.signal(syscall.SIGSTOP)
			e.newLeader(was)
			was.p.signal(syscall.SIGCONT)
			e.until("end of the paused leader's term", func() bool { return was.over })
		case "outage":
			srv.Kill()
			e.until("end of a term without a server", func() bool { return was.over })
			restart(t, srv)
			e.newLeader(was)
			for _, term := range e.terms {
				term.outage = term.outage || term == was || term == e.leads
			}
		}
	}
	observed.await(t, func() uint64 {
		e.newLeader(nil)
		return e.leads.token
	})
	for p := range e.ready {
		p.signal(syscall.SIGTERM)
	}
	e.until("end", func() bool { return len(e.ready) == 0 })
	e.judge(g)
	e.figures(s, g, steps, counts)
}

// judge compares each term with the terms before it.
func (e *election) judge(g holdfast.Guarantees) {
	slices.SortFunc(e.terms, func(a, b *term) int { return int(a.begin - b.begin) })
	for i, b := range e.terms {
		for _, a := range e.terms[:i] {
			allowed := time.Duration(0)
			if a.outage {
				allowed = g.Notice + check.Slack
			}
			if a.live > b.begin+allowed {
				e.t.Errorf("the leader of token %d led for %s after that of token %d had begun", a.token, a.live-b.begin, b.token)
			}
			if a.token >= b.token {
				e.t.Errorf("token %d came after %d", b.token, a.token)
			}
		}
	}
}

// figures logs the time until a successor leads.
func (e *election) figures(s store, g holdfast.Guarantees, steps []time.Duration, counts map[string]int) {
	if len(steps) == 0 {
		return
	}
	slices.Sort(steps)
	at := func(p int) time.Duration { return steps[(len(steps)-1)*p/100].Round(100 * time.Microsecond) }
	e.t.Logf("%s, wake-up %s, %v: p50 %s, p99 %s", s.name, g.Wake, counts, at(50), at(99))
}

// observation has the last token that Leaders has yielded.
type observation struct {
	mu      sync.Mutex
	last    uint64
	changed chan struct{}
}

// observe follows the leaders. It requires that tokens never fall, and that Leaders
// continues after an outage.
func observe(t *testing.T, l *holdfast.Locker) *observation {
	o := &observation{changed: make(chan struct{}, 1)}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	t.Cleanup(func() { cancel(); <-done })
	go func() {
		defer close(done)
		for leader, err := range l.Leaders(ctx, "leader") {
			if err != nil {
				if !errors.Is(err, holdfast.ErrUnavailable) && !errors.Is(err, holdfast.ErrRefused) {
					t.Errorf("Leaders: %v", err)
				}
				continue
			}
			if leader.Token == 0 {
				continue
			}
			o.mu.Lock()
			if leader.Token < o.last || leader.PID == 0 {
				t.Errorf("Leaders: %+v after token %d", leader, o.last)
			}
			o.last = leader.Token
			o.mu.Unlock()
			select {
			case o.changed <- struct{}{}:
			default:
			}
		}
	}()
	return o
}

// await waits until Leaders has yielded the given leader.
func (o *observation) await(t *testing.T, leader func() uint64) {
	t.Helper()
	for end := time.After(testTimeout); ; {
		o.mu.Lock()
		last := o.last
		o.mu.Unlock()
		if last == leader() {
			return
		}
		select {
		case <-o.changed:
		case <-end:
			t.Fatalf("the leader of token %d is not observed; the last one is %d", leader(), last)
		}
	}
}
