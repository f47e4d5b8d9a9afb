package redisstore

import (
	"context"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/driver"
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
	s.listen() // for the message of a break
	e.held, e.token, e.handle, e.proven = true, g.Token, g.Handle.(*handle), g.SentAt.Time()
	if s.checksGrants || s.closing {
		return
	}
	s.checksGrants = true
	if s.checkTimer == nil {
		s.checkTimer = time.AfterFunc(checkInterval, s.checkGrants)
	} else {
		s.checkTimer.Reset(checkInterval)
	}
}

// forget removes the entry of a request, if there is one. The caller holds the store's mutex.
func (s *Store) forget(id string) { delete(s.entries, id) }

// setLead records the lead with which a grant was renewed; see serverTTL.
func (s *Store) setLead(id string, lead time.Duration) {
	if s.peers != nil {
		s.peers.setLead(id, lead)
		return
	}
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
	if s.checksGrants && !s.closing {
		s.checkAll = true
		s.checkTimer.Reset(0)
	}
}

// checkGrants checks the grants whose last proof is older than provenFor, or all grants if checkAll
// is set. It runs again after checkInterval while the store has grants or requests.
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
	lead, short := s.lead(), false
	for _, e := range s.entries {
		if !e.held {
			continue
		}
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
	if len(s.entries) == 0 || s.closing {
		s.checksGrants = false
		return
	}
	next := max(checkInterval-time.Since(began), checkInterval/8)
	if s.checkAll {
		next = 0
	}
	s.checkTimer.Reset(next)
}

// checkEntries checks grants: many in each call, and many calls at once. One call after the other
// would delay the last check if there are many grants or the link is slow.
func (s *Store) checkEntries(due map[uint16][]*entry) {
	var batches [][]*entry
	size := checkBatch
	if s.spread.Load() {
		size = 1 // the keys of two names may be on different servers
	}
	for _, group := range due {
		batches = slices.AppendSeq(batches, slices.Chunk(group, size))
	}
	ctx, cancel := context.WithTimeout(s.ctx, checkTimeout)
	defer cancel()
	var pipes sync.WaitGroup
	slots := make(chan struct{}, checkPipelines)
	for some := range slices.Chunk(batches, checkCalls) {
		slots <- struct{}{}
		pipes.Go(func() {
			s.checkBatches(ctx, some)
			<-slots
		})
	}
	pipes.Wait()
}

// checkBatches checks each batch of grants by a call of the script, in one pipeline. A failed check
// changes nothing: if the renewals fail as well, the validity of the grants ends.
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
			s.checkBatches(ctx, slices.Collect(slices.Chunk(batches[i], 1)))
			continue
		}
		if err == nil && rep.kind == 'R' {
			s.checked(batches[i], endedGrants(rep.values), sent.Time())
		}
	}
}

// endedGrants parses the answer of the script to one call: a number for each grant that has ended,
// negative if it was taken away. It returns the causes by index in the batch.
func endedGrants(numbers []string) map[int]driver.Cause {
	causes := map[int]driver.Cause{}
	for _, text := range numbers {
		n, err := strconv.Atoi(text)
		if err != nil {
			continue
		}
		if n > 0 {
			causes[n-1] = driver.CauseGone
		} else {
			causes[-n-1] = driver.CauseTaken
		}
	}
	return causes
}

// checked records the result of a check that was sent at sent. It reports the grants that have a
// cause as lost, unless they were released meanwhile.
func (s *Store) checked(batch []*entry, causes map[int]driver.Cause, sent time.Time) {
	for i, e := range batch {
		cause, isEnded := causes[i]
		s.mu.Lock()
		lost := s.entries[e.r.ID] == e && isEnded
		switch {
		case lost:
			s.forget(e.r.ID)
		case sent.After(e.proven):
			e.proven = sent
		}
		s.mu.Unlock()
		if lost {
			e.r.From.Lost(cause, notHeld(e.r.Name, e.token))
		}
	}
}
