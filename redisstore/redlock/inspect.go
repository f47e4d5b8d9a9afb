package redlock

import (
	"context"
	"iter"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/redisstore/internal/server"
)

// seen is the state of one name, as a quorum of servers reports it.
type seen struct {
	id     string // the ID of the ballot with a quorum, "" if there is none
	holder driver.Holder
	ttl    time.Duration // the TTL that the holder requested
	err    error         // why a server cannot read the name, nil if all can
	open   bool          // servers that have not answered may complete a quorum
}

// read reads the keys of names from all servers. It returns when all servers have answered, or a
// quorum has answered and the other servers have had a little more time.
func (s *store) read(ctx context.Context, names []string) ([]seen, error) {
	calls := make([]server.Call, len(names))
	for i, name := range names {
		calls[i].Keys = []string{s.prefix() + name}
	}
	reports := make(chan []answer, len(s.nodes))
	err := s.await(ctx, func(n *node) error {
		all := n.evalAll(2*time.Second, readScript, calls)
		for _, a := range all {
			if a.err != nil && driver.CodeOf(a.err) != driver.CodeRefused {
				return a.err
			}
		}
		reports <- all
		return nil
	})
	if err != nil {
		return nil, driver.Errorf(driver.CodeUnavailable, "%w", err)
	}
	rivals := make([]map[string]*rival, len(names))
	for i := range rivals {
		rivals[i] = map[string]*rival{}
	}
	found := make([]seen, len(names))
	silent := len(s.nodes)
	for ; len(reports) > 0; silent-- {
		for i, a := range <-reports {
			if a.err != nil {
				found[i].err = a.err
			}
			if a.err == nil && len(a.values) == 2 && a.values[0] != "" {
				addVote(rivals[i], a.values[0], a.values[1])
			}
		}
	}
	for i := range rivals {
		for id, r := range rivals[i] {
			if len(r.left) < s.quorum {
				found[i].open = found[i].open || len(r.left)+silent >= s.quorum
				continue
			}
			// A quorum of servers keeps the vote for the quorum-th longest of these times.
			slices.Sort(r.left)
			h, ttl, _ := s.readHolder(r.value, r.left[len(r.left)-s.quorum])
			found[i].id, found[i].holder, found[i].ttl = id, h, ttl
		}
	}
	return found, nil
}

// rival is one ballot for a name, with the votes of all servers that have been read.
type rival struct {
	left  []time.Duration // for each vote, the time until it expires
	value string
	token uint64
}

// addVote adds the vote of one server: the value of the lock, and the milliseconds until it expires, -1
// if it does not.
func addVote(rivals map[string]*rival, value, expires string) {
	id, rest, _ := strings.Cut(value, " ")
	r := rivals[id]
	if r == nil {
		r = &rival{value: value}
		rivals[id] = r
	}
	left := never
	if ms, err := strconv.ParseInt(expires, 10, 64); err == nil && ms >= 0 {
		left = time.Duration(min(ms, never.Milliseconds())) * time.Millisecond
	}
	r.left = append(r.left, left)
	// The servers may report different tokens of one ballot: use the largest.
	number, _, _ := strings.Cut(rest, " ")
	if token, err := strconv.ParseUint(number, 10, 64); err == nil && token > r.token {
		r.token, r.value = token, value
	}
}

// Inspect returns the holder of a name: the request that has the votes of a quorum. It shows
// no waiters.
func (s *store) Inspect(ctx context.Context, name string) (driver.State, error) {
	st := driver.State{Name: name}
	if err := driver.CheckName(name); err != nil {
		return st, driver.Errorf(driver.CodeInvalid, "redlock: %w", err)
	}
	if err := s.begin(ctx); err != nil {
		return st, err
	}
	defer s.calls.Leave()
	found, err := s.read(ctx, []string{name})
	switch {
	case err != nil:
		return st, err
	case found[0].id != "":
		st.Holders = []driver.Holder{found[0].holder}
		return st, nil
	}
	return st, found[0].err
}

// List yields the names that are held. In the layout of redsync it yields only names with a
// holder of holdfast, because any other string may belong to another program.
func (s *store) List(ctx context.Context, prefix string) iter.Seq2[driver.State, error] {
	return func(yield func(driver.State, error) bool) {
		if err := s.begin(ctx); err != nil {
			yield(driver.State{}, err)
			return
		}
		defer s.calls.Leave()
		names, err := s.names(ctx, prefix)
		if err != nil {
			yield(driver.State{}, err)
			return
		}
		for some := range slices.Chunk(names, 100) {
			found, err := s.read(ctx, some)
			if err != nil {
				yield(driver.State{}, err)
				return
			}
			for i, f := range found {
				st := driver.State{Name: some[i], Err: f.err}
				if err := driver.CheckName(st.Name); err != nil {
					st.Err = driver.Broken(s.prefix()+st.Name, err.Error())
				}
				if f.id != "" && !(s.cfg.redsync && f.holder.Token == 0) {
					st.Holders = []driver.Holder{f.holder}
				}
				if s.cfg.redsync && len(st.Holders) == 0 {
					st.Err = nil // another program's key
				}
				if (len(st.Holders) > 0 || st.Err != nil) && !yield(st, nil) {
					return
				}
			}
		}
	}
}

// names returns the names that have a key at any server, in byte order.
func (s *store) names(ctx context.Context, prefix string) ([]string, error) {
	reports := make(chan []string, len(s.nodes))
	before := s.prefix()
	var kind []string
	if s.cfg.redsync { // any other key may belong to another program
		kind = []string{"TYPE", "string"}
	}
	err := s.await(ctx, func(n *node) error {
		ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
		var names []string
		err := n.client.EachPrimary(ctx, func(at server.Node) error {
			return server.Scan(ctx, at, func(key string) {
				if name, ok := strings.CutPrefix(key, before); ok && name != "" && strings.HasPrefix(name, prefix) {
					names = append(names, name)
				}
			}, append([]string{"MATCH", server.EscapeGlob(before+prefix) + "*"}, kind...)...)
		})
		if err != nil {
			return n.fail(err)
		}
		reports <- names
		return nil
	})
	if err != nil {
		return nil, driver.Errorf(driver.CodeUnavailable, "%w", err)
	}
	var all []string
	for len(reports) > 0 {
		all = append(all, <-reports...)
	}
	slices.Sort(all)
	return slices.Compact(all), nil
}
