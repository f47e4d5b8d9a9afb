package etcdstore

import (
	"context"
	"fmt"
	"strconv"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/fence"
)

// Guard is a [fence.Guard] for data in etcd. It keeps the largest token seen for each resource. One
// transaction compares the token, raises it and writes the data. A resource is any name that its
// writers agree on; the keys that are written need not be named after it. The data may be on
// another cluster than the locks: open a store there for its guard.
//
// The token of resource R is kept at the key PREFIX_holdfast/fence/R, in 19 digits, so that the
// server compares numbers when it compares bytes. The key stays until an operator deletes it. The
// guard does not refuse writes that bypass it.
type Guard struct{ s *store }

// Guard returns a guard over the client of this store. It ends with the store.
func (s *Store) Guard() *Guard { return &Guard{s.store} }

var _ fence.Guard[[]clientv3.Op] = (*Guard)(nil)

// Write implements [fence.Guard]: it does the operations in one transaction. Errors wrap
// [fence.ErrStale], [fence.ErrInvalid], [fence.ErrUnavailable] or [fence.ErrCorrupt].
func (g *Guard) Write(ctx context.Context, resource string, token uint64, write []clientv3.Op) error {
	_, err := g.Txn(ctx, resource, token, write...)
	return err
}

// Txn is Write with the answers of the operations, by index. For conditions of your own pass a
// clientv3.OpTxn, and read from its answer whether they were met.
func (g *Guard) Txn(ctx context.Context, resource string, token uint64, write ...clientv3.Op) ([]*etcdserverpb.ResponseOp, error) {
	if err := fence.CheckArguments(ctx, resource, token); err != nil {
		return nil, err
	}
	if err := g.checkOpen(resource); err != nil {
		return nil, err
	}
	key, mark := g.s.lay.fence(resource), fmt.Sprintf("%019d", token) // mutation: etcd-guard-step
	// The comparison fails where there is no mark, so that the first write passes, too.
	resp, err := g.s.send.Txn(ctx).
		If(clientv3.Compare(clientv3.Value(key), ">", mark)). // mutation: etcd-guard
		Then(clientv3.OpGet(key)).
		Else(append([]clientv3.Op{clientv3.OpPut(key, mark)}, write...)...).
		Commit()
	if err != nil {
		if err = writeError(ctx, err); driver.CodeOf(err) == driver.CodeUnknown {
			return nil, fmt.Errorf("%w: %q: it may have been written: %w", fence.ErrUnavailable, resource, err)
		}
		return nil, fmt.Errorf("%w: %q: %w", fence.ErrUnavailable, resource, err)
	}
	if !resp.Succeeded {
		return resp.Responses[1:], nil
	}
	newest, err := markOf(resource, resp.Responses[0].GetResponseRange())
	if err != nil {
		return nil, err
	}
	return nil, &fence.StaleError{Resource: resource, Token: token, Newest: newest}
}

// Raise implements [fence.Guard].
func (g *Guard) Raise(ctx context.Context, resource string, token uint64) error {
	return g.Write(ctx, resource, token, nil)
}

// Newest implements [fence.Guard].
func (g *Guard) Newest(ctx context.Context, resource string) (uint64, error) {
	if err := fence.CheckArguments(ctx, resource, 1); err != nil {
		return 0, err
	}
	if err := g.checkOpen(resource); err != nil {
		return 0, err
	}
	resp, err := g.s.send.Get(ctx, g.s.lay.fence(resource))
	if err != nil {
		return 0, fmt.Errorf("%w: %q: %w", fence.ErrUnavailable, resource, unavailable(ctx, err))
	}
	return markOf(resource, (*etcdserverpb.RangeResponse)(resp))
}

func (g *Guard) checkOpen(resource string) error {
	if g.s.calls.Stopped() {
		return fmt.Errorf("%w: %q: nothing written: %w", fence.ErrUnavailable, resource, errClosed)
	}
	return nil
}

// markOf returns the token in the answer to a read of the resource's key, 0 if there is no key.
func markOf(resource string, r *etcdserverpb.RangeResponse) (uint64, error) {
	if len(r.Kvs) == 0 {
		return 0, nil
	}
	value := string(r.Kvs[0].Value)
	if n, err := strconv.ParseUint(value, 10, 63); err == nil && n > 0 && len(value) == 19 {
		return n, nil
	}
	return 0, fmt.Errorf("%w: the token of %q: %.40q", fence.ErrCorrupt, resource, value)
}
