//go:build linux || darwin

package check

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/link"
)

// probe stands between a worker's Locker and its store. It records requests and answers,
// and injects network faults: it loses requests, loses answers, and delays both.
type probe struct {
	driver.Store
	log *historyLog
	gen int

	link     link.Link
	mu       sync.Mutex
	prefixes map[string]bool
	kept     map[string]bool // by the request's ID: its release may have left the grant standing
	releases atomic.Int64
	requests atomic.Int64 // under way
}

func newProbe(s driver.Store, log *historyLog, gen int) *probe {
	return &probe{Store: s, log: log, gen: gen, prefixes: map[string]bool{}, kept: map[string]bool{}}
}

// Classify returns the code of an error of the link or of the store.
func (p *probe) Classify(err error) driver.Code { return link.Classify(p.Store, err) }

// Acquire sends a request to the store. It records a lost answer, because no hook reports
// that.
func (p *probe) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	path := ""
	if p.requests.Load() >= crowd {
		path = pathCrowd
	}
	g, err := p.request(ctx, r, path, p.Store.Acquire)
	if err != nil && p.Classify(err) == driver.CodeUnknown {
		p.log.Add(Event{K: kindUnknown, Name: r.Name, ID: r.ID, Limit: r.Limit})
	}
	return g, err
}

// request sends a request to the store through acquire, a method of the store.
func (p *probe) request(ctx context.Context, r driver.Request, path string, acquire func(context.Context, driver.Request) (driver.Grant, error)) (driver.Grant, error) {
	p.remember(r.ID)
	base := Event{Name: r.Name, ID: r.ID, Limit: r.Limit}
	e := base
	e.K, e.Wait, e.Repeated, e.Gen, e.TTL, e.Path = kindRequest, r.Wait, r.Waited > 0, p.gen, int64(r.TTL), path
	p.log.Add(e)
	if err := p.link.Send(ctx); err != nil {
		return driver.Grant{}, err
	}
	if r.Wait {
		r.From = &requester{Requester: r.From, p: p, event: base}
	}
	if !r.Wait {
		p.requests.Add(1)
		defer p.requests.Add(-1)
	}
	g, err := acquire(ctx, r)
	e = base
	e.K, e.T = kindAnswer, p.log.now()
	if err == nil {
		e.Token, e.TTL, e.Slot = g.Token, int64(g.TTL), g.Slot+1
		if g.Tokens > 1 {
			e.Tokens = g.Tokens
		}
		if g.Provisional {
			e.Path = pathProvisional
		}
	} else {
		e.Err = p.Store.Classify(err).String()
	}
	p.log.Add(e)
	if lost := p.link.Answer(ctx); lost != nil {
		return driver.Grant{}, lost
	}
	return g, err
}

// Inspect, List and Break let Every see the lock of an earlier tick, and break it.
func (p *probe) Inspect(ctx context.Context, name string) (st driver.State, err error) {
	i, ok := p.Store.(driver.Inspector)
	if !ok {
		return st, driver.Errorf(driver.CodeUnsupported, "the store cannot be inspected")
	}
	err = p.link.Call(ctx, func() error { st, err = i.Inspect(ctx, name); return err })
	return st, err
}

func (p *probe) List(ctx context.Context, prefix string) iter.Seq2[driver.State, error] {
	return p.Store.(driver.Inspector).List(ctx, prefix) // no Locker of a worker lists names
}

// Watch notifies the core of changes if the store does. The core then reads the state through the link.
func (p *probe) Watch(ctx context.Context, name string, changed func()) error {
	w, ok := p.Store.(driver.Watcher)
	if !ok {
		return driver.Errorf(driver.CodeUnsupported, "the store does not notify of changes")
	}
	return w.Watch(ctx, name, changed)
}

