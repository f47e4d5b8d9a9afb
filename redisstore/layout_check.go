package redisstore

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// holding is a grant that checkGrants checks regularly, as in the native layout.
type holding struct {
	from   driver.Requester
	grant  driver.Grant
	proven time.Time
	lead   time.Duration // the lease at the server is at least this much longer than the TTL; see serverTTL
}

// hold registers a grant, so that its holder is notified when it ends.
func (p *peers) hold(from driver.Requester, g driver.Grant, lead time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.held[g.ID] = &holding{from, g, g.SentAt.Time(), lead}
	if p.checksGrants {
		return
	}
	p.checksGrants = true
	if p.timer == nil {
		p.timer = time.AfterFunc(checkInterval, p.checkGrants)
	} else {
		p.timer.Reset(checkInterval)
	}
}

// forget removes a grant, if it is registered.
func (p *peers) forget(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.held, id)
}

// setLead is Store.setLead for a layout.
func (p *peers) setLead(id string, lead time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if h := p.held[id]; h != nil {
		h.lead = lead
	}
}

// distrustLeads is Store.distrustLeads for a layout.
func (p *peers) distrustLeads() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, h := range p.held {
		h.lead = -1
	}
}

// shorterThan returns the grants that were made or renewed with a smaller lead.
func (p *peers) shorterThan(lead time.Duration) (short []driver.Grant) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, h := range p.held {
		if h.lead < lead {
			short = append(short, h.grant)
		}
	}
	return short
}

// prove is Store.prove for a layout.
func (p *peers) prove(id string, sent time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if h := p.held[id]; h != nil && sent.After(h.proven) {
		h.proven = sent
	}
}

// checkGrants checks the grants that were not proven for provenFor.
func (p *peers) checkGrants() {
	if p.s.enter() != nil {
		return
	}
	defer p.s.ops.Done()
	began := time.Now()
	var due []*holding
	var calls []Call
	p.mu.Lock()
	for _, h := range p.held {
		if began.Sub(h.proven) >= provenFor {
			due = append(due, h)
			st := step{id: h.grant.ID, own: h.grant.Handle.(*peerHandle).own, key: p.key(h.grant.Name)}
			calls = append(calls, Call{p.keys(st.key), p.args(&st)})
		}
	}
	p.mu.Unlock()
	p.s.probeIfOld(len(p.shorterThan(p.s.lead())) > 0)
	if len(due) > 0 {
		ctx, cancel := context.WithTimeout(p.s.ctx, checkTimeout)
		sent, at := driver.Now(), micros()
		answers := p.s.client.EvalAll(ctx, p.verbs.check, calls)
		cancel()
		for i, a := range answers {
			rep, err := p.s.read(p.verbs.check, sent, at, a.Values, a.Err)
			switch {
			case err != nil: // without a renewal the validity ends
			case rep.kind == 'R':
				p.prove(due[i].grant.ID, sent.Time())
			default:
				p.lost(due[i], ended(rep))
			}
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.held) == 0 {
		p.checksGrants = false
		return
	}
	p.timer.Reset(max(checkInterval-time.Since(began), checkInterval/8))
}

// lost reports a grant as lost, unless it was released meanwhile.
func (p *peers) lost(h *holding, cause driver.Cause) {
	p.mu.Lock()
	held := p.held[h.grant.ID] == h
	if held {
		delete(p.held, h.grant.ID)
	}
	p.mu.Unlock()
	if held {
		h.from.Lost(cause, notHeld(h.grant.Name, h.grant.Token))
	}
}

// inspectAll is Store.inspectAll for a layout.
func (p *peers) inspectAll(ctx context.Context, names []string) []inspected {
	calls := make([]Call, len(names))
	for i, name := range names {
		st := step{key: p.key(name)}
		calls[i] = Call{p.keys(st.key), p.args(&st)}
	}
	sent, at := driver.Now(), micros()
	all := make([]inspected, len(names))
	for i, a := range p.s.client.EvalAll(ctx, p.verbs.inspect, calls) {
		rep, err := p.s.read(p.verbs.inspect, sent, at, a.Values, a.Err)
		all[i].state.Name = names[i]
		if all[i].err = err; err == nil {
			all[i].state.Holders = p.holders(rep.values)
			slices.SortFunc(all[i].state.Holders, func(a, b driver.Holder) int {
				return cmp.Or(cmp.Compare(a.Token, b.Token), strings.Compare(a.ID, b.ID))
			})
		}
	}
	return all
}

// names returns the names that clients of holdfast hold and, in a layout of hashes, those that
// other clients hold, in byte order.
func (p *peers) names(ctx context.Context, prefix string) ([]string, error) {
	seen := map[string]bool{}
	start := p.key("") // every name's key starts with it
	add := func(key string) {
		if name, ok := strings.CutPrefix(key, start); ok && strings.HasPrefix(name, prefix) && driver.CheckName(name) == nil {
			seen[name] = true
		}
	}
	err := p.s.client.EachPrimary(ctx, func(n Node) error {
		err := scan(ctx, n, func(key string) { add(keyBeside(key)) }, "MATCH", besidePrefix+"*", "TYPE", "hash")
		if err != nil || p.rules.channel == permitChannel {
			return err // a key with a number may belong to any program
		}
		return scan(ctx, n, func(key string) {
			if !strings.HasPrefix(key, "holdfast:") {
				add(key)
			}
		}, "MATCH", globber.Replace(start+prefix)+"*", "TYPE", p.rules.kind)
	})
	if err != nil {
		return nil, p.s.explain(err)
	}
	// Skip keys of the same type that are no locks.
	var held []string
	for some := range slices.Chunk(slices.Collect(maps.Keys(seen)), inspectBatch) {
		for _, a := range p.inspectAll(ctx, some) {
			if a.err == nil && slices.ContainsFunc(a.state.Holders, p.isLock) {
				held = append(held, a.state.Name)
			}
		}
	}
	slices.Sort(held)
	return held, nil
}

// isLock reports whether a holder is a grant of holdfast, or has the form of an owner of Redisson.
func (p *peers) isLock(h driver.Holder) bool {
	if h.Token != 0 {
		return true
	}
	const uuidLength = 36
	uuid, thread, ok := strings.Cut(strings.TrimSuffix(h.ID, writerSuffix), ":")
	_, err := strconv.ParseInt(thread, 10, 64)
	return p.rules.kind == "hash" && ok && err == nil && len(uuid) == uuidLength
}
