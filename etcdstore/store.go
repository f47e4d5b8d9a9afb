package etcdstore

import (
	"context"
	"errors"
	"fmt"
	"net"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/status"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/internal/calls"
	"github.com/holdfast-go/holdfast/internal/contact"
)

// Store keeps locks in an etcd cluster. It is safe for concurrent use. It implements [driver.Store], Inspector,
// Breaker, Watcher, Swapper, Values and Exposer.
type Store struct{ *store }

type store struct {
	client  *clientv3.Client
	send    sender // of client
	leases  etcdserverpb.LeaseClient
	user    *login // nil if the caller has made the client, and closes it
	lay     layout
	given   []string // the endpoints of the URL, or of the caller's client
	room    int      // see tokenRoom; 1 with PlainTokens
	exposed string
	// reconnect is called when a request has failed.
	reconnect func()

	calls *calls.Calls

	sessions   calls.Shared[time.Duration, *session] // by rounded TTL
	keepalives keepalives
	watches    watches
	queues     queueWatches

	mu       sync.Mutex
	requests map[string]*request              // by request ID: those that may have an entry at the server
	waiting  map[string][]*request            // by name: entries that wait
	minTTL   time.Duration                    // the server's shortest lease, 0 before it is known
	kept     map[clientv3.LeaseID]*time.Timer // of entries that are kept for a minimum hold: see endKept
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

type config struct {
	prefix, namespace string
	exposed           string        // see Exposed
	password          func() string // of the URL
	room              int           // the number of tokens that each entry has room for
}

// Prefix precedes every key: with Prefix("locks/") the lock "billing" is the same as that of
// `etcdctl lock locks/billing`. A prefix that does not end with a slash gets one. The default is empty. At most
// 512 bytes are allowed.
func Prefix(p string) Option { return func(c *config) { c.prefix = p } }

// Namespace separates the locks of one application from those of others on the same cluster and
// prefix. The default is the empty namespace, which other clients share.
func Namespace(ns string) Option { return func(c *config) { c.namespace = ns } }

// PlainTokens makes the create revision of a grant's key its token, for programs that compare it with the revisions
// of other clients. Without this option tokens are larger, and up to 64 lockers of a process that follow one
// another share a grant, each with a token of its own. All clients of a lock must use the same option.
func PlainTokens() Option { return func(c *config) { c.room = 1 } }

func configure(options []Option) (config, error) {
	c := config{room: tokenRoom}
	for _, o := range options {
		o(&c)
	}
	if len(c.prefix) > 512 || strings.ContainsRune(c.prefix, 0) {
		return c, driver.Errorf(driver.CodeInvalid, "etcdstore: prefix %q: at most 512 bytes without NUL are allowed", c.prefix)
	}
	if c.prefix != "" && !strings.HasSuffix(c.prefix, "/") {
		c.prefix += "/" // the locks of etcd://h/locks and etcd://h/locks/ are the same
	}
	if err := driver.CheckNamespace(c.namespace); err != nil {
		return c, driver.Errorf(driver.CodeInvalid, "etcdstore: %w", err)
	}
	return c, nil
}

// New makes a store over a client, which the caller closes. It does no I/O. While no member can be reached, each request
// of the store lets the client try again to connect, at most once a second. By itself the client would pause for up to
// two minutes. Set the client's AutoSyncInterval if members may be replaced.
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
	s := &store{
		client: client, send: sender{client}, leases: clientv3.RetryLeaseClient(client),
		watches: watches{client: etcdserverpb.NewWatchClient(client.ActiveConnection())},
		lay:     newLayout(set.prefix, set.namespace), given: client.Endpoints(),
		exposed: set.exposed, room: set.room,
		calls: calls.New(), requests: map[string]*request{}, waiting: map[string][]*request{},
		kept: map[clientv3.LeaseID]*time.Timer{}, reconnect: reconnecting(client.ActiveConnection()),
	}
	s.share()
	return &Store{s}, nil
}

// String returns the endpoints.
func (s *store) String() string { return "etcd " + strings.Join(s.given, ",") }

// Exposed implements driver.Exposer for a store that was opened by URL.
func (s *store) Exposed() string { return s.exposed }

var errClosed = calls.ErrClosed

