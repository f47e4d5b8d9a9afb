package etcdstore

import (
	"cmp"
	"context"
	"errors"
	"iter"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/gather"
)

// Inspect returns the entries of a name, including those of other clients.
func (s *store) Inspect(ctx context.Context, name string) (driver.State, error) {
	if s.calls.Stopped() {
		return driver.State{}, errClosed
	}
	if err := s.lay.checkName(name); err != nil {
		return driver.State{}, err
	}
	prefix := s.lay.entries(name)
	resp, err := s.send.Get(ctx, prefix, clientv3.WithPrefix())
	if err != nil {
		return driver.State{}, s.doubted(unavailable(ctx, err))
	}
	q := newQueue(resp.Kvs, prefix)
	if err := q.broken(); err != nil {
		return driver.State{}, err
	}
	// The queue also contains keys below the name that are not locks, because other clients wait for
	// them, too.
	return s.state(ctx, name, q, ttls{})
}

// ttls are the remaining TTLs of leases, read once per inspection.
type ttls map[clientv3.LeaseID]time.Duration

func (s *store) state(ctx context.Context, name string, q queue, left ttls) (driver.State, error) {
	st := driver.State{Name: name}
	n := q.granted()
	if err := s.leasesLeft(ctx, q[:n], left); err != nil {
		return st, err
	}
	for i := range q {
		if i >= n {
			st.Waiters = append(st.Waiters, driver.Waiter{Owner: q[i].owner(), Limit: q[i].record.Limit})
			continue
		}
		h := s.holder(q[i])
		h.TTL = left[q[i].lease]
		st.Holders = append(st.Holders, h)
	}
	return st, nil
}

// leasesLeft reads the remaining TTLs of the holders' leases into left.
func (s *store) leasesLeft(ctx context.Context, holders queue, left ttls) error {
	var leases []clientv3.LeaseID
	for i := range holders {
		lease := holders[i].lease
		if _, known := left[lease]; known {
			continue
		}
		left[lease] = driver.Forever // right for a key without a lease; the read below replaces it for a lease
		if lease != clientv3.NoLease {
			leases = append(leases, lease)
		}
	}
	var mu sync.Mutex
	var failed error
	gather.Each(len(leases), readsAtOnce, func(i int) {
		resp, err := s.send.TimeToLive(ctx, leases[i])
		mu.Lock()
		defer mu.Unlock()
		switch {
		case errors.Is(err, rpctypes.ErrLeaseNotFound), err == nil && resp.TTL < 0: // the lease has ended
			left[leases[i]] = 0
		case err != nil:
			failed = unavailable(ctx, err)
		default:
			// Not 0, which would mean that the TTL is unknown.
			left[leases[i]] = max(time.Duration(resp.TTL)*time.Second, time.Microsecond)
		}
	})
	return failed
}

// page is the number of keys that List reads at a time.
const page = 1000

// List yields the names that start with prefix and have an entry, in byte order. It reads all
// keys below the prefix of the store's locks that start with prefix, and skips those that are not locks.
func (s *store) List(ctx context.Context, prefix string) iter.Seq2[driver.State, error] {
	return func(yield func(driver.State, error) bool) {
		if s.calls.Stopped() {
			yield(driver.State{}, errClosed)
			return
		}
		found, err := s.entries(ctx, s.lay.names+prefix)
		if err != nil {
			yield(driver.State{}, err)
			return
		}
		left := ttls{}
		for _, name := range slices.Sorted(maps.Keys(found)) {
			q := found[name]
			slices.SortFunc(q, func(a, b entry) int { return cmp.Compare(a.rev, b.rev) })
			st, err := driver.State{Name: name, Err: q.broken()}, error(nil)
			if st.Err == nil {
				st, err = s.state(ctx, name, q, left)
			}
			if !yield(st, err) || err != nil {
				return
			}
		}
	}
}

// entries reads all entries whose key begins with start, page by page. All pages have the revision of
// the first one. If the server compacts that revision, the remaining pages have a later one.
func (s *store) entries(ctx context.Context, start string) (map[string]queue, error) {
	found := map[string]queue{}
	end := clientv3.GetPrefixRangeEnd(start)
	if start == "" {
		start, end = "\x00", "\x00" // everything
	}
	var rev int64 // 0 reads the newest revision
	for {
		resp, err := s.send.Get(ctx, start, clientv3.WithRange(end), clientv3.WithLimit(page), clientv3.WithRev(rev))
		if errors.Is(err, rpctypes.ErrCompacted) {
			rev = 0
			continue
		}
		if err != nil {
			return nil, s.doubted(unavailable(ctx, err))
		}
		for _, kv := range resp.Kvs {
			p := newEntry(kv)
			if name, ok := s.lay.nameOf(&p); ok {
				found[name] = append(found[name], p)
			}
		}
		if !resp.More {
			return found, nil
		}
		if rev == 0 { // the header has the server's newest revision, even if the pages have an older one
			rev = resp.Header.Revision
		}
		start = string(resp.Kvs[len(resp.Kvs)-1].Key) + "\x00"
	}
}

// Break deletes the entry that was granted with the token. If the holder is a client of this package,
// it notices that within the Notice of the guarantees.
func (s *store) Break(ctx context.Context, name string, token uint64) error {
	if s.calls.Stopped() {
		return errClosed
	}
	if err := s.lay.checkName(name); err != nil {
		return err
	}
	prefix := s.lay.entries(name)
	resp, err := s.send.Get(ctx, prefix, clientv3.WithPrefix())
	if err != nil {
		return unavailable(ctx, err)
	}
	q := newQueue(resp.Kvs, prefix)
	for _, p := range q[:q.granted()] {
		h := s.holder(p)
		if !driver.HasToken(h.Token, h.Tokens, token) || p.broken != "" {
			continue
		}
		done, err := s.send.Txn(ctx).
			If(clientv3.Compare(clientv3.CreateRevision(p.key), "=", p.rev)).
			Then(clientv3.OpDelete(p.key)).Commit()
		if err != nil {
			return unknown(ctx, err)
		}
		if done.Succeeded {
			return nil
		}
	}
	if err := q.broken(); err != nil {
		return err
	}
	return errNotHeld
}

// Watch calls changed when the watch is set, and after each change of the name's entries, or of all
// entries if name is empty.
func (s *store) Watch(ctx context.Context, name string, changed func()) error {
	if s.calls.Stopped() {
		return errClosed
	}
	if err := s.lay.checkName(name); err != nil {
		return err
	}
	w := &watch{puts: true}
	w.setPrefix(s.lay.names)
	if name != "" {
		w.setPrefix(s.lay.entries(name))
	}
	mail := &mailbox{full: make(chan struct{}, 1)}
	w.update = mail.put
	s.watch(w)
	defer s.unwatch(w)
	for {
		select {
		case <-mail.full:
		case <-s.calls.Ctx.Done():
			return errClosed
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		u := mail.take()
		if u.err != nil {
			return u.err
		}
		if u.isSet || slices.ContainsFunc(u.events, func(ev *mvccpb.Event) bool { return s.lay.aboutLocks(string(ev.Kv.Key)) }) {
			changed()
		}
	}
}

// aboutLocks reports whether a key may belong to a lock. The keys that begin with reserved do not,
// except the locks of namespaces.
func (l layout) aboutLocks(key string) bool {
	rest, own := strings.CutPrefix(key, l.prefix+reserved)
	return !own || strings.HasPrefix(rest, namespaces)
}
