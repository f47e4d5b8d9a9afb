package redisstore

import (
	"context"
	"errors"
	"math/rand/v2"

	"github.com/holdfast-go/holdfast/driver"
)

// spreadKeys is the number of keys whose servers the first probe compares. If a proxy spreads keys
// evenly over two servers, all of these are on one server with a probability of 1 in 2048.
const spreadKeys = 12

// compareServers detects a proxy that sends scripts to several servers, each to the server of its
// first key. Behind such a proxy, one call never has the keys of two names. If only some keys have
// an answer, the proxy cannot reach one of its servers, so compareServers detects the proxy, too. It
// detects no proxy whose servers report no run ID. It returns an error if there is no answer.
func (s *Store) compareServers(ctx context.Context) error {
	if s.client.Mode() == Cluster {
		return nil
	}
	calls := make([]Call, spreadKeys)
	for i := range calls {
		calls[i].Keys = []string{counterOf(uint16(rand.N(buckets)))}
	}
	answers := s.client.EvalAll(ctx, runIDScript, calls)
	if err := ctx.Err(); err != nil {
		return driver.Errorf(driver.CodeUnavailable, "%w", err) // some answers may be missing
	}
	ids := map[string]bool{}
	var unanswered error
	for _, a := range answers {
		id := ""
		if a.Err == nil && len(a.Values) == 2 {
			id = a.Values[1]
		}
		ids[id] = true
		if _, answered := errors.AsType[ServerError](a.Err); a.Err != nil && !answered {
			unanswered = a.Err
		}
	}
	switch {
	case len(ids) > 1:
		s.spread.Store(true)
		s.combiner.stop()
	case ids[""]:
		return unanswered
	}
	return nil
}
