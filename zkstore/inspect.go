package zkstore

import (
	"cmp"
	"context"
	"errors"
	"iter"
	"slices"
	"strings"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/zkstore/internal/zk"
)

// Inspect returns the state of one name.
func (s *store) Inspect(ctx context.Context, name string) (driver.State, error) {
	if s.calls.Stopped() {
		return driver.State{}, errClosed()
	}
	ss, err := s.anySession(ctx)
	if err != nil {
		return driver.State{}, err
	}
	return ss.inspect(ctx, name)
}

func (ss *session) inspect(ctx context.Context, name string) (driver.State, error) {
	inspect := ss.inspectQueue
	if ss.s.cfg.layout == Semaphore {
		inspect = ss.inspectSemaphore
	}
	st := driver.State{Name: name}
	var err error
	if st.Holders, st.Waiters, err = inspect(ctx, ss.s.dir(name)); err != nil {
		return driver.State{}, ss.s.unread(err)
	}
	slices.SortFunc(st.Holders, func(a, b driver.Holder) int { return cmp.Compare(a.Token, b.Token) })
	return st, nil
}

// inspectQueue returns the holders and waiters of a layout with a single queue.
func (ss *session) inspectQueue(ctx context.Context, dir string) ([]driver.Holder, []driver.Waiter, error) {
	all, err := ss.nodes(ctx, dir, ss.s.recipe.read)
	if err != nil {
		return nil, nil, err
	}
	return ss.describe(ctx, dir, all, countGrants(all))
}

// nodes reads a directory as it is at the leader. A missing directory is empty. The leader itself may
// apply a write some milliseconds after a follower has confirmed it.
func (ss *session) nodes(ctx context.Context, dir string, read func(string) (node, bool)) ([]node, error) {
	flush, base, list := zk.Sync(dir), zk.Get(ss.s.baseNode(), false), zk.Children(dir)
	err := ss.zk.Do(ctx, flush, base, list)
	if err == nil {
		err = list.Err
		ss.showBase(base) // after an error, tokens are shown with the last base
	}
	if errors.Is(err, zk.ErrNoNode) {
		return nil, nil
	}
	if err != nil {
		return nil, err // an answer may still come, and set list.Names
	}
	return nodesOf(list.Names, read), nil
}

// batch is the number of requests that are sent in one piece when a whole store is read.
const batch = 128

// describe reads the nodes of a queue, the first of which are grants.
func (ss *session) describe(ctx context.Context, dir string, all []node, grants int) (holders []driver.Holder, waiters []driver.Waiter, err error) {
	for start := 0; start < len(all); start += batch {
		some := all[start:min(start+batch, len(all))]
		calls := make([]*zk.Call, len(some))
		for i, n := range some {
			calls[i] = zk.Get(dir+"/"+n.name, false)
		}
		if err := ss.zk.Do(ctx, calls...); err != nil {
			return nil, nil, err
		}
		for i, c := range calls {
			switch {
			case errors.Is(c.Err, zk.ErrNoNode): // it has gone meanwhile
			case c.Err != nil:
				return nil, nil, c.Err
			default:
				h, err := ss.holderOf(dir, some[i], c)
				switch {
				case err != nil:
					return nil, nil, err
				case start+i < grants:
					holders = append(holders, h)
				default:
					waiters = append(waiters, driver.Waiter{Owner: h.Owner, Limit: h.Limit})
				}
			}
		}
	}
	return holders, waiters, nil
}

// holderOf returns the holder in the answer to a read of a node in dir.
func (ss *session) holderOf(dir string, n node, c *zk.Call) (driver.Holder, error) {
	h, broken := decodeOwner(n.name, c.Data, c.Stat)
	if broken != "" {
		return driver.Holder{}, driver.Broken(dir+"/"+n.name, broken)
	}
	h.Token, h.Limit, h.Slot = ss.token(c.Stat.Czxid), n.limit, driver.NoSlot
	return h, nil
}

// List yields the names that are held or waited for. It skips names that were used lately:
// they still have an empty node, which the server removes.
func (s *store) List(ctx context.Context, prefix string) iter.Seq2[driver.State, error] {
	return func(yield func(driver.State, error) bool) {
		if s.calls.Stopped() {
			yield(driver.State{}, errClosed())
			return
		}
		ss, err := s.anySession(ctx)
		if err != nil {
			yield(driver.State{}, err)
			return
		}
		names, err := ss.names(ctx, prefix)
		if err != nil {
			yield(driver.State{}, s.unread(err))
			return
		}
		for some := range slices.Chunk(names, batch) {
			used, err := ss.used(ctx, some)
			if err != nil {
				yield(driver.State{}, s.unread(err))
				return
			}
			for _, name := range used {
				st, err := ss.inspect(ctx, name)
				switch {
				case err == nil && len(st.Holders)+len(st.Waiters) == 0:
					continue
				case driver.CodeOf(err) == driver.CodeRefused: // a broken node, or one that this user cannot read
					st, err = driver.State{Name: name, Err: err}, nil
				}
				if !yield(st, err) || err != nil {
					return
				}
			}
		}
	}
}

// names returns the names that have a node, in order.
func (ss *session) names(ctx context.Context, prefix string) ([]string, error) {
	home := cmp.Or(ss.s.home, "/")
	flush, list := zk.Sync(home), zk.Children(home)
	if err := ss.zk.Do(ctx, flush, list); err != nil {
		return nil, err
	}
	if errors.Is(list.Err, zk.ErrNoNode) {
		return nil, nil
	}
	var names []string
	for _, n := range list.Names {
		if name, ok := unescape(n); ok && strings.HasPrefix(name, prefix) && driver.CheckName(name) == nil {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names, list.Err
}

// used returns the names that have a node of the recipe, or whose nodes this user cannot read.
func (ss *session) used(ctx context.Context, names []string) ([]string, error) {
	var calls []*zk.Call
	var dirs []string
	for _, name := range names {
		for _, dir := range ss.s.recipe.dirs(ss.s.dir(name)) {
			dirs = append(dirs, dir)
			calls = append(calls, zk.Children(dir))
		}
	}
	per := len(calls) / max(len(names), 1)
	if err := ss.zk.Do(ctx, calls...); err != nil {
		return nil, err
	}
	var used []string
	for i, name := range names {
		for j, c := range calls[i*per : (i+1)*per] {
			noAuth := errors.Is(c.Err, zk.ErrNoAuth)
			if c.Err != nil && !noAuth && !errors.Is(c.Err, zk.ErrNoNode) {
				return nil, c.Err
			}
			if noAuth || len(nodesOf(c.Names, ss.s.recipe.reader(dirs[i*per+j], 1))) > 0 {
				used = append(used, name)
				break
			}
		}
	}
	return used, nil
}