func (p *probe) Break(ctx context.Context, name string, token uint64) error {
	b, ok := p.Store.(driver.Breaker)
	if !ok {
		return driver.Errorf(driver.CodeUnsupported, "the store cannot take a lock away")
	}
	if err := p.link.Send(ctx); err != nil {
		return err
	}
	e := Event{K: kindFault, Fault: faultBreak, Name: name, Token: token, Early: true}
	p.log.Add(e)
	err := b.Break(ctx, name, token)
	e.K, e.T = kindHealed, 0
	p.log.Add(e)
	return cmp.Or(err, p.link.Answer(ctx))
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
	g, err := p.request(ctx, r, pathSwap, func(ctx context.Context, r driver.Request) (driver.Grant, error) {
		sent = true
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		return p.Store.(driver.Swapper).Swap(ctx, old, r, func(err error) {
			if lost = p.link.Answer(ctx); lost != nil {
				err = lost
				cancel()
			} else if err == nil {
				p.freed(old)
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
	if err := p.link.Call(ctx, func() error { return p.Store.Undo(ctx, r) }); err != nil {
		return err
	}
	p.log.Add(Event{K: kindUndone, Name: r.Name, ID: r.ID})
	p.recordLeft(r.Name, r.ID, "after its Undo was confirmed")
	return nil
}

func (p *probe) Renew(ctx context.Context, grants []driver.Grant) []driver.Renewal {
	fail := func(err error) []driver.Renewal { return slices.Repeat([]driver.Renewal{{Err: err}}, len(grants)) }
	if err := p.link.Send(ctx); err != nil {
		return fail(err)
	}
	answers := p.Store.Renew(ctx, grants)
	now := p.log.now()
	for i, a := range answers {
		if i >= len(grants) {
			break
		}
		e := Event{K: kindKept, T: now, Name: grants[i].Name, ID: grants[i].ID, Token: grants[i].Token, TTL: int64(a.TTL)}
		if len(grants) > 1 {
			e.Path = pathBatch
		}
		if a.Err != nil {
			e.K, e.TTL = kindUnsure, int64(grants[i].TTL)
		}
		if a.Err == nil || p.Classify(a.Err) != driver.CodeNotHeld {
			p.log.Add(e)
		}
	}
	if err := p.link.Answer(ctx); err != nil {
		return fail(err)
	}
	return answers
}

func (p *probe) Release(ctx context.Context, g driver.Grant, keep time.Duration) error {
	if err := p.link.Send(ctx); err != nil {
		return err
	}
	sent := p.log.now()
	err := p.Store.Release(ctx, g, keep)
	e := Event{T: sent, K: kindLeave, Name: g.Name, ID: g.ID, Limit: g.Limit, Token: g.Token, For: int64(keep), Until: p.log.now()}
	notHeld := err != nil && p.Classify(err) == driver.CodeNotHeld
	p.mu.Lock()
	again := p.kept[g.ID]
	if keep > 0 {
		p.kept[g.ID] = true
	}
	p.mu.Unlock()
	switch {
	case notHeld && again: // the store may keep the grant since the release whose answer was lost
		return err
	case notHeld:
		p.log.Add(Event{K: kindFreed, Name: g.Name, ID: g.ID, Token: g.Token})
		return err
	case err != nil && keep > 0:
		p.log.Add(Event{K: kindUnsure, Name: g.Name, ID: g.ID, Token: g.Token, TTL: int64(keep), Until: sent})
		return err
	case err != nil:
		return err
	case keep > 0:
		p.log.Add(e)
	default:
		p.freed(g)
	}
	return p.link.Answer(ctx)
}

// freed records that the store has confirmed a release. A check of every eighth release is enough.
func (p *probe) freed(g driver.Grant) {
	p.log.Add(Event{K: kindFreed, Name: g.Name, ID: g.ID, Token: g.Token})
	if p.releases.Add(1)%8 == 1 {
		p.recordLeft(g.Name, g.ID, "after its Release was confirmed")
	}
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

// leftovers returns what this client's requests have left at the store, without the grants that
// the store keeps after their release. The coordinator finds those that do not end.
func (p *probe) leftovers(ctx context.Context) (left []Event) {
	i, ok := p.Store.(driver.Inspector)
	if !ok {
		return nil
	}
	p.mu.Lock()
	ours := func(o driver.Owner) bool {
		prefix, _, _ := strings.Cut(o.ID, "-")
		return p.prefixes[prefix] && !p.kept[o.ID]
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
