package redisstore

import (
	"context"
	"strconv"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

const (
	// noticeBound is how long a holder may not know that the server has lost its grant.
	// Every lookEvery the grants are looked at that have not been proven for provenFor,
	// within lookBound: the three make up noticeBound. So a grant is looked at every two
	// seconds unless it is renewed more often.
	noticeBound = 3 * time.Second
	lookEvery   = time.Second
	provenFor   = 1200 * time.Millisecond
	lookBound   = 800 * time.Millisecond
	// lookBatch is how many grants one call of the script looks at, lookCalls how many
	// calls go in one pipeline, and lookPipes how many pipelines at once.
	lookBatch = 100
	lookCalls = 64
	lookPipes = 16
)

// hold takes a grant into care: its holder is notified when it ends.
func (s *Store) hold(e *entry, g driver.Grant) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.entries[e.r.ID] = e
	s.listen(e.channel) // it may be taken away
	e.held, e.grant, e.proven = true, g, g.SentAt.Time()
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

// forget is called with the store's mutex held.
func (s *Store) forget(e *entry) { delete(s.entries, e.r.ID) }

// prove notes that a grant stood when a request was sent.
func (s *Store) prove(id string, sent time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.entries[id]; e != nil && sent.After(e.proven) {
		e.proven = sent
	}
}

// lookSoon has all grants looked at now. The store's mutex is held.
func (s *Store) lookSoon() {
	if s.beating && !s.closing {
		s.lookAll = true
		s.beat.Reset(0)
	}
}

// lookedAt is a grant that is looked at.
type lookedAt struct {
	e *entry
	g driver.Grant
}

// look looks at the grants that were not proven lately, and goes on while there are
// any.
func (s *Store) look() {
	if s.enter() != nil {
		return
	}
	defer s.ops.Done()
	began := time.Now()
	s.mu.Lock()
	if s.looking { // it sets the timer again when it has ended
		s.mu.Unlock()
		return
	}
	s.looking = true
	all := s.lookAll
	s.lookAll = false
	due := map[uint16][]lookedAt{} // by bucket in a Cluster, else all under 0
	held := 0
	for _, e := range s.entries {
		if !e.held {
			continue
		}
		held++
		if all || began.Sub(e.proven) >= provenFor {
			group := uint16(0)
			if s.client.Mode() == Cluster {
				group = e.bucket
			}
			due[group] = append(due[group], lookedAt{e, e.grant})
		}
	}
	s.mu.Unlock()
	if f := s.probed.Load(); s.cfg.replicas > 0 && (f == nil || micros()-f.at > (freshFor/2).Microseconds()) {
		s.probeSoon() // leases are lengthened by what a replica's clock is ahead
	}
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

// lookAt looks at grants, many in each call and all calls at once: neither their number
// nor a slow link delays the last.
func (s *Store) lookAt(due map[uint16][]lookedAt) {
	var batches [][]lookedAt
	for _, group := range due {
		for len(group) > 0 {
			n := min(len(group), lookBatch)
			batches = append(batches, group[:n])
			group = group[n:]
		}
	}
	ctx, cancel := context.WithTimeout(s.ctx, lookBound)
	defer cancel()
	var pipes sync.WaitGroup
	room := make(chan struct{}, lookPipes)
	for len(batches) > 0 {
		n := min(len(batches), lookCalls)
		some := batches[:n]
		batches = batches[n:]
		room <- struct{}{}
		pipes.Go(func() {
			s.lookOnce(ctx, some)
			<-room
		})
	}
	pipes.Wait()
}

func (s *Store) lookOnce(ctx context.Context, batches [][]lookedAt) {
	calls := make([]Call, len(batches))
	for i, batch := range batches {
		c := Call{Keys: make([]string, len(batch)), Args: make([]string, 0, 2*len(batch))}
		for j := range batch {
			h := batch[j].g.Handle.(*handle)
			c.Keys[j] = h.key
			c.Args = append(c.Args, mark(&batch[j].g), h.seat)
		}
		calls[i] = c
	}
	sent, at := driver.Now(), micros()
	for i, a := range s.client.EvalAll(ctx, lookScript, calls) {
		rep, err := s.read(lookScript, sent, at, a.Values, a.Err)
		if isTryAgain(err) && len(batches[i]) > 1 {
			// The keys are on two servers while their hash slot moves.
			var singles [][]lookedAt
			for j := range batches[i] {
				singles = append(singles, batches[i][j:j+1])
			}
			s.lookOnce(ctx, singles)
			continue
		}
		if err != nil || rep.kind != 'R' {
			continue // validity ends by itself
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
		for j, l := range batches[i] {
			cause, is := ended[j]
			s.mu.Lock()
			lost := s.entries[l.g.ID] == l.e && is
			switch {
			case lost:
				s.forget(l.e)
			case sent.Time().After(l.e.proven):
				l.e.proven = sent.Time()
			}
			s.mu.Unlock()
			if lost {
				l.e.r.From.Lost(cause, notHeld(l.g.Name, l.g.Token))
			}
		}
	}
}
