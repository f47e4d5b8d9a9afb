package etcdstore

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/holdfast-go/holdfast/driver"
)

// Store keeps locks in an etcd cluster. It is safe for concurrent use.
type Store struct {
	client *clientv3.Client
	leases etcdserverpb.LeaseClient
	user   *login // nil if the caller has made the client, and closes it
	lay    layout
	where  string // for people: the endpoints

	ctx     context.Context // ends with Close
	cancel  context.CancelFunc
	running sync.WaitGroup // the goroutines of sessions and streams

	keepalives keepalives
	watches    watches
	queues     queueWatches

	mu       sync.Mutex
	closed   bool
	sessions map[time.Duration]*session // by rounded TTL
	creating map[time.Duration]*sharedCall
	requests map[string]*request   // by request ID: those that may have an entry at the server
	waiting  map[string][]*request // by name: entries that wait
	minTTL   time.Duration         // the server's shortest lease, 0 before it is known
}

// request is a request for a lock. It exists from before its entry is created until etcd has
// confirmed that no entry remains.
type request struct {
	r   driver.Request
	e   *session
	n   int // the number of its entry among those of its lease and name
	key string
	// shard is the number of the epoch key that its transactions compare, and that an undo writes.
	shard int
	// rev is the entry's create revision, 0 before an answer.
	rev atomic.Int64
	// granted is set when the store has returned a grant.
	granted atomic.Bool
	// deleted is set when the entry was found to be gone.
	deleted atomic.Bool
	// waits is set while the entry waits for its grant.
	waits atomic.Bool
	// written is the value of the last transaction that writes the entry.
	written record
	// woken wakes a waiting entry: see wake.
	woken chan int64
	// mail receives the deletions of the name's entries while the entry waits. It is nil before the
	// entry needs them. complete is set if the watch has been set, without an interruption, since before
	// the present view was requested.
	mail     *mailbox
	complete bool

	// watch is the watch of the key, from the second check of the session on. checked is set at the
	// first one. The session's mutex guards both. state is the state of the watch.
	watch   *watch
	checked bool
	state   atomic.Int32
}

// Option configures a store.
type Option func(*config)

type config struct{ prefix, namespace string }

// Prefix precedes every key: with Prefix("locks/") the lock "billing" is the same as that of
// `etcdctl lock locks/billing`. The default is empty. At most 512 bytes are allowed.
func Prefix(p string) Option { return func(c *config) { c.prefix = p } }

// Namespace separates the locks of one application from those of others on the same cluster and
// prefix. The default is the empty namespace, which other clients share.
func Namespace(ns string) Option { return func(c *config) { c.namespace = ns } }

func configure(options []Option) (config, error) {
	var c config
	for _, o := range options {
		o(&c)
	}
	if len(c.prefix) > 512 || strings.ContainsRune(c.prefix, 0) {
		return c, driver.Errorf(driver.CodeInvalid, "etcdstore: prefix %q: at most 512 bytes without NUL are allowed", c.prefix)
	}
	if err := driver.CheckNamespace(c.namespace); err != nil {
		return c, driver.Errorf(driver.CodeInvalid, "etcdstore: %w", err)
	}
	return c, nil
}

