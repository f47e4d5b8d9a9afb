package layouts

import (
	"context"
	"strconv"
	"time"

	"github.com/holdfast-go/holdfast/redisstore/internal/server"
)

// keys returns the keys of a name.
func (s *store) keys(key string) []string {
	all := append(make([]string, 0, 4), key, besideKey(key))
	if s.rules.keys != nil {
		all = append(all, s.rules.keys(key)...)
	}
	return all
}

// step has the key and the arguments of a script, which scripts/common.lua describes.
type step struct {
	key     string // of the name
	id, own string
	ttl     time.Duration
	late    int64
	least   uint64
	owner   string
	limit   int
	queue   bool
	verbArg string
}

// call returns the call of a script for a step.
func (s *store) call(st *step) server.Call {
	return server.Call{Keys: s.keys(st.key), Args: []string{
		st.id, st.own, strconv.FormatInt(millis(st.ttl), 10), strconv.FormatInt(st.late, 10), strconv.FormatUint(st.least, 10), st.owner,
		strconv.Itoa(st.limit), server.Digit(s.channels.sharded()), server.Digit(st.queue), strconv.FormatInt(s.srv.Config.FairWait.Milliseconds(), 10),
		s.channel(st.key), stemOf(st.key), st.verbArg,
	}}
}

// channel returns the channel on which a release of the name notifies.
func (s *store) channel(key string) string { return prefixed(s.rules.channel, key) }

// millis rounds a duration up to the unit of the layouts, milliseconds.
func millis(d time.Duration) int64 { return int64((d + time.Millisecond - 1) / time.Millisecond) }

// eval runs a script for a step.
func (s *store) eval(ctx context.Context, sc *server.Script, st *step) (server.Reply, error) {
	c := s.call(st)
	return s.srv.Eval(ctx, sc, c.Keys, c.Args)
}
