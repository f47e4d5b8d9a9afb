package redisstore

import (
	"context"
	"strconv"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

const (
	// noticeTimeout is the longest time until a holder notices that the server has lost its
	// grant. Every lookEvery the store checks the grants that were not proven for provenFor, with
	// the timeout lookTimeout. So the store checks a grant every two seconds unless it is renewed more
	// often.
	noticeTimeout = lookEvery + provenFor + lookTimeout
	lookEvery     = time.Second
	provenFor     = 1200 * time.Millisecond
	lookTimeout   = 800 * time.Millisecond
	// lookBatch is the number of grants that one call of the script checks. A pipeline has up
	// to lookCalls calls, and up to lookPipes pipelines run at once.
	lookBatch = 100
	lookCalls = 64
	lookPipes = 16
)

// hold registers a grant, so that its holder is notified when it ends.
func (s *Store) hold(e *entry, g driver.Grant) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.entries[e.r.ID] = e
	s.listen(e.channel) // for the message of a break
	e.held, e.token, e.handle, e.proven = true, g.Token, g.Handle.(*handle), g.SentAt.Time()
	if s.beating || s.closing {
		return
	}
	s.beating = true
	if s.beat == nil {
		s.beat = time.AfterFunc(lookEvery, s.look)
	} else {
		s.beat.Reset(lookEvery)
	}
}

// forget removes an entry. The caller holds the store's mutex.
func (s *Store) forget(e *entry) { delete(s.entries, e.r.ID) }

// setLead records the lead with which a grant was renewed; see serverTTL.
func (s *Store) setLead(id string, lead time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.entries[id]; e != nil {
		e.lead = lead
	}
}

// prove records that a grant existed when a request was sent.
func (s *Store) prove(id string, sent time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.entries[id]; e != nil && sent.After(e.proven) {
		e.proven = sent
	}
}

// lookSoon starts a check of all grants now. The caller holds the store's mutex.
func (s *Store) lookSoon() {
	if s.beating && !s.closing {
		s.lookAll = true
		s.beat.Reset(0)
	}
}

// look checks the grants that were not proven for provenFor. It runs again after lookEvery while
// there are grants.
func (s *Store) look() {
	if s.enter() != nil {
		return
	}
	defer s.ops.Done()
	began := time.Now()
	s.mu.Lock()
	if s.looking { // the other call sets the timer when it has ended
		s.mu.Unlock()
		return
	}
	s.looking = true
	all := s.lookAll
	s.lookAll = false
	due := map[uint16][]*entry{} // by bucket in a Cluster, else all under 0
	held, lead, short := 0, s.lead(), false
	for _, e := range s.entries {
		if !e.held {
			continue
		}
		held++
		short = short || e.lead < lead
		if all || began.Sub(e.proven) >= provenFor {
			group := uint16(0)
			if s.client.Mode() == Cluster {
				group = e.bucket
			}
			due[group] = append(due[group], e)
		}
	}
	s.mu.Unlock()
	s.lookAtClocks(short)
	s.lookAt(due)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.looking = false
	if held == 0 && len(s.entries) == 0 || s.closing {
		s.beating = false
		return
	}
	next := max(lookEvery-time.Since(began), lookEvery/8)
	if s.lookAll {
		next = 0
	}
	s.beat.Reset(next)
}

// lookAt checks grants, many in each call and all calls at once. So many grants or a slow link do
// not delay the last check.
func (s *Store) lookAt(due map[uint16][]*entry) {
	var batches [][]*entry
	batch := lookBatch
	if s.spread.Load() {
		batch = 1
	}
	for _, group := range due {
		for len(group) > 0 {
			n := min(len(group), batch)
			batches = append(batches, group[:n])
			group = group[n:]
		}
	}
	ctx, cancel := context.WithTimeout(s.ctx, lookTimeout)
	defer cancel()
	var pipes sync.WaitGroup
	slots := make(chan struct{}, lookPipes)
	for len(batches) > 0 {
		n := min(len(batches), lookCalls)
		some := batches[:n]
		batches = batches[n:]
		slots <- struct{}{}
		pipes.Go(func() {
			s.lookOnce(ctx, some)
			<-slots
		})
	}
	pipes.Wait()
}

func (s *Store) lookOnce(ctx context.Context, batches [][]*entry) {
	calls := make([]Call, len(batches))
	for i, batch := range batches {
		c := Call{Keys: make([]string, len(batch)), Args: make([]string, 0, 2*len(batch))}
		for j, e := range batch {
			c.Keys[j] = e.handle.key
			c.Args = append(c.Args, mark(e.r.ID, e.token), e.handle.slot)
		}
		calls[i] = c
	}
	sent, at := driver.Now(), micros()
	for i, a := range s.client.EvalAll(ctx, lookScript, calls) {
		rep, err := s.read(lookScript, sent, at, a.Values, a.Err)
		if isTryAgain(err) && len(batches[i]) > 1 {
			// The keys are on two servers while their hash slot moves.
			var singles [][]*entry
			for j := range batches[i] {
				singles = append(singles, batches[i][j:j+1])
			}
			s.lookOnce(ctx, singles)
			continue
		}
		if err != nil || rep.kind != 'R' {
			continue // without a renewal the validity ends
		}
		ended := map[int]driver.Cause{}
		for _, text := range rep.values {
			n, err := strconv.Atoi(text)
			if err != nil {
				continue
			}
			if n > 0 {
				ended[n-1] = driver.CauseGone
			} else {
				ended[-n-1] = driver.CauseTaken
			}
		}
		for j, e := range batches[i] {
			cause, is := ended[j]
			s.mu.Lock()
			lost := s.entries[e.r.ID] == e && is
			switch {
			case lost:
				s.forget(e)
			case sent.Time().After(e.proven):
				e.proven = sent.Time()
			}
			s.mu.Unlock()
			if lost {
				e.r.From.Lost(cause, notHeld(e.r.Name, e.token))
			}
		}
	}
}
