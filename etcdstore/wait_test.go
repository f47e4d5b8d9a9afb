package etcdstore

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/holdfast-go/holdfast/driver"
)

// unwatchable imitates an etcd with two entries in a queue. Every watch stream ends as soon as it
// was opened.
type unwatchable struct {
	clientv3.KV
	queue  []*mvccpb.KeyValue
	opened func() // called with each stream
	failed error  // of each read
	reads  int

	mu      sync.Mutex
	streams []time.Time
}

func (u *unwatchable) Watch(context.Context, ...grpc.CallOption) (etcdserverpb.Watch_WatchClient, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.streams = append(u.streams, time.Now())
	u.opened()
	return nil, errors.New("the stream has ended")
}

func (u *unwatchable) answer(kvs ...*mvccpb.KeyValue) *etcdserverpb.RangeResponse {
	return &etcdserverpb.RangeResponse{Header: &etcdserverpb.ResponseHeader{Revision: 9}, Kvs: kvs}
}

// read returns the entry of a key, or else all of them.
func (u *unwatchable) read(key string) *etcdserverpb.RangeResponse {
	for _, kv := range u.queue {
		if string(kv.Key) == key {
			return u.answer(kv)
		}
	}
	return u.answer(u.queue...)
}

func (u *unwatchable) Txn(context.Context) clientv3.Txn { return unwatchableTxn{u: u} }

type unwatchableTxn struct {
	u   *unwatchable
	ops []clientv3.Op
}

func (x unwatchableTxn) If(...clientv3.Cmp) clientv3.Txn      { return x }
func (x unwatchableTxn) Then(ops ...clientv3.Op) clientv3.Txn { x.ops = ops; return x }
func (x unwatchableTxn) Else(...clientv3.Op) clientv3.Txn     { return x }

// Commit returns the answer to one read, or those to the two reads of an exclusive entry: the first entry, and the last
// two.
func (x unwatchableTxn) Commit() (*clientv3.TxnResponse, error) {
	if x.u.reads++; x.u.failed != nil {
		return nil, x.u.failed
	}
	read := func(r *etcdserverpb.RangeResponse) *etcdserverpb.ResponseOp {
		return &etcdserverpb.ResponseOp{Response: &etcdserverpb.ResponseOp_ResponseRange{ResponseRange: r}}
	}
	responses := []*etcdserverpb.ResponseOp{read(x.u.answer(x.u.queue[0])), read(x.u.answer(x.u.queue...))}
	if len(x.ops) == 1 {
		responses = responses[:1]
		responses[0] = read(x.u.read(string(x.ops[0].KeyBytes())))
	}
	return &clientv3.TxnResponse{Header: &etcdserverpb.ResponseHeader{Revision: 9}, Succeeded: true, Responses: responses}, nil
}

// noRequester is a requester without an owner that ignores all calls.
type noRequester struct{}

func (noRequester) Owner() driver.Owner      { return driver.Owner{} }
func (noRequester) Queued([]driver.Holder)   {}
func (noRequester) Lost(driver.Cause, error) {}

// TestPauseAfterFailedStream: watch streams end at once. The store opens the next one after
// a backoff that doubles up to waitRetryMax, so it does not flood the server. The waiter
// continues to wait.
func TestPauseAfterFailedStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		lay := newLayout("", "")
		u := &unwatchable{queue: []*mvccpb.KeyValue{
			{Key: []byte(lay.entry("n", 1, 0)), Lease: 1, CreateRevision: 3, ModRevision: 3},
			{Key: []byte(lay.entry("n", 2, 0)), Lease: 2, CreateRevision: 4, ModRevision: 4},
		}}
		s, end := storeOver(t, nil)
		defer end()
		u.opened = func() {
			if len(u.streams) == 100 {
				cancel() // without a backoff the clock would stand still
			}
		}
		client := clientv3.NewCtxClient(t.Context())
		client.KV = u
		s.client, s.send, s.lay, s.watches.client = client, sender{client}, lay, u
		e := &session{s: s, lease: 2, ttl: time.Minute, sent: driver.Now(), over: make(chan struct{})}
		a := &request{r: driver.Request{ID: "w", Name: "n", Limit: driver.Exclusive, From: noRequester{}}, e: e,
			key: string(u.queue[1].Key), woken: make(chan int64, 1)}
		a.rev.Store(4)

		v, err := s.readView(ctx, a)
		if err != nil || !v.exists || v.granted {
			t.Fatalf("%+v, %v", v, err)
		}
		if _, err := s.wait(ctx, a, v, nil); driver.CodeOf(err) != driver.CodeUnknown || ctx.Err() == nil {
			t.Errorf("the wait ended with %v", err)
		}
		u.mu.Lock() // the store may continue to open streams
		defer u.mu.Unlock()
		if len(u.streams) < 10 || len(u.streams) > 30 {
			t.Errorf("%d streams in 10 s", len(u.streams))
		}
		for i := range len(u.streams) - 1 {
			pause, most := u.streams[i+1].Sub(u.streams[i]), min(waitRetry<<min(i, 10), waitRetryMax)
			if pause < most/2 || pause > most {
				t.Errorf("pause %d: %s, want from %s to %s", i, pause, most/2, most)
			}
		}
	})
}

// TestWaitWithoutAnswersEndsWithItsSession: no read of the queue is answered. The waiter reads again after a backoff, and
// ends when no keepalive was answered for the whole TTL.
func TestWaitWithoutAnswersEndsWithItsSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := &unwatchable{failed: errors.New("no answer")}
		s, end := storeOver(t, nil)
		defer end()
		client := clientv3.NewCtxClient(t.Context())
		client.KV = u
		s.client, s.send = client, sender{client}
		e := &session{s: s, lease: 2, ttl: time.Minute, sent: driver.Now(), over: make(chan struct{})}
		a := &request{r: driver.Request{ID: "w", Name: "n", Limit: driver.Exclusive, From: noRequester{}}, e: e, woken: make(chan int64, 1)}
		a.rev.Store(4)
		time.AfterFunc(10*time.Second, func() { e.end(errNotRenewed) })
		if _, err := s.wait(t.Context(), a, view{}, u.failed); err != errNotRenewed {
			t.Errorf("the wait ended with %v, want %v", err, errNotRenewed)
		}
		if u.reads < 10 || u.reads > 30 {
			t.Errorf("%d reads in 10 s", u.reads)
		}
	})
}
