package etcd

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/drivertest"
	"github.com/holdfast-go/holdfast/e2e/servertest"
	"github.com/holdfast-go/holdfast/etcdstore"
	"github.com/holdfast-go/holdfast/internal/servers"
	"github.com/holdfast-go/holdfast/internal/wakeup"
)

// TestConformance runs the suite on one member of a current etcd.
func TestConformance(t *testing.T) {
	c := start(t, servers.EtcdConfig{Heartbeat: quick})
	conform(t, c, time.Second, func(h *drivertest.Harness) {
		h.Steps = &drivertest.Steps{
			Open:   func(t testing.TB, step func(func() error) error) driver.Store { return c.stepped(t, step) },
			Faults: stepFaults,
			Late:   errBroken,
		}
	})
}

func conform(t *testing.T, c *cluster, ttl time.Duration, changes ...func(*drivertest.Harness)) {
	// The client uses one member: a connection that is opened later would look like a leak.
	client := (&cluster{members: c.members[:1]}).direct(t)
	c.leftovers(t, client) // connects the client: the goroutines of its connection are no leak
	at := func(t testing.TB, url, namespace string) driver.Store {
		s, err := etcdstore.Open(context.Background(), url, etcdstore.Namespace(namespace))
		check(t, err)
		return s
	}
	open := func(t testing.TB, namespace string) driver.Store { return at(t, c.url(""), namespace) }
	h := drivertest.Harness{
		Open:                open,
		OpenWithoutFallback: func(t testing.TB, namespace string) driver.Store { return wakeup.WithoutFallback(open(t, namespace)) },
		TTL:                 ttl,
		Session:             true,
		Outside:             func(t testing.TB, namespace string) driver.Store { return at(t, c.url("/other"), namespace) },
		Cause:               rpctypes.ErrLeaseNotFound,
		Leftovers:           func(t testing.TB) []string { return c.leftovers(t, client) },
		Corrupt: func(t testing.TB, namespace, name string) func() {
			return corrupt(t, client, namespace, name, `{"holdfast":1,"limit":-3}`)
		},
	}
	servertest.Disturb(&h, func(t testing.TB, addresses []string) driver.Store {
		return at(t, "etcd://"+strings.Join(addresses, ","), "")
	}, c.proxies...)
	for _, change := range changes {
		change(&h)
	}
	drivertest.Run(t, h)
}

// overClient is a store over a client that it closes.
type overClient struct {
	*etcdstore.Store
	client *clientv3.Client
}

func (o overClient) Close(ctx context.Context) error {
	return errors.Join(o.Store.Close(ctx), o.client.Close())
}

// stepped opens a store. step gets each of its transactions that write.
func (c *cluster) stepped(t testing.TB, step func(send func() error) error) overClient {
	t.Helper()
	client := c.client(t, onTxn(func(txn *etcdserverpb.TxnRequest, send func() error) error {
		if writes(txn) {
			return step(send)
		}
		return send()
	}))
	s, err := etcdstore.New(client)
	check(t, err)
	return overClient{s, client}
}

// writes reports whether a transaction may write.
func writes(txn *etcdserverpb.TxnRequest) bool {
	return slices.ContainsFunc(slices.Concat(txn.Success, txn.Failure), func(op *etcdserverpb.RequestOp) bool {
		return op.GetRequestPut() != nil || op.GetRequestDeleteRange() != nil || op.GetRequestTxn() != nil && writes(op.GetRequestTxn())
	})
}

// after returns a fault: the server executes the transaction, and the client gets an error.
func after(err error) func(func() error) error {
	return func(send func() error) error { return cmp.Or(send(), err) }
}

// instead returns a fault: the client gets an error, and the server gets nothing.
func instead(err error) func(func() error) error { return func(func() error) error { return err } }

// stepFaults are what may happen to a transaction.
var stepFaults = map[string]func(send func() error) error{
	"the answer is lost":  after(errBroken),
	"the request is lost": instead(errBroken),
	// etcd's client repeats a transaction that a proxy reports as cancelled.
	"sent twice":        after(status.Error(codes.Canceled, "stream terminated by RST_STREAM with error code: CANCEL")),
	"busy":              instead(rpctypes.ErrGRPCRequestTooManyRequests),
	"no right":          instead(status.Error(codes.PermissionDenied, "etcdserver: permission denied")),
	"no space":          instead(rpctypes.ErrGRPCNoSpace),
	"no space after it": after(rpctypes.ErrGRPCNoSpace),
}

func TestValues(t *testing.T) {
	c := start(t, servers.EtcdConfig{})
	drivertest.RunValues(t, func(t testing.TB, namespace string) *etcdstore.Store {
		return c.open(t, etcdstore.Prefix("app/"), etcdstore.Namespace(namespace))
	})
}
