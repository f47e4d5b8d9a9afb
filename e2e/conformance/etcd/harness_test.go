// Package etcd tests etcdstore on real servers: the conformance suite, the faults of a
// cluster, and known defects of other clients. These are, with the numbers of etcd's issues:
//
//   - "a" waits for "a/b" by prefix (6278): TestNameIgnoresKeysBelow
//   - compaction ends a wait (9715): TestCompactionDisturbsNoWaiter
//   - a watch on a member that is cut off hangs (8980): TestHolderOnCutOffMemberEndsInTime
//   - a waiter ignores that its own lease has ended (19597): TestWaiterWithoutLeaseIsNotGranted
//   - a lost answer leaves a queue entry under a live lease (12900): TestConformance/LateRequests
//   - two goroutines of one session both hold the lock (11360): TestConformance/SwapOfYoungGrant
//   - a release by name deletes a newer holder's lock (22082), and a lost release and the
//     next lock share a token: TestConformance/LateRequests
//   - the validity counts from the answer's arrival: TestConformance/ValidityNotFromTheAnswer
//   - a former leader revokes leases after a pause (15247): TestFormerLeaderRevokes,
//     TestDeletionIsPushed
//   - each keepalive and each wait is a login: TestStoreSharesLoginAndStreams
//
// A test is skipped if the program of its server is missing. With HOLDFAST_REQUIRE_SERVERS=1 it
// fails.
package etcd

import (
	"context"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"github.com/holdfast-go/holdfast/e2e/conformance/requests"
	"github.com/holdfast-go/holdfast/e2e/servertest"
	"github.com/holdfast-go/holdfast/etcdstore"
	"github.com/holdfast-go/holdfast/internal/servers"
)

// cluster is a running etcd with a proxy before each member.
// tokenRoom: the token of a grant is that many times the create revision of its entry.
const tokenRoom = 64

type cluster struct {
	members []*servers.Etcd
	proxies []*servers.Proxy
	dir     string
}

func need(t testing.TB, program string, more ...string) string {
	t.Helper()
	path, err := servers.Find(program, more...)
	servertest.Started(t, err)
	return path
}

func start(t testing.TB, c servers.EtcdConfig) *cluster {
	t.Helper()
	if c.Program == "" {
		c.Program = need(t, "etcd")
	}
	c.Dir = t.TempDir()
	c.NoSync = !c.Disks // no write waits for the disk, because a busy disk could cause an election
	members, err := servers.StartEtcd(t.Context(), c)
	check(t, err)
	cl := &cluster{members: members, dir: c.Dir}
	for _, m := range members {
		t.Cleanup(m.End)
		p, err := servers.NewProxy(m.Client)
		check(t, err)
		t.Cleanup(p.Close)
		cl.proxies = append(cl.proxies, p)
	}
	return cl
}

// url returns a URL through the proxies.
func (c *cluster) url(path string) string {
	var hosts []string
	for _, p := range c.proxies {
		hosts = append(hosts, p.Address())
	}
	return "etcd://" + strings.Join(hosts, ",") + path
}

// direct returns a client without the proxies; each edit changes its configuration.
func (c *cluster) direct(t testing.TB, edits ...func(*clientv3.Config)) *clientv3.Client {
	t.Helper()
	client := c.client(t, edits...)
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// client is direct without the close at the end of the test.
func (c *cluster) client(t testing.TB, edits ...func(*clientv3.Config)) *clientv3.Client {
	t.Helper()
	cfg := clientv3.Config{Endpoints: servers.EtcdEndpoints(c.members), DialTimeout: 5 * time.Second, Logger: zap.NewNop()}
	for _, edit := range edits {
		edit(&cfg)
	}
	client, err := clientv3.New(cfg)
	check(t, err)
	return client
}

// unary adds an interceptor to a client's calls.
func unary(i grpc.UnaryClientInterceptor) func(*clientv3.Config) {
	return func(cfg *clientv3.Config) {
		cfg.DialOptions = append(cfg.DialOptions, grpc.WithChainUnaryInterceptor(i))
	}
}

// onTxn makes a client call do for each of its transactions, with a function that sends the transaction. The client
// gets the error that do returns.
func onTxn(do func(txn *etcdserverpb.TxnRequest, send func() error) error) func(*clientv3.Config) {
	return unary(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn,
		invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		send := func() error {
			ctx := ctx
			if ctx.Err() != nil {
				ctx = context.WithoutCancel(ctx) // it is sent after its call has ended
			}
			return invoke(ctx, method, req, reply, cc, opts...)
		}
		if txn, ok := req.(*etcdserverpb.TxnRequest); ok {
			return do(txn, send)
		}
		return send()
	})
}

// over opens a store with a client.
func over(t testing.TB, client *clientv3.Client) *etcdstore.Store {
	t.Helper()
	s, err := etcdstore.New(client)
	return closing(t, s, err)
}

func (c *cluster) open(t testing.TB, o ...etcdstore.Option) *etcdstore.Store {
	t.Helper()
	s, err := etcdstore.Open(context.Background(), c.url(""), o...)
	return closing(t, s, err)
}

// closing closes a store at the end of the test.
func closing(t testing.TB, s *etcdstore.Store, err error) *etcdstore.Store {
	t.Helper()
	check(t, err)
	return requests.Closing(t, s)
}

// quick is the heartbeat interval for tests of expiry on a single member. With it the shortest
// lease is one second.
const quick = 20 * time.Millisecond

// leftovers lists every key. Epoch keys end with their lease.
func (c *cluster) leftovers(t testing.TB, client *clientv3.Client) (left []string) {
	t.Helper()
	resp, err := client.Get(t.Context(), "", clientv3.WithPrefix(), clientv3.WithKeysOnly())
	check(t, err)
	for _, kv := range resp.Kvs {
		left = append(left, string(kv.Key))
	}
	return left
}

const testTimeout = requests.Timeout

var (
	request    = requests.New
	must       = requests.Must
	submit     = requests.Submit
	queue      = requests.Queue
	release    = requests.Release
	eventually = requests.Eventually
	check      = servertest.Check
)

// youngest returns the youngest entry of a name.
func youngest(t *testing.T, client *clientv3.Client, name string) *mvccpb.KeyValue {
	t.Helper()
	last, err := client.Get(t.Context(), name+"/", append(clientv3.WithLastCreate(), clientv3.WithLimit(1))...)
	if err != nil || len(last.Kvs) != 1 {
		t.Fatalf("%v, %v", last, err)
	}
	return last.Kvs[0]
}

// revoke revokes the lease of the youngest entry of a name.
func revoke(t *testing.T, client *clientv3.Client, name string) {
	t.Helper()
	_, err := client.Revoke(t.Context(), clientv3.LeaseID(youngest(t, client, name).Lease))
	check(t, err)
}

// remove deletes keys, in this order.
func remove(t *testing.T, client *clientv3.Client, keys ...string) {
	t.Helper()
	for _, key := range keys {
		_, err := client.Delete(t.Context(), key)
		check(t, err)
	}
}

func receive[T any](t testing.TB, what string, c <-chan T) T { return requests.Receive(t, what, c) }
