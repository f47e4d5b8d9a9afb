package etcdstore

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/holdfast-go/holdfast/driver"
)

// unwatchable is an etcd in which two places stand in a queue and every watch ends as
// soon as it was made.
type unwatchable struct {
	clientv3.KV
	clientv3.Watcher
	queue   []*mvccpb.KeyValue
	watches []time.Time
	made    func() // is called with each watch
}

func (u *unwatchable) Close() error { return nil }

func (u *unwatchable) Watch(context.Context, string, ...clientv3.OpOption) clientv3.WatchChan {
	u.watches = append(u.watches, time.Now())
	u.made()
	ended := make(chan clientv3.WatchResponse)
	close(ended)
	return ended
}

func (u *unwatchable) answer(kvs ...*mvccpb.KeyValue) *etcdserverpb.RangeResponse {
	return &etcdserverpb.RangeResponse{Header: &etcdserverpb.ResponseHeader{Revision: 9}, Kvs: kvs}
}

func (u *unwatchable) Get(_ context.Context, key string, _ ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	for _, kv := range u.queue {
		if string(kv.Key) == key {
			return (*clientv3.GetResponse)(u.answer(kv)), nil
		}
	}
	return (*clientv3.GetResponse)(u.answer(u.queue...)), nil
}

func (u *unwatchable) Txn(context.Context) clientv3.Txn { return unwatchableTxn{u} }

type unwatchableTxn struct{ u *unwatchable }

func (x unwatchableTxn) If(...clientv3.Cmp) clientv3.Txn  { return x }
func (x unwatchableTxn) Then(...clientv3.Op) clientv3.Txn { return x }
func (x unwatchableTxn) Else(...clientv3.Op) clientv3.Txn { return x }

// Commit answers the two reads of an exclusive place: the first, and the last two.
func (x unwatchableTxn) Commit() (*clientv3.TxnResponse, error) {
	read := func(kvs ...*mvccpb.KeyValue) *etcdserverpb.ResponseOp {
		return &etcdserverpb.ResponseOp{Response: &etcdserverpb.ResponseOp_ResponseRange{ResponseRange: x.u.answer(kvs...)}}
	}
	return &clientv3.TxnResponse{Header: &etcdserverpb.ResponseHeader{Revision: 9}, Succeeded: true,
		Responses: []*etcdserverpb.ResponseOp{read(x.u.queue[0]), read(x.u.queue...)}}, nil
}

// silent asks and hears nothing.
type silent struct{}

func (silent) Owner() driver.Owner      { return driver.Owner{} }
func (silent) Queued([]driver.Holder)   {}
func (silent) Lost(driver.Cause, error) {}

// TestPauseAfterAFailedWatch: where watches end at once, a place asks again after
// pauses that double from waitRetry to waitRetryMost, and does not flood the server.
func TestPauseAfterAFailedWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		lay := newLayout("", "")
		u := &unwatchable{queue: []*mvccpb.KeyValue{
			{Key: []byte(lay.place("n", 1, 0)), Lease: 1, CreateRevision: 3, ModRevision: 3},
			{Key: []byte(lay.place("n", 2, 0)), Lease: 2, CreateRevision: 4, ModRevision: 4},
		}}
		u.made = func() {
			if len(u.watches) == 100 {
				cancel() // without pauses the clock would stand still
			}
		}
		client := clientv3.NewCtxClient(t.Context())
		client.KV, client.Watcher = u, u
		s := &Store{client: client, lay: lay, ctx: t.Context()}
		e := &session{s: s, lease: 2, ttl: time.Minute, sent: driver.Now(), over: make(chan struct{})}
		a := &attempt{r: driver.Request{ID: "w", Name: "n", Limit: driver.Exclusive, From: silent{}}, e: e,
			key: string(u.queue[1].Key), passed: make(chan int64, 1)}
		a.rev.Store(4)

		v, err := s.look(ctx, a)
		if err != nil || !v.stands || v.granted {
			t.Fatalf("%+v, %v", v, err)
		}
		if _, err := s.wait(ctx, a, v, nil); driver.CodeOf(err) != driver.Unknown {
			t.Errorf("the wait ended with %v", err)
		}
		var pauses, want []time.Duration
		for i := range len(u.watches) - 1 {
			pauses = append(pauses, u.watches[i+1].Sub(u.watches[i]))
			want = append(want, min(waitRetry<<min(i, 10), waitRetryMost))
		}
		if len(u.watches) < 10 || !slices.Equal(pauses, want) {
			t.Errorf("%d watches, after pauses of %s, want %s", len(u.watches), pauses, want)
		}
	})
}
