//go:build linux || darwin

package check

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/backoff"
)

// probe stands between a worker's Locker and its store. It records requests and answers,
// and injects network faults: it loses requests, loses answers, and delays both.
type probe struct {
	driver.Store
	log *historyLog
	gen int

	mu       sync.Mutex
	healed   chan struct{} // not nil while the link is cut
	dead     bool          // the link carries nothing, and every call fails at once
	drops    int           // the number of answers that are still to be lost
	out, in  time.Duration // the delays of requests and of answers
	prefixes map[string]bool
	releases atomic.Int64
}

// errLink is an error of the link, not of the store.
type errLink struct{ error }

func newProbe(s driver.Store, log *historyLog, gen int) *probe {
	return &probe{Store: s, log: log, gen: gen, prefixes: map[string]bool{}}
}

// Classify classifies every error of the link as an unknown outcome.
func (p *probe) Classify(err error) driver.Code {
	if _, ours := errors.AsType[errLink](err); ours {
		return driver.CodeUnknown
	}
	return p.Store.Classify(err)
}

// cut stops requests and answers until heal.
func (p *probe) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.healed == nil {
		p.healed = make(chan struct{})
	}
}

func (p *probe) drop(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.drops = n
}

func (p *probe) delay(out, in time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.out, p.in = out, in
}

// end ends a link that was cut forever. Waiting callers receive the error for a closed
// client.
func (p *probe) end() {
	p.mu.Lock()
	p.dead = true
	p.mu.Unlock()
	p.heal()
}

// heal ends all faults of the link.
func (p *probe) heal() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.healed != nil {
		close(p.healed)
		p.healed = nil
	}
	p.drops, p.out, p.in = 0, 0, 0
}

// send passes a request to the store, or delays or loses it.
func (p *probe) send(ctx context.Context) error {
	p.mu.Lock()
	healed, wait := p.healed, p.out
	p.mu.Unlock()
	return p.travel(ctx, healed, wait)
}

// answer passes an answer to the client, or delays or loses it.
func (p *probe) answer(ctx context.Context) error {
	p.mu.Lock()
	healed, wait := p.healed, p.in
	lost := p.drops > 0
	if lost {
		p.drops--
	}
	p.mu.Unlock()
	if lost {
		return errLink{errors.New("the connection broke before the answer came (injected)")}
	}
	return p.travel(ctx, healed, wait)
}

