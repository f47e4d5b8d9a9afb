package redisstore

import (
	"context"
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
	lead   time.Duration // the lease at the server is at least this much longer than the TTL; see Store.serverTTL
}

func (p *peers) hold(from driver.Requester, g driver.Grant, lead time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.held[g.ID] = &holding{from, g, g.SentAt.Time(), lead}
	if p.runs {
		return
	}
	p.runs = true
	if p.timer == nil {
		p.timer = time.AfterFunc(checkInterval, p.checkGrants)
	} else {
		p.timer.Reset(checkInterval)
	}
}

func (p *peers) forget(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.held, id)
}

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
				p.mu.Lock()
				lost := p.held[due[i].grant.ID] == due[i]
				if lost {
					delete(p.held, due[i].grant.ID)
				}
				p.mu.Unlock()
				if lost {
					due[i].from.Lost(ended(rep), notHeld(due[i].grant.Name, due[i].grant.Token))
				}
			}
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.held) == 0 {
		p.runs = false
		return
	}
	p.timer.Reset(max(checkInterval-time.Since(began), checkInterval/8))
}

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
				if a.Token != b.Token {
					return int(min(1, max(-1, int64(a.Token)-int64(b.Token))))
				}
				return strings.Compare(a.ID, b.ID)
			})
		}
	}
	return all
}

// names returns the names that clients of holdfast hold and, in a layout of hashes, those that
// other clients hold, in byte order.
func (p *peers) names(ctx context.Context, prefix string) ([]string, error) {
	seen := map[string]bool{}
	look := func(n Node, pattern, kind string, nameOf func(key string) (string, bool)) error {
		return scan(ctx, n, func(key string) {
			if name, ok := nameOf(key); ok && strings.HasPrefix(name, prefix) && driver.CheckName(name) == nil {
				seen[name] = true
			}
		}, "MATCH", pattern, "TYPE", kind)
	}
	start := p.key("")
	err := p.s.client.EachPrimary(ctx, func(n Node) error {
		if err := look(n, "holdfast:beside:*", "hash", func(key string) (string, bool) {
			key = strings.TrimPrefix(key, "holdfast:beside:")
			if braced, ok := strings.CutPrefix(key, "="); ok {
				return strings.CutPrefix(braced, start)
			}
			return strings.CutPrefix(strings.TrimSuffix(strings.TrimPrefix(key, "{"), "}"), start)
		}); err != nil || p.rules.channel == permitChannel {
			return err // a key with a number may belong to any program
		}
		return look(n, globber.Replace(start+prefix)+"*", p.rules.kind, func(key string) (string, bool) {
			if strings.HasPrefix(key, "holdfast:") {
				return "", false
			}
			return strings.CutPrefix(key, start)
		})
	})
	if err != nil {
		return nil, p.s.explain(err)
	}
	names := make([]string, 0, len(seen))
	for name := range seen {
		names = append(names, name)
	}
	// Skip keys of the same type that are no locks.
	var held []string
	for some := range slices.Chunk(names, inspectBatch) {
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
	uuid, thread, ok := strings.Cut(strings.TrimSuffix(h.ID, ":write"), ":")
	_, err := strconv.ParseInt(thread, 10, 64)
	return p.rules.kind == "hash" && ok && err == nil && len(uuid) == 36
}
