package redisstore

import (
	"context"
	"slices"
	"strconv"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/gather"
	"github.com/holdfast-go/holdfast/internal/held"
	"github.com/holdfast-go/holdfast/redisstore/internal/server"
)

const (
	// checkBatch is the number of grants that one call of the script checks. A pipeline has up
	// to checkCalls calls, and up to checkPipelines pipelines run at once.
	checkBatch     = 100
	checkCalls     = 64
	checkPipelines = 16
)

// check checks grants: many in each call, and many calls at once. One call after the other would
// delay the last check if there are many grants or the link is slow.
func (s *store) check(ctx context.Context, due []*held.Grant) {
	groups := map[uint16][]*held.Grant{} // by bucket in a Cluster, else all under 0
	for _, h := range due {
		group := uint16(0)
		if s.srv.Client.Mode() == Cluster {
			group = s.keys.bucket(h.Name)
		}
		groups[group] = append(groups[group], h)
	}
	size := checkBatch
	if s.srv.Spread.Load() {
		size = 1 // the keys of two names may be on different servers
	}
	var batches [][]*held.Grant
	for _, group := range groups {
		batches = slices.AppendSeq(batches, slices.Chunk(group, size))
	}
	pipes := slices.Collect(slices.Chunk(batches, checkCalls))
	gather.Each(len(pipes), checkPipelines, func(i int) { s.checkBatches(ctx, pipes[i]) })
}

// checkBatches checks each batch of grants by a call of the script, in one pipeline.
func (s *store) checkBatches(ctx context.Context, batches [][]*held.Grant) {
	calls := make([]Call, len(batches))
	for i, batch := range batches {
		c := Call{Keys: make([]string, len(batch)), Args: make([]string, 0, 2*len(batch))}
		for j, h := range batch {
			own := h.Handle.(*handle)
			c.Keys[j] = own.key
			c.Args = append(c.Args, mark(h.ID, h.Token), own.slot)
		}
		calls[i] = c
	}
	for i, a := range s.srv.EvalAll(ctx, checkScript, calls) {
		if server.IsTryAgain(a.Err) && len(batches[i]) > 1 {
			// The keys are on two servers while their hash slot moves.
			s.checkBatches(ctx, slices.Collect(slices.Chunk(batches[i], 1)))
			continue
		}
		if a.Err == nil && a.Reply.Kind == 'R' {
			s.checked(batches[i], a.Reply)
		}
	}
}

// checked records the answer of the script to one call: a number for each grant that has ended, negative if it
// was taken away.
func (s *store) checked(batch []*held.Grant, rep server.Reply) {
	for _, h := range batch {
		s.srv.Held.Prove(h.ID, rep.Sent.Time())
	}
	for _, text := range rep.Values {
		n, _ := strconv.Atoi(text)
		cause := driver.CauseGone
		if n < 0 {
			n, cause = -n, driver.CauseTaken
		}
		if n > 0 && n <= len(batch) {
			h := batch[n-1]
			s.srv.Held.Lose(h, cause, driver.NotHeld(h.Name, h.Token))
		}
	}
}