// travel waits until healed is closed, unless it is nil, and then for wait.
func (p *probe) travel(ctx context.Context, healed <-chan struct{}, wait time.Duration) error {
	if healed != nil {
		select {
		case <-healed:
		case <-ctx.Done():
			return errLink{fmt.Errorf("cut off (injected): %w", ctx.Err())}
		}
	}
	if wait > 0 {
		if err := backoff.Sleep(ctx, wait); err != nil {
			return errLink{fmt.Errorf("late (injected): %w", err)}
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.dead {
		return driver.Errorf(driver.CodeClosed, "the client has vanished (injected)")
	}
	return nil
}

// Acquire sends a request to the store. It records a lost answer, because no hook reports
// that.
func (p *probe) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	g, err := p.request(ctx, r, p.Store.Acquire)
	if err != nil && p.Classify(err) == driver.CodeUnknown {
		p.log.Add(Event{K: kindUnknown, Name: r.Name, ID: r.ID, Limit: r.Limit})
	}
	return g, err
}

// request sends a request to the store through acquire, a method of the store.
func (p *probe) request(ctx context.Context, r driver.Request, acquire func(context.Context, driver.Request) (driver.Grant, error)) (driver.Grant, error) {
	p.remember(r.ID)
	base := Event{Name: r.Name, ID: r.ID, Limit: r.Limit}
	e := base
	e.K, e.Wait, e.Gen, e.TTL = kindRequest, r.Wait, p.gen, int64(r.TTL)
	p.log.Add(e)
	if err := p.send(ctx); err != nil {
		return driver.Grant{}, err
	}
	if r.Wait {
		r.From = &requester{Requester: r.From, p: p, event: base}
	}
	g, err := acquire(ctx, r)
	e = base
	e.K, e.T = kindAnswer, machineTime()
	if err == nil {
		e.Token, e.TTL, e.Slot = g.Token, int64(g.TTL), g.Slot+1
	} else {
		e.Err = p.Store.Classify(err).String()
	}
	p.log.Add(e)
	if lost := p.answer(ctx); lost != nil {
		return driver.Grant{}, lost
	}
	return g, err
}

// swapProbe is the probe of a store that releases and requests in one step.
type swapProbe struct{ *probe }

// store returns the store that the worker's Locker uses.
func (p *probe) store() driver.Store {
	if _, ok := p.Store.(driver.Swapper); ok {
		return swapProbe{p}
	}
	return p
}

// Swap sends the release and the request to the store. If one answer is lost, both are
// lost.
func (p swapProbe) Swap(ctx context.Context, old driver.Grant, r driver.Request, released func(error)) (driver.Grant, error) {
	sent := false
	var lost error // not nil if the link lost the answer to the release
	g, err := p.request(ctx, r, func(ctx context.Context, r driver.Request) (driver.Grant, error) {
		sent = true
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		return p.Store.(driver.Swapper).Swap(ctx, old, r, func(err error) {
			if lost = p.answer(ctx); lost != nil {
				err = lost
				cancel()
			} else if err == nil && p.releases.Add(1)%8 == 1 {
				p.recordLeft(old.Name, old.ID, "after its Release was confirmed")
			}
			released(err)
		})
	})
	switch {
	case lost != nil:
		g, err = driver.Grant{}, lost
	case !sent && err != nil:
		released(err) // the caller receives an error, as from a Release that was not sent
	}
	if err != nil && p.Classify(err) == driver.CodeUnknown {
		p.log.Add(Event{K: kindUnknown, Name: r.Name, ID: r.ID, Limit: r.Limit})
	}
	return g, err
}

func (p *probe) remember(id string) {
	prefix, _, _ := strings.Cut(id, "-")
	p.mu.Lock()
	p.prefixes[prefix] = true
	p.mu.Unlock()
}

// requester records when the request has its queue entry.
type requester struct {
	driver.Requester
	p     *probe
	event Event
	once  sync.Once
}

func (r *requester) Queued(holders []driver.Holder) {
	r.once.Do(func() {
		r.event.K = kindPlaced
		r.p.log.Add(r.event)
	})
	r.Requester.Queued(holders)
}

func (p *probe) Undo(ctx context.Context, r driver.Request) (err error) {
	p.log.Add(Event{K: kindUndo, Name: r.Name, ID: r.ID})
	defer func() {
		if err != nil { // records that the client tried the undo until now
			p.log.Add(Event{K: kindUndo, Name: r.Name, ID: r.ID})
		}
	}()
	if err := p.send(ctx); err != nil {
		return err
	}
	if err := p.Store.Undo(ctx, r); err != nil {
		return err
	}
	if err := p.answer(ctx); err != nil {
		return err
	}
	p.log.Add(Event{K: kindUndone, Name: r.Name, ID: r.ID})
	p.recordLeft(r.Name, r.ID, "after its Undo was confirmed")
	return nil
}

func (p *probe) Renew(ctx context.Context, grants []driver.Grant) []driver.Renewal {
	fail := func(err error) []driver.Renewal {
		answers := make([]driver.Renewal, len(grants))
		for i := range answers {
			answers[i].Err = err
		}
		return answers
	}
	if err := p.send(ctx); err != nil {
		return fail(err)
	}
	answers := p.Store.Renew(ctx, grants)
	now := machineTime()
	for i, a := range answers {
		if a.Err == nil && i < len(grants) {
			p.log.Add(Event{K: kindKept, T: now, Name: grants[i].Name, ID: grants[i].ID, Token: grants[i].Token, TTL: int64(a.TTL)})
		}
	}
	if err := p.answer(ctx); err != nil {
		return fail(err)
	}
	return answers
}

func (p *probe) Release(ctx context.Context, g driver.Grant, keep time.Duration) error {
	if err := p.send(ctx); err != nil {
		return err
	}
	if err := p.Store.Release(ctx, g, keep); err != nil {
		return err
	}
	// A check of every eighth release is enough.
	if keep <= 0 && p.releases.Add(1)%8 == 1 {
		p.recordLeft(g.Name, g.ID, "after its Release was confirmed")
	}
	return p.answer(ctx)
}

// recordLeft records what an ended request has left at the store, if the store can be inspected.
func (p *probe) recordLeft(name, id, when string) {
	i, ok := p.Store.(driver.Inspector)
	if !ok {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	what := ""
	for again := range 2 {
		st, err := i.Inspect(ctx, name)
		if err != nil {
			return
		}
		if what, _ = standing(st, func(o driver.Owner) bool { return o.ID == id }); what == "" {
			return
		}
		// A leading ZooKeeper server may apply a write a little later than the follower that has
		// confirmed it, and a sync of its own clients does not wait for that.
		if again == 0 {
			sleep(ctx, 100*time.Millisecond)
		}
	}
	p.log.Add(Event{K: kindLeft, Name: name, ID: id, Note: fmt.Sprintf("%s of %q, request %s, still stands %s", what, name, id, when)})
}

// leftovers returns what this client's requests have left at the store.
func (p *probe) leftovers(ctx context.Context) (left []Event) {
	i, ok := p.Store.(driver.Inspector)
	if !ok {
		return nil
	}
	p.mu.Lock()
	ours := func(o driver.Owner) bool {
		prefix, _, _ := strings.Cut(o.ID, "-")
		return p.prefixes[prefix]
	}
	defer p.mu.Unlock()
	for st, err := range i.List(ctx, "") {
		if err != nil {
			return left
		}
		if what, id := standing(st, ours); what != "" {
			left = append(left, Event{K: kindLeft, Name: st.Name, ID: id, Note: fmt.Sprintf("%s of %q still exists after its Locker was closed", what, st.Name)})
		}
	}
	return left
}

// standing describes the first grant or queue entry whose owner matches.
func standing(st driver.State, match func(driver.Owner) bool) (what, id string) {
	for _, h := range st.Holders {
		if match(h.Owner) {
			return fmt.Sprintf("a grant (token %d)", h.Token), h.Owner.ID
		}
	}
	for _, w := range st.Waiters {
		if match(w.Owner) {
			return "a queue entry", w.Owner.ID
		}
	}
	return "", ""
}