// Guarantees returns what etcd guarantees. The first call reads the server's shortest lease. It
// refuses `etcd grpc-proxy`, and checks that the user may read and write the store's own keys.
// Without these rights a lock could be granted, but not undone, and its holder would not be
// notified of its end.
func (s *store) Guarantees(ctx context.Context) (driver.Guarantees, error) {
	if s.calls.Stopped() {
		return driver.Guarantees{}, errClosed
	}
	s.mu.Lock()
	least := s.minTTL
	s.mu.Unlock()
	if least == 0 {
		// The store does not use this lease, which expires.
		resp, err := limited(ctx, s.firstLease)
		if err != nil {
			return driver.Guarantees{}, s.doubted(unavailable(ctx, err))
		}
		if err := s.checkRights(ctx, clientv3.LeaseID(resp.ID)); err != nil {
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
	return s.guarantees(least), nil
}

// firstLease requests a lease of the shortest TTL. If no member accepts a connection, it returns the reason at
// once: the client library would try again until the deadline, and report only that.
func (s *store) firstLease(ctx context.Context) (*etcdserverpb.LeaseGrantResponse, error) {
	leases := etcdserverpb.NewLeaseClient(s.client.ActiveConnection())
	ctx = clientv3.WithRequireLeader(ctx)
	for retry := (backoff.Backoff{First: 25 * time.Millisecond, Max: time.Second}); ; {
		resp, err := leases.LeaseGrant(ctx, &etcdserverpb.LeaseGrantRequest{TTL: 1}, grpc.WaitForReady(false))
		if status.Code(err) != codes.Unavailable || s.client.ActiveConnection().GetState() == connectivity.TransientFailure {
			return resp, err
		}
		if retry.Sleep(ctx) != nil {
			return nil, err
		}
	}
}

// doubted explains the error of a request before Guarantees has had an answer: the server may be of another kind.
func (s *store) doubted(err error) error {
	s.mu.Lock()
	answered := s.minTTL != 0
	s.mu.Unlock()
	if answered {
		return err
	}
	text := err.Error()
	foreign := strings.Contains(text, "error reading server preface") || strings.Contains(text, "handshake failed: EOF") ||
		strings.Contains(text, "first record does not look like a TLS handshake") || strings.Contains(text, "missing selected ALPN") ||
		strings.Contains(text, "connection reset by peer") || strings.Contains(text, "broken pipe")
	late := errors.Is(err, context.DeadlineExceeded) || strings.Contains(text, "use of closed network connection")
	switch {
	case late:
	case foreign && !strings.Contains(text, "remote error: tls"):
		return fmt.Errorf("%s: %w", contact.Doubt, err)
	default:
		return err
	}
	ctx, cancel := context.WithTimeout(s.calls.Ctx, 250*time.Millisecond)
	defer cancel()
	for _, endpoint := range s.given {
		address := endpoint[strings.LastIndex(endpoint, "/")+1:]
		if conn, failed := new(net.Dialer).DialContext(ctx, "tcp", address); failed == nil {
			_ = conn.Close()
			return contact.Silent(address, err)
		}
	}
	return err
}

// reconnectWithin limits the pause between two attempts to connect.
const reconnectWithin = time.Second

// reconnecting returns a function that ends the pause before the next attempt to connect, at most once in
// reconnectWithin. A client that the program has made pauses for longer, the longer the outage lasts: by default up to two
// minutes.
func reconnecting(cc *grpc.ClientConn) func() {
	var mu sync.Mutex
	var last time.Time
	return func() {
		mu.Lock()
		defer mu.Unlock()
		if cc.GetState() == connectivity.TransientFailure && time.Since(last) >= reconnectWithin {
			last = time.Now()
			cc.ResetConnectBackoff()
		}
	}
}

// checkRights sends a transaction that writes nothing. The server checks the rights to all keys in
// it before it evaluates the condition, which no state fulfills.
func (s *store) checkRights(ctx context.Context, lease clientv3.LeaseID) error {
	never := clientv3.Compare(clientv3.CreateRevision(s.lay.sentinel(lease)), "<", 0)
	writes := []clientv3.Op{clientv3.OpPut(s.lay.sentinel(lease), ""), clientv3.OpPut(s.lay.epoch(lease, 0), "")}
	_, err := limited(ctx, func(ctx context.Context) (*clientv3.TxnResponse, error) {
		return s.send.Txn(ctx).If(never).Then(writes...).Commit()
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
func (s *store) checkProxy(ctx context.Context) error {
	_, err := limited(ctx, func(ctx context.Context) (any, error) {
		return withLeader(ctx, func(ctx context.Context) (any, error) {
			return nil, s.keepAlive(ctx, clientv3.NoLease, requestTimeout*2/3, func(driver.Instant) {})
		})
	})
	switch {
	case errors.Is(err, errProxy):
		return err
	case errors.Is(err, rpctypes.ErrLeaseNotFound):
		return nil
	}
	return unavailable(ctx, err)
}

func (s *store) guarantees(least time.Duration) driver.Guarantees {
	return driver.Guarantees{
		Kind:      "etcd",
		Scope:     driver.ScopeNetwork,
		Reach:     "every client of the cluster with the same prefix",
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
		Tokens:    fmt.Sprintf("%d times the create revision of the entry's key, a counter of the cluster. Only a restore from a backup sets it back", s.room),
		Reserves:  s.room > 1,
		EarlyEnd:  []string{"an administrator or another client deletes the key", "an administrator revokes the lease", "a former leader, after a pause longer than the TTL, revokes the lease", "the cluster is restored from an older copy"},
		Notice:    noticeTimeout,
		MinTTL:    least, MaxTTL: 24 * time.Hour, Granularity: time.Second,
		Linger:  true,
		Break:   driver.BreakNow,
		Visible: driver.VisibleAll,
		Wanted:  driver.WakePush,
		Notes: []string{
			"all locks of one client with the same TTL share a lease",
			"the next waiter of the same process queues with the release, at most 5 ms after the grant",
			"other clients that wait for `a` also wait for `a/b`; holdfast does not",
			"the watch reports an early end within milliseconds, if its member follows the leader; without a member the context ends with the lease's validity",
			"in every version of etcd, a former leader may revoke leases that its successor has renewed; only the token protects then",
			"before etcd 3.4.31 and 3.5.13, a leader whose disk is blocked may also confirm a lease that its successor has ended; only the token protects then",
			"a new leader gives each lease its whole TTL again, so the minimum hold of a process that has ended lasts longer",
			"a client of `etcd grpc-proxy` is refused",
		},
	}
}

// noticeTimeout limits the delay of a notice if the member that serves the watch does not answer.
// It is silentTimeout, and the time to set the watch at another member and to read the key.
const noticeTimeout = 2 * time.Second

// Close revokes the store's leases, which ends its grants and entries, and closes a client that
// Open has opened. If no server answers within two seconds, the leases expire.
func (s *store) Close(ctx context.Context) error {
	if !s.calls.Stop() {
		return errClosed
	}
	s.mu.Lock()
	for _, end := range s.kept {
		end.Stop()
	}
	leases := map[*session]struct{}{}
	for _, e := range s.sessions.Made() {
		if !e.isOver() {
			leases[e] = struct{}{}
		}
	}
	for _, a := range s.requests {
		leases[a.e] = struct{}{}
	}
	s.mu.Unlock()
	s.calls.Cancel()
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	var revoking sync.WaitGroup
	for e := range leases {
		revoking.Go(func() { _, _ = s.send.Revoke(ctx, e.lease) })
	}
	revoking.Wait()
	s.calls.Tasks.Wait()
	if s.user != nil {
		s.user.close()
		if err := s.client.Close(); err != nil && !errors.Is(err, context.Canceled) {
			return fmt.Errorf("etcdstore: closing the client: %w", err)
		}
	}
	return nil
}

// begin registers a request before the store sends anything for it.
func (s *store) begin(r driver.Request, e *session) (*request, error) {
	a := &request{r: r, e: e, shard: shard(r.Name), woken: make(chan int64, 1)}
	if !e.add(a) {
		return nil, errLeaseEnded
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.calls.Stopped() {
		e.remove(a)
		return nil, errClosed
	}
	s.requests[r.ID] = a
	return a, nil
}

// forget removes a request whose entry is gone and can no longer appear.
func (s *store) forget(a *request) {
	a.granted.Store(false)
	s.mu.Lock()
	if s.requests[a.r.ID] == a {
		delete(s.requests, a.r.ID)
	}
	s.mu.Unlock()
	a.e.remove(a)
}

func (s *store) request(id string) *request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.requests[id]
}
