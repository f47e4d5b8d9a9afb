package etcd

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/e2e/conformance/requests"
	"github.com/holdfast-go/holdfast/etcdstore"
	"github.com/holdfast-go/holdfast/internal/servers"
)

var errBroken = status.Error(codes.Unavailable, "the connection broke")

// disturbed is a client. The next of its transactions that match meets a fault. After always, each of them does.
type disturbed struct {
	mu    sync.Mutex
	match func(*etcdserverpb.TxnRequest) bool // nil if no transaction is to meet a fault
	fault func(send func() error) error
	stays bool
}

// next lets the next transaction that matches meet a fault.
func (d *disturbed) next(match func(*etcdserverpb.TxnRequest) bool, fault func(send func() error) error) {
	d.set(match, fault, false)
}

// always lets each transaction that matches meet a fault, until clear.
func (d *disturbed) always(match func(*etcdserverpb.TxnRequest) bool, fault func(send func() error) error) {
	d.set(match, fault, true)
}

func (d *disturbed) clear() { d.set(nil, nil, false) }

func (d *disturbed) set(match func(*etcdserverpb.TxnRequest) bool, fault func(send func() error) error, stays bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.match, d.fault, d.stays = match, fault, stays
}

func (d *disturbed) txn(txn *etcdserverpb.TxnRequest, send func() error) error {
	d.mu.Lock()
	fault := d.fault
	if d.match == nil || !d.match(txn) {
		fault = nil
	} else if !d.stays {
		d.match = nil
	}
	d.mu.Unlock()
	if fault == nil {
		return send()
	}
	return fault(send)
}

// held returns a fault that delays a transaction: the client gets an error, and the server gets the transaction when
// the test calls sent.
func held(sent *func() error) func(send func() error) error {
	return func(send func() error) error {
		*sent = send
		return errBroken
	}
}

// noRight is the fault of a missing right.
var noRight = instead(status.Error(codes.PermissionDenied, "etcdserver: permission denied"))

// makes reports whether a transaction changes something: those have conditions, reads have
// none.
func makes(txn *etcdserverpb.TxnRequest) bool { return len(txn.Compare) > 0 }

func deletes(txn *etcdserverpb.TxnRequest) bool {
	return slices.ContainsFunc(txn.Success, func(op *etcdserverpb.RequestOp) bool {
		return op.GetRequestDeleteRange() != nil
	})
}

func puts(txn *etcdserverpb.TxnRequest) bool {
	return slices.ContainsFunc(txn.Success, func(op *etcdserverpb.RequestOp) bool { return op.GetRequestPut() != nil })
}

func (c *cluster) disturbed(t *testing.T) (*etcdstore.Store, *disturbed) {
	t.Helper()
	d := &disturbed{}
	return over(t, c.direct(t, onTxn(d.txn))), d
}

// TestBusyServerKeepsEntryAtGrant: a queue entry is the first, and the server is too busy to
// accept its claim. The entry stays.
func TestBusyServerKeepsEntryAtGrant(t *testing.T) {
	c := start(t, servers.EtcdConfig{})
	s, d := c.disturbed(t)
	other := c.open(t)
	first := must(t, other, request("n", 2, time.Minute))
	must(t, other, request("n", 2, time.Minute))
	w := queue(t, s, request("n", 2, time.Minute))
	d.next(puts, instead(rpctypes.ErrGRPCRequestTooManyRequests))
	check(t, other.Release(t.Context(), first, 0))
	w.Granted()
}

// TestMissingLeaseIsReplaced: a request finds its lease gone, and is granted on a new one. A release in the same
// transaction reports that the old grant has ended.
func TestMissingLeaseIsReplaced(t *testing.T) {
	c := start(t, servers.EtcdConfig{})
	s, client := c.open(t), c.direct(t)
	for name, acquire := range map[string]func(old driver.Grant, r driver.Request) driver.Grant{
		"try":  func(_ driver.Grant, r driver.Request) driver.Grant { return must(t, s, r) },
		"wait": func(_ driver.Grant, r driver.Request) driver.Grant { return submit(t, s, r).Granted() },
		"swap": func(old driver.Grant, r driver.Request) driver.Grant {
			released, w := requests.Swap(t, s, old, r)
			requests.Code(t, s, receive(t, "the release", released), driver.CodeNotHeld)
			return w.Granted()
		},
	} {
		first := request(name, 1, time.Hour)
		old := must(t, s, first)
		revoke(t, client, name)
		g := acquire(old, request(name, 1, time.Hour))
		requests.Rises(t, old, g)
		release(t, s, g)
		if name != "swap" { // from the release on, an end is no loss
			requests.Lost(t, first, driver.CauseSessionEnded)
		}
	}
}

// TestAnswerTooLargeIsUnknown: the client refuses an answer above its own size limit. The server
// has not refused the request, but executed it.
func TestAnswerTooLargeIsUnknown(t *testing.T) {
	c := start(t, servers.EtcdConfig{})
	s := over(t, c.direct(t, func(cfg *clientv3.Config) { cfg.MaxCallSendMsgSize, cfg.MaxCallRecvMsgSize = 4<<10, 8<<10 }))
	other := c.open(t)
	for range 100 {
		must(t, other, request("n", driver.Unlimited, time.Minute))
	}
	r := request("n", driver.Unlimited, time.Minute)
	r.Wait = true
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, err := s.Acquire(ctx, r)
	code := s.Classify(err)
	if code == driver.CodeUnknown {
		check(t, s.Undo(t.Context(), r))
	}
	st, err2 := other.Inspect(t.Context(), "n")
	if err2 != nil || len(st.Holders) != 100 {
		t.Errorf("%d holders, %v, after a request that ended as %s (%v)", len(st.Holders), err2, code, err)
	}
}

// TestUnconfirmedReleaseEndsWithLease: the client does not keep a lease alive for a grant with an
// unconfirmed release. If the caller does not repeat the release, the grant expires.
func TestUnconfirmedReleaseEndsWithLease(t *testing.T) {
	t.Parallel()
	c := start(t, servers.EtcdConfig{Heartbeat: quick})
	s, d := c.disturbed(t)
	g := must(t, s, request("n", 1, time.Second))
	d.next(deletes, instead(errBroken))
	requests.Code(t, s, s.Release(t.Context(), g, 0), driver.CodeUnknown)
	submit(t, c.open(t), request("n", 1, time.Minute)).Granted()
}
