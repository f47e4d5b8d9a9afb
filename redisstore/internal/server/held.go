package server

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/held"
)

const (
	// noticeTimeout is the longest time until a holder notices that the server has lost its
	// grant. Every checkInterval the store checks the grants whose last proof is older than
	// provenFor, with the timeout checkTimeout. So it checks a grant every two seconds, unless
	// the grant is renewed more often.
	noticeTimeout = checkInterval + provenFor + checkTimeout
	checkInterval = time.Second
	provenFor     = 1200 * time.Millisecond
	checkTimeout  = 800 * time.Millisecond
)

// Lease is the part of a grant's handle that does not depend on the layout.
type Lease struct {
	// LateUntil is the time, by the server's clock, until which an unanswered request with this
	// grant's ID may arrive. It is 0 if there is no such request.
	LateUntil int64
	lead      atomic.Int64
}

// SetLead records the lead with which the grant was made or renewed, see TTL, or -1 if it is unknown.
func (l *Lease) SetLead(lead time.Duration) { l.lead.Store(int64(lead)) }

func (l *Lease) lease() *Lease { return l }

// leaseOf returns the lease of a grant of this store.
func leaseOf(g *driver.Grant) *Lease { return g.Handle.(interface{ lease() *Lease }).lease() }

// TTL returns the TTL that the server keeps: the requested TTL plus the lead. The caller
// records this lead for the grant, so it does not read the lead twice.
func TTL(ttl, lead time.Duration) time.Duration {
	ttl += lead // mutation: redis-lead
	return ttl
}

// check checks grants, and probes the servers if necessary.
func (s *Server) check(due []*held.Grant) {
	if s.Enter() != nil {
		return
	}
	defer s.Leave()
	s.probeIfOld()
	if len(due) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(s.Ctx, checkTimeout)
	defer cancel()
	s.recipe.Check(ctx, due)
}

// distrustLeads makes the next check of the grants renew all of them: see lengthen. A promoted
// replica may lack the last lengthening of a lease, and its clock may be ahead.
func (s *Server) distrustLeads() {
	for _, h := range s.Held.All() {
		leaseOf(&h.Grant).SetLead(-1)
	}
}

// short returns the grants that were made or renewed with a smaller lead than the present one.
func (s *Server) short() (short []driver.Grant) {
	lead := s.Lead()
	for _, h := range s.Held.All() {
		if leaseOf(&h.Grant).lead.Load() < int64(lead) {
			short = append(short, h.Grant)
		}
	}
	return short
}

// Lead returns how far a replica's clock is ahead. It is rounded up, so that the round trips by which
// it is measured renew no leases.
func (s *Server) Lead() time.Duration {
	const step = 100 * time.Millisecond
	if f := s.probed.Load(); f != nil {
		return (f.ahead + step - 1).Truncate(step)
	}
	return 0
}

// lengthen renews the grants of short.
// A lease with a long TTL would otherwise be too short until its next renewal. After a change
// of the primary, it renews all grants. The holder's validity stays as it is. If a renewal
// fails, the next check of the grants repeats it.
func (s *Server) lengthen() {
	short := s.short()
	if len(short) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(s.Ctx, CallTimeout)
	defer cancel()
	(&Store{s}).Renew(ctx, short)
}

// Renew sets new deadlines for grants that still stand.
func (b *Store) Renew(ctx context.Context, grants []driver.Grant) []driver.Renewal {
	s := b.s
	if len(grants) == 0 {
		return nil
	}
	if err := s.Begin(ctx); err != nil {
		return slices.Repeat([]driver.Renewal{{Err: err}}, len(grants))
	}
	defer s.Leave()
	lead := s.Lead()
	answers := s.recipe.Renew(ctx, grants, lead)
	for i := range answers {
		if answers[i].Err == nil && s.Config.Replicas > 0 {
			leaseOf(&grants[i]).SetLead(lead)
		}
	}
	return answers
}

// maxRenewals limits the renewals under way that replicas acknowledge: each needs a connection of
// its own.
const maxRenewals = 16

// EvalRenewals runs a script that renews grants once for each call. With Replicas, it confirms a renewal only when
// enough replicas have acknowledged it. Otherwise a failover could free the name before the validity of its
// holder ends.
func (s *Server) EvalRenewals(ctx context.Context, sc *Script, calls []Call) []Result {
	if s.Config.Replicas == 0 { // mutation: failover-renew-acked
		return s.EvalAll(ctx, sc, calls)
	}
	all := make([]Result, len(calls))
	var renewals sync.WaitGroup
	slots := make(chan struct{}, maxRenewals)
	for i := range calls {
		slots <- struct{}{}
		renewals.Go(func() {
			all[i].Reply, all[i].Err = s.EvalAcked(ctx, sc, calls[i].Keys, calls[i].Args, "R")
			<-slots
		})
	}
	renewals.Wait()
	return all
}

// Renewed returns the result of the renewal of a grant for a TTL.
func (s *Server) Renewed(g *driver.Grant, a Result, ttl time.Duration) driver.Renewal {
	switch {
	case a.Err != nil:
		return driver.Renewal{Err: a.Err}
	case a.Reply.Kind != 'R':
		return driver.Renewal{Cause: a.Reply.EndCause(), Err: driver.NotHeld(g.Name, g.Token)}
	}
	s.Held.Prove(g.ID, a.Reply.Sent.Time())
	return driver.Renewal{SentAt: a.Reply.Sent, TTL: ttl}
}
