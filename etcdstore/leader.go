package etcdstore

import (
	"context"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/holdfast-go/holdfast/internal/backoff"
)

// noLeaderTimeout limits for how long a request is sent again because members have no leader.
const noLeaderTimeout = requestTimeout

// withLeader sends a request until a member with a leader has got it: see "Which members a client uses" in the package
// comment. A member without a leader refuses the request before it does anything else. So a write may be sent again.
func withLeader[T any](ctx context.Context, request func(context.Context) (T, error)) (T, error) {
	required := clientv3.WithRequireLeader(ctx)
	retry := backoff.Backoff{First: 10 * time.Millisecond, Max: 500 * time.Millisecond}
	for began := time.Now(); ; {
		answer, err := request(required)
		if rpctypes.Error(err) != rpctypes.ErrNoLeader || time.Since(began) > noLeaderTimeout || retry.Sleep(ctx) != nil {
			return answer, err
		}
	}
}

// sender sends the requests of a store by withLeader.
type sender struct{ client *clientv3.Client }

// Get reads by a transaction, which the client library does not repeat by itself. It would repeat another read some 80
// times a second while there is no leader.
func (r sender) Get(ctx context.Context, key string, o ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	answer, err := r.Txn(ctx).Then(clientv3.OpGet(key, o...)).Commit()
	if err != nil {
		return nil, err
	}
	found := answer.Responses[0].GetResponseRange()
	found.Header = answer.Header // that of the part names neither the cluster nor the member
	return (*clientv3.GetResponse)(found), nil
}

func (r sender) Put(ctx context.Context, key, value string, o ...clientv3.OpOption) (*clientv3.PutResponse, error) {
	return withLeader(ctx, func(ctx context.Context) (*clientv3.PutResponse, error) { return r.client.Put(ctx, key, value, o...) })
}

func (r sender) Grant(ctx context.Context, ttl int64) (*clientv3.LeaseGrantResponse, error) {
	return withLeader(ctx, func(ctx context.Context) (*clientv3.LeaseGrantResponse, error) { return r.client.Grant(ctx, ttl) })
}

func (r sender) Revoke(ctx context.Context, lease clientv3.LeaseID) (*clientv3.LeaseRevokeResponse, error) {
	return withLeader(ctx, func(ctx context.Context) (*clientv3.LeaseRevokeResponse, error) { return r.client.Revoke(ctx, lease) })
}

func (r sender) TimeToLive(ctx context.Context, lease clientv3.LeaseID, o ...clientv3.LeaseOption) (*clientv3.LeaseTimeToLiveResponse, error) {
	return withLeader(ctx, func(ctx context.Context) (*clientv3.LeaseTimeToLiveResponse, error) {
		return r.client.TimeToLive(ctx, lease, o...)
	})
}

// Txn begins a transaction.
func (r sender) Txn(ctx context.Context) *txn {
	return &txn{ctx, r.client.Txn(clientv3.WithRequireLeader(ctx))}
}

type txn struct {
	ctx context.Context
	txn clientv3.Txn
}

func (t *txn) If(all ...clientv3.Cmp) *txn  { t.txn = t.txn.If(all...); return t }
func (t *txn) Then(all ...clientv3.Op) *txn { t.txn = t.txn.Then(all...); return t }
func (t *txn) Else(all ...clientv3.Op) *txn { t.txn = t.txn.Else(all...); return t }

func (t *txn) Commit() (*clientv3.TxnResponse, error) {
	return withLeader(t.ctx, func(context.Context) (*clientv3.TxnResponse, error) { return t.txn.Commit() })
}
