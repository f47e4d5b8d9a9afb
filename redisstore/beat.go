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
	// grant. Every checkInterval the store checks the grants that were not proven for provenFor, with
	// the timeout checkTimeout. So the store checks a grant every two seconds unless it is renewed more
	// often.
	noticeTimeout = checkInterval + provenFor + checkTimeout
	checkInterval = time.Second
	provenFor     = 1200 * time.Millisecond
	checkTimeout  = 800 * time.Millisecond
	// checkBatch is the number of grants that one call of the script checks. A pipeline has up
	// to checkCalls calls, and up to checkPipelines pipelines run at once.
	checkBatch     = 100
	checkCalls     = 64
	checkPipelines = 16
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
		s.beat = time.AfterFunc(checkInterval, s.checkGrants)
	} else {
		s.beat.Reset(checkInterval)
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

// checkSoon starts a check of all grants now. The caller holds the store's mutex.
func (s *Store) checkSoon() {
	if s.beating && !s.closing {
		s.checkAll = true
		s.beat.Reset(0)
	}
}

// checkGrants checks the grants that were not proven for provenFor. It runs again after checkInterval while
// there are grants.
func (s *Store) checkGrants() {
	if s.enter() != nil {
		return
	}
	defer s.ops.Done()
	began := time.Now()
	s.mu.Lock()
	if s.checking { // the other call sets the timer when it has ended
		s.mu.Unlock()
		return
	}
	s.checking = true
	all := s.checkAll
	s.checkAll = false
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
	s.probeIfOld(short)
	s.checkEntries(due)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.checking = false
	if held == 0 && len(s.entries) == 0 || s.closing {
		s.beating = false
		return
	}
	next := max(checkInterval-time.Since(began), checkInterval/8)
	if s.checkAll {
		next = 0
	}
	s.beat.Reset(next)
}

// checkEntries checks grants, many in each call and all calls at once. So many grants or a slow link do
// not delay the last check.
func (s *Store) checkEntries(due map[uint16][]*entry) {
	var batches [][]*entry
	batch := checkBatch
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
	ctx, cancel := context.WithTimeout(s.ctx, checkTimeout)
	defer cancel()
	var pipes sync.WaitGroup
	slots := make(chan struct{}, checkPipelines)
	for len(batches) > 0 {
		n := min(len(batches), checkCalls)
		some := batches[:n]
		batches = batches[n:]
		slots <- struct{}{}
		pipes.Go(func() {
			s.checkBatches(ctx, some)
			<-slots
		})
	}
	pipes.Wait()
}

func (s *Store) checkBatches(ctx context.Context, batches [][]*entry) {
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
	for i, a := range s.client.EvalAll(ctx, checkScript, calls) {
		rep, err := s.read(checkScript, sent, at, a.Values, a.Err)
		if isTryAgain(err) && len(batches[i]) > 1 {
			// The keys are on two servers while their hash slot moves.
			var singles [][]*entry
			for j := range batches[i] {
				singles = append(singles, batches[i][j:j+1])
			}
			s.checkBatches(ctx, singles)
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
