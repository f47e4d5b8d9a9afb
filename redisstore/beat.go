package redisstore

import (
	"context"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

const (
	// noticeBound is how long a holder may not know that the server has lost its
	// grant. A grant that has not been proven for checkEvery is looked at.
	noticeBound = 3 * time.Second
	checkEvery  = 2 * time.Second
	checkBound  = 800 * time.Millisecond
	// checkBatch is how many are looked at in one go.
	checkBatch = 500
)

// hold takes a grant into care: its holder is told when it ends.
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
		s.beat = time.AfterFunc(checkEvery/2, s.look)
	} else {
		s.beat.Reset(checkEvery / 2)
	}
}

// forget is called with the store's mutex held.
func (s *Store) forget(e *entry) { delete(s.entries, e.r.ID) }

func (s *Store) prove(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.entries[id]; e != nil {
		e.proven = time.Now()
	}
}

// look asks for the grants that nobody has asked for lately, and goes on while
// there are any.
func (s *Store) look() {
	if s.enter() != nil {
		return
	}
	defer s.ops.Done()
	began := time.Now()
	var due []*entry
	var grants []driver.Grant
	s.mu.Lock()
	held := 0
	for _, e := range s.entries {
		if !e.held {
			continue
		}
		held++
		if began.Sub(e.proven) >= checkEvery/2 {
			due, grants = append(due, e), append(grants, e.grant)
		}
	}
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(s.ctx, checkBound)
	defer cancel()
	for from := 0; from < len(due); from += checkBatch {
		s.lookAt(ctx, due[from:min(from+checkBatch, len(due))], grants[from:min(from+checkBatch, len(due))])
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if held == 0 && len(s.entries) == 0 || s.closing {
		s.beating = false
		return
	}
	s.beat.Reset(max(checkEvery/2-time.Since(began), checkEvery/8))
}

func (s *Store) lookAt(ctx context.Context, due []*entry, grants []driver.Grant) {
	calls, err := s.renewCalls(grants, true)
	if err != nil {
		return
	}
	sent, at := driver.Now(), micros()
	for i, a := range s.client.EvalAll(ctx, renewScript, calls) {
		rep, err := s.read(renewScript, sent, at, a.Values, a.Err)
		if err != nil {
			continue // trust ends by itself
		}
		if rep.kind == 'R' {
			s.prove(grants[i].ID)
			continue
		}
		s.mu.Lock()
		e := s.entries[grants[i].ID]
		lost := e == due[i]
		if lost {
			s.forget(e)
		}
		s.mu.Unlock()
		if lost {
			e.r.From.Lost(ended(rep), notHeld(grants[i].Name, grants[i].Token))
		}
	}
}
