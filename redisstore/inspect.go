package redisstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/redisstore/internal/server"
)

// readState parses the fields and values of a name's hash. now is the server's time. readState
// leaves out the grants and queue entries that have expired. The error names what no script has
// written.
func readState(name string, hash []string, now int64) (st driver.State, err error) {
	st.Name = name
	type queued struct {
		seq int64
		w   driver.Waiter
	}
	var queue []queued
	for i := 0; i+1 < len(hash); i += 2 {
		field, value := hash[i], hash[i+1]
		if len(field) < 2 {
			continue
		}
		n, notNumber := strconv.ParseInt(field[1:], 10, 64)
		if notNumber != nil {
			continue // the field is of another kind
		}
		switch field[0] {
		case 's': // a grant
			h, ok := readHolder(field[1:]+" "+value, now)
			if !ok && (field != "s0" || value != "") {
				err = fmt.Errorf("the grant %s", field)
			}
			if h.TTL > 0 {
				st.Holders = append(st.Holders, h)
			}
		case 'q': // a queue entry
			w, alive, ok := readWaiter(value, now)
			if !ok {
				err = fmt.Errorf("the queue entry %s", field)
			}
			if alive {
				queue = append(queue, queued{n, w})
			}
		}
	}
	if err != nil {
		return driver.State{Name: name}, err
	}
	slices.SortFunc(st.Holders, func(a, b driver.Holder) int { return cmp.Compare(a.Token, b.Token) })
	slices.SortFunc(queue, func(a, b queued) int { return cmp.Compare(a.seq, b.seq) })
	for _, q := range queue {
		st.Waiters = append(st.Waiters, q.w)
	}
	return st, nil
}

// readWaiter parses a queue entry, "ID LIMIT TTL DEADLINE SINCE CHANNEL OWNER". It returns false
// in ok if the text is no queue entry, and in alive also if the deadline has passed.
func readWaiter(rec string, now int64) (w driver.Waiter, alive, ok bool) {
	part := strings.SplitN(rec, " ", 7)
	if len(part) != 7 {
		return w, false, false
	}
	limit, err1 := strconv.Atoi(part[1])
	deadline, err2 := strconv.ParseInt(part[3], 10, 64)
	since, err3 := strconv.ParseInt(part[4], 10, 64)
	if errors.Join(err1, err2, err3) != nil {
		return w, false, false
	}
	owner, _ := server.ReadOwner(part[0], part[6], since)
	return driver.Waiter{Owner: owner, Limit: limit}, deadline > now, true
}

// inspectAll returns the states of names, in their order.
func (s *store) inspectAll(ctx context.Context, names []string) []server.Inspected {
	calls := make([]Call, len(names))
	for i, name := range names {
		calls[i] = Call{Keys: []string{s.keys.key(name)}}
	}
	all := make([]server.Inspected, len(names))
	for i, a := range s.srv.EvalAll(ctx, inspectScript, calls) {
		if all[i].State.Name, all[i].Err = names[i], a.Err; a.Err != nil {
			continue
		}
		state, err := readState(names[i], a.Reply.Values, a.Reply.Now)
		if err == nil {
			err = driver.CheckName(names[i])
		}
		if all[i].State = state; err != nil {
			all[i].Err = driver.Broken(calls[i].Keys[0], err.Error())
		}
	}
	return all
}

// names returns the names that begin with prefix and have a key, in byte order.
func (s *store) names(ctx context.Context, prefix string) ([]string, error) {
	var names []string
	err := s.srv.Client.EachPrimary(ctx, func(n Node) error {
		return server.Scan(ctx, n, func(key string) {
			if name, ok := s.keys.nameOf(key); ok && strings.HasPrefix(name, prefix) {
				names = append(names, name)
			}
		}, "MATCH", s.keys.pattern(prefix))
	})
	if err != nil {
		return nil, s.srv.Explain(err)
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}
