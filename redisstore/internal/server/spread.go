package server

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"

	"github.com/holdfast-go/holdfast/driver"
)

// spreadKeys is the number of keys whose servers the first probe compares. If a proxy spreads
// keys evenly over two servers, one server has all of them with a probability of 1 in 2048.
const spreadKeys = 12

// compareServers finds out whether a proxy sends scripts to several servers, each to the server
// of its first key. If so, the store makes no calls with the keys of two names. It also makes
// none if only some of the calls return a run ID, because the proxy may not reach a server now.
// If no call returns one, the store keeps combined calls. compareServers then returns an error if
// a call had no answer.
func (s *Server) compareServers(ctx context.Context) error {
	if s.Client.Mode() == Cluster {
		return nil
	}
	calls := make([]Call, spreadKeys)
	for i := range calls {
		calls[i].Keys = []string{fmt.Sprintf("holdfast:{%03x}", rand.N(Buckets))}
	}
	answers := s.Client.EvalAll(ctx, runIDScript, calls)
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
		s.Spread.Store(true)
	case ids[""]:
		return unanswered
	}
	return nil
}
