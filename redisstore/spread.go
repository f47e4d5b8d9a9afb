package redisstore

import (
	"context"
	"math/rand/v2"
)

// spreadKeys is the number of keys whose servers the first probe compares. A proxy before two equal
// servers has all of them on one with a probability of 1 to 2048.
const spreadKeys = 12

// compareServers finds out whether a proxy sends scripts to several servers, each to the server
// of its first key. One call then never has the keys of two names. It cannot find out if the server
// does not report its run ID.
func (s *Store) compareServers(ctx context.Context) {
	if s.client.Mode() == Cluster {
		return
	}
	calls := make([]Call, spreadKeys)
	for i := range calls {
		calls[i].Keys = []string{counterOf(uint16(rand.N(buckets)))}
	}
	first := ""
	for _, a := range s.client.EvalAll(ctx, runIDScript, calls) {
		if a.Err != nil || len(a.Values) != 2 || a.Values[1] == "" {
			continue
		}
		if first == "" {
			first = a.Values[1]
		}
		if a.Values[1] != first {
			s.spread.Store(true)
			s.combiner.stop()
			return
		}
	}
}