// New makes a store over a client, which the caller closes. It does no I/O.
//
// A client with a Username logs in by itself, once for each stream. If the server is restored from
// an older copy, the client keeps its login, which is newer than the server. Then the server does
// not answer its requests, and the caller has to replace the client. A store of Open notices such a
// restore and logs in again.
func New(client *clientv3.Client, o ...Option) (*Store, error) {
	if client == nil {
		return nil, driver.Errorf(driver.CodeInvalid, "etcdstore.New: the client is nil")
	}
	// Watches and keepalives use the connection itself, without a wrapper around it.
	if reflect.TypeOf(client.Watcher) != reflect.TypeOf(clientv3.NewWatcher(client)) {
		return nil, driver.Errorf(driver.CodeInvalid, "etcdstore.New: the client's Watcher is a %T, which is not the client library's own: for keys with a prefix use the option Prefix", client.Watcher)
	}
	set, err := configure(o)
	if err != nil {
		return nil, err
	}
	s := &Store{
		client: client, leases: clientv3.RetryLeaseClient(client),
		watches: watches{client: etcdserverpb.NewWatchClient(client.ActiveConnection())},
		lay:     newLayout(set.prefix, set.namespace), where: "etcd " + strings.Join(client.Endpoints(), ","),
		sessions: map[time.Duration]*session{}, creating: map[time.Duration]*sharedCall{},
		requests: map[string]*request{}, waiting: map[string][]*request{},
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	return s, nil
}

// String returns the endpoints.
func (s *Store) String() string { return s.where }

var errClosed = &driver.Error{Code: driver.CodeClosed, Err: errors.New("etcdstore: the store is closed")}

// Guarantees returns what etcd guarantees. The first call reads the server's shortest lease. It
// refuses `etcd grpc-proxy`, and checks that the user may read and write the store's own keys.
// Without these rights a lock could be granted, but not undone, and its holder would not be
// notified of its end.
func (s *Store) Guarantees(ctx context.Context) (driver.Guarantees, error) {
	s.mu.Lock()
	least, closed := s.minTTL, s.closed
	s.mu.Unlock()
	if closed {
		return driver.Guarantees{}, errClosed
	}
	if least == 0 {
		// The store does not use this lease, which expires.
		resp, err := limited(ctx, func(ctx context.Context) (*clientv3.LeaseGrantResponse, error) { return s.client.Grant(ctx, 1) })
		if err != nil {
			return driver.Guarantees{}, unavailable(ctx, err)
		}
		if err := s.checkRights(ctx, resp.ID); err != nil {
			return driver.Guarantees{}, err
		}
		if err := s.checkProxy(ctx); err != nil {
			return driver.Guarantees{}, err
		}
		least = time.Duration(resp.TTL) * time.Second
		s.mu.Lock()
		s.minTTL = least
		s.mu.Unlock()
	}
	return guarantees(least), nil
}

// checkRights sends a transaction that writes nothing. The server checks the rights to all keys in
// it before it evaluates the condition, which no state fulfills.
func (s *Store) checkRights(ctx context.Context, lease clientv3.LeaseID) error {
	never := clientv3.Compare(clientv3.CreateRevision(s.lay.sentinel(lease)), "<", 0)
	writes := []clientv3.Op{clientv3.OpPut(s.lay.sentinel(lease), ""), clientv3.OpPut(s.lay.epoch(lease, 0), "")}
	_, err := limited(ctx, func(ctx context.Context) (*clientv3.TxnResponse, error) {
		return s.client.Txn(ctx).If(never).Then(writes...).Commit()
	})
	if errors.Is(err, rpctypes.ErrPermissionDenied) {
		return driver.Errorf(driver.CodeRefused, "etcdstore: the user needs the right to read and to write the keys that begin with %q, which the store keeps beside the locks: %w", s.lay.prefix+reserved, err)
	}
	if err != nil {
		return unavailable(ctx, err)
	}
	return nil
}

// checkProxy returns errProxy if the endpoint is `etcd grpc-proxy`. It opens the stream of keepalives,
// and waits for an answer.
func (s *Store) checkProxy(ctx context.Context) error {
	_, err := limited(ctx, func(ctx context.Context) (any, error) {
		return nil, s.keepAlive(ctx, clientv3.NoLease, requestTimeout*2/3, func(driver.Instant) {})
	})
	switch {
	case errors.Is(err, errProxy):
		return err
	case errors.Is(err, rpctypes.ErrLeaseNotFound):
		return nil
	}
	return unavailable(ctx, err)
}

func guarantees(least time.Duration) driver.Guarantees {
	return driver.Guarantees{
		Kind:      "etcd",
		Scope:     driver.ScopeNetwork,
		Crash:     driver.CrashFreesAfterTTL,
		Pause:     driver.PauseLoses,
		Order:     driver.OrderFIFO,
		Wake:      driver.WakePush,
		TryFirst:  true,
		Fallback:  readQueueEvery + requestTimeout,
		Shared:    true,
		Semaphore: true,
		Mixed:     true,
		Slots:     true,
		Tokens:    "the create revision of the entry's key: one counter of the cluster, which survives restarts and changes of leader. Only a restore from a backup sets it back",
		EarlyEnd:  []string{"an administrator or another client deletes the key", "an administrator revokes the lease", "a former leader, after a pause longer than the TTL, revokes the lease", "the cluster is restored from an older copy"},
		Notice:    noticeTimeout,
		MinTTL:    least, MaxTTL: 24 * time.Hour, Granularity: time.Second,
		Linger:  true,
		Break:   driver.BreakNow,
		Visible: driver.VisibleAll,
		Notes: []string{
			"all locks of one client with the same TTL share a lease",
			"the next local waiter of a process that holds a lock queues with its release, and at most 5 ms after its grant",
			"other clients that wait for `a` also wait for `a/b`; holdfast does not",
			"the holder is notified of an early end within milliseconds, if the member that serves its watch follows the leader; if it can reach no member, the context ends with the lease's validity",
			"in every version of etcd, a former leader may revoke leases that its successor has renewed; only the token protects then",
			"before etcd 3.4.31 and 3.5.13, a leader whose disk is blocked may also confirm a lease that its successor has ended; only the token protects then",
			"a client of `etcd grpc-proxy` is refused: the proxy may answer a keepalive with an earlier renewal of the lease",
		},
	}
}

// noticeTimeout limits the delay of a notice if the member that serves the watch does not answer.
// It is silentTimeout, and the time to set the watch at another member and to read the key.
const noticeTimeout = 2 * time.Second

// Close revokes the store's leases, which ends its grants and entries, and closes a client that
// Open has opened. If no server answers within two seconds, the leases expire.
func (s *Store) Close(ctx context.Context) error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return errClosed
	}
	s.closed = true
	leases := map[*session]struct{}{}
	for _, e := range s.sessions {
		leases[e] = struct{}{}
	}
	for _, a := range s.requests {
		leases[a.e] = struct{}{}
	}
	s.mu.Unlock()
	s.cancel()
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	var revoking sync.WaitGroup
	for e := range leases {
		revoking.Go(func() { _, _ = s.client.Revoke(ctx, e.lease) })
	}
	revoking.Wait()
	s.running.Wait()
	if s.user != nil {
		s.user.close()
		if err := s.client.Close(); err != nil && !errors.Is(err, context.Canceled) {
			return fmt.Errorf("etcdstore: closing the client: %w", err)
		}
	}
	return nil
}

// begin registers a request before the store sends anything for it.
func (s *Store) begin(r driver.Request, e *session) (*request, error) {
	a := &request{r: r, e: e, shard: shard(r.Name), woken: make(chan int64, 1)}
	if !e.add(a) {
		return nil, errLeaseEnded
	}
	s.mu.Lock()
	closed := s.closed
	if !closed {
		s.requests[r.ID] = a
	}
	s.mu.Unlock()
	if closed {
		e.remove(a) // not under s.mu: a session that begins a watch locks in the other order
		return nil, errClosed
	}
	return a, nil
}

// forget removes a request whose entry is gone and can no longer appear.
func (s *Store) forget(a *request) {
	a.granted.Store(false)
	s.mu.Lock()
	if s.requests[a.r.ID] == a {
		delete(s.requests, a.r.ID)
	}
	s.mu.Unlock()
	a.e.remove(a)
}

func (s *Store) request(id string) *request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.requests[id]
}

// background runs f until Close waits for its end. It returns false once the store is closed.
func (s *Store) background(f func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.running.Go(f)
	return true
}

func (s *Store) isClosed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closed
}
