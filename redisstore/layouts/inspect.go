package layouts

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/redisstore/internal/server"
)

// inspectAll returns the states of names, in their order.
func (s *store) inspectAll(ctx context.Context, names []string) []server.Inspected {
	calls := make([]server.Call, len(names))
	for i, name := range names {
		calls[i] = s.call(&step{key: s.key(name)})
	}
	all := make([]server.Inspected, len(names))
	for i, a := range s.srv.EvalAll(ctx, s.verbs.inspect, calls) {
		all[i].State.Name = names[i]
		if all[i].Err = a.Err; a.Err == nil {
			all[i].State.Holders = s.holders(a.Reply.Values)
			slices.SortFunc(all[i].State.Holders, func(a, b driver.Holder) int {
				return cmp.Or(cmp.Compare(a.Token, b.Token), strings.Compare(a.ID, b.ID))
			})
		}
	}
	return all
}

// names returns the names that clients of holdfast hold and, in a layout of hashes, those that
// other clients hold, in byte order.
func (s *store) names(ctx context.Context, prefix string) ([]string, error) {
	seen := map[string]bool{}
	start := s.key("") // every name's key starts with it
	add := func(key string) {
		if name, ok := strings.CutPrefix(key, start); ok && strings.HasPrefix(name, prefix) && driver.CheckName(name) == nil {
			seen[name] = true
		}
	}
	err := s.srv.Client.EachPrimary(ctx, func(n server.Node) error {
		err := server.Scan(ctx, n, func(key string) { add(keyBeside(key)) }, "MATCH", besidePrefix+"*", "TYPE", "hash")
		if err != nil || s.rules.channel == permitChannel {
			return err // a key with a number may belong to any program
		}
		return server.Scan(ctx, n, func(key string) {
			if !strings.HasPrefix(key, "holdfast:") {
				add(key)
			}
		}, "MATCH", server.EscapeGlob(start+prefix)+"*", "TYPE", s.rules.kind)
	})
	if err != nil {
		return nil, s.srv.Explain(err)
	}
	// Skip keys of the same type that are no locks, and those of other programs, which the user may not read.
	var held []string
	var refused error
	for some := range slices.Chunk(slices.Collect(maps.Keys(seen)), server.InspectBatch) {
		for _, a := range s.inspectAll(ctx, some) {
			if a.Err == nil && slices.ContainsFunc(a.State.Holders, s.isLock) {
				held = append(held, a.State.Name)
			}
			if driver.CodeOf(a.Err) == driver.CodeRefused {
				refused = a.Err
			}
		}
	}
	if held == nil && refused != nil {
		return nil, refused
	}
	slices.Sort(held)
	return held, nil
}

// isLock reports whether a holder is a grant of holdfast, or has the form of an owner of Redisson.
func (s *store) isLock(h driver.Holder) bool {
	if h.Token != 0 {
		return true
	}
	const uuidLength = 36
	uuid, thread, ok := strings.Cut(strings.TrimSuffix(h.ID, writerSuffix), ":")
	_, err := strconv.ParseInt(thread, 10, 64)
	return s.rules.kind == "hash" && ok && err == nil && len(uuid) == uuidLength
}

// holders parses the list of a script: owner, record, milliseconds left.
func (s *store) holders(listed []string) []driver.Holder {
	var all []driver.Holder
	for i := 0; i+2 < len(listed); i += 3 {
		h := driver.Holder{Owner: driver.Owner{ID: s.shown(strings.Clone(listed[i]))}, Limit: driver.Exclusive, Slot: driver.NoSlot, TTL: driver.Forever, Note: "of another client"}
		if s.layout == RedissonReadWrite && !strings.HasSuffix(listed[i], writerSuffix) {
			h.Limit = driver.Unlimited
		}
		if part := strings.SplitN(strings.Clone(listed[i+1]), " ", 5); len(part) == 5 {
			token, err1 := strconv.ParseUint(part[1], 10, 64)
			since, err2 := strconv.ParseInt(part[2], 10, 64)
			limit, err3 := strconv.Atoi(part[3])
			if errors.Join(err1, err2, err3) == nil {
				h.Owner, _ = server.ReadOwner(part[0], part[4], since)
				h.Token, h.Limit, h.Note = token, limit, ""
			}
		}
		if left, err := strconv.ParseInt(listed[i+2], 10, 64); err == nil && left >= 0 {
			h.TTL = time.Duration(left) * time.Millisecond
		}
		all = append(all, h)
	}
	return all
}
