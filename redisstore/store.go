package redisstore

import (
	"context"
	"crypto/rand"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/held"
	"github.com/holdfast-go/holdfast/redisstore/internal/server"
	"github.com/holdfast-go/holdfast/redisstore/layouts"
)

// Store is one client of the locks on a Redis. It implements [driver.Store], Inspector, Breaker, Watcher, Swapper,
// Values and Exposer.
type Store struct{ *store }

type store struct {
	common
	srv      *server.Server
	keys     keyspace
	channel  string // to which the scripts publish for this client
	combiner combiner
	lastHead atomic.Pointer[encodedHead]

	mu           sync.Mutex
	entries      map[string]*entry   // requests that may wait, by ID
	watches      map[string][]*watch // by name
	subscription subscription
}

// common has the methods that do not depend on the layout of the locks.
type common = server.Store

var (
	_ driver.Store     = (*store)(nil)
	_ driver.Inspector = (*store)(nil)
	_ driver.Breaker   = (*store)(nil)
	_ driver.Watcher   = (*store)(nil)
	_ driver.Values    = (*store)(nil)
)

// entry is a request, and the grant that it gets.
type entry struct {
	r      driver.Request
	keys   [2]string // of the name and of the bucket's counter
	bucket uint16
	grant  held.Grant // set by hold

	// The store's mutex guards the rest.
	seq         int64         // of its queue entry, 0 if none
	wake        chan struct{} // the request may be granted
	refreshSoon chan struct{} // the entry is near the head, or messages do not arrive
	woken       bool          // a message came before wake existed
	start       string        // the last message by which the request may start: "TOKEN TTL TAG"
}

// handle is the store's own data in a grant.
type handle struct {
	server.Lease
	key, slot string
	// counter is the key of the bucket's counter. A release that has it lets the next waiter
	// start before the waiter confirms its grant. It is "" if the name was free, because most
	// such releases have no waiter.
	counter string
	// ttl is the TTL that a renewal sets, for a grant that was provisional; else 0.
	ttl time.Duration
}

func init() {
	for _, scheme := range []string{"redis", "rediss", "redis+sentinel", "rediss+sentinel", "redis+cluster", "rediss+cluster"} {
		driver.Register(scheme, openURL)
	}
}

// openURL opens the locks at a URL, in the layout that its parameter names.
func openURL(ctx context.Context, u *url.URL, namespace string) (driver.Store, error) {
	var s driver.Store
	var err error
	if l := u.Query().Get("layout"); l != "" {
		s, err = layouts.Open(ctx, u.String(), layouts.Layout(l), Namespace(namespace))
	} else {
		s, err = Open(ctx, u.String(), Namespace(namespace))
	}
	if err != nil {
		return nil, err // not s: an interface with a nil *Store is not nil
	}
	return s, nil
}

// Open opens the locks on the server that a URL names. It does not connect yet.
//
//	redis://[USER[:PASSWORD]@]HOST[:PORT][/DB]
//	redis+sentinel://[USER[:PASSWORD]@]HOST[:PORT]/MASTER[/DB]   HOST is a sentinel
//	redis+cluster://[USER[:PASSWORD]@]HOST[:PORT]
//
// With rediss instead of redis, connections use TLS. The default ports are 6379,
// for a sentinel 26379. Parameters, all optional:
//
//	addr=HOST:PORT            another sentinel, or node of a cluster; may be repeated
//	sentinel_user, sentinel_password
//	replicas=N                as WaitReplicas
//	replica_wait=1s
//	insist=true               as Insist
//	ca=FILE                   PEM certificates to accept instead of the system's
//	cert=FILE, key=FILE       the client's own certificate
//	server_name=NAME          the name in the server's certificate
//	require_tls=true          refuses connections that are not by TLS
//
// Package layouts opens a URL with the parameter layout.
func Open(_ context.Context, rawURL string, options ...Option) (*Store, error) {
	t, err := server.ParseURL(rawURL)
	if err != nil {
		return nil, err
	}
	if t.Layout != "" {
		return nil, driver.Errorf(driver.CodeInvalid, "redisstore: layout %q: open it by layouts.Open, or by holdfast.Open", t.Layout)
	}
	cfg, err := configure(t.Options(options))
	if err != nil {
		return nil, err
	}
	c, err := t.Connect()
	if err != nil {
		return nil, err
	}
	return newStore(c, cfg), nil
}

// New returns a store over a *redis.Client, also one of NewFailoverClient, or over a
// *redis.ClusterClient. The caller closes the client, after the store. New refuses a *redis.Ring,
// because a Ring spreads names over independent servers, and moves names when a server fails.
func New(c redis.UniversalClient, options ...Option) (*Store, error) {
	over, err := server.NewClient(c)
	if err != nil {
		return nil, err
	}
	return NewOver(over, options...)
}

// NewOver returns a store whose requests another Client sends, which the store closes.
func NewOver(c Client, options ...Option) (*Store, error) {
	if c == nil {
		return nil, server.ErrNoClient
	}
	cfg, err := configure(options)
	if err != nil {
		return nil, err
	}
	return newStore(c, cfg), nil
}

func configure(options []Option) (server.Config, error) {
	cfg, err := server.Configure(options)
	if err == nil && cfg.FairWait != 0 {
		err = driver.Errorf(driver.CodeInvalid, "redisstore: fair wait %s: only the layout %s has a fair lock", cfg.FairWait, layouts.RedissonFair)
	}
	return cfg, err
}

func newStore(c Client, cfg server.Config) *Store {
	s := &store{
		keys: newKeyspace(cfg.Namespace), channel: wakeChannel(strings.ToLower(rand.Text())),
		entries: map[string]*entry{}, watches: map[string][]*watch{},
	}
	// In a Cluster the keys of a batch are in several hash slots. WAIT would be for the whole batch.
	s.combiner.init(c.Mode() != Cluster && cfg.Replicas == 0)
	s.srv, s.common = server.New(c, cfg, server.Recipe{
		Declare: s.declare, Renew: s.renew, Check: s.check, Inspect: s.inspectAll, Names: s.names, Closed: s.combiner.wait,
		Rival: func(name string) string { return name },
		Undo: func(ctx context.Context, r *driver.Request, lateUntil int64) error {
			return s.undo(ctx, s.keys.key(r.Name), r.ID, lateUntil)
		},
		Break: func(ctx context.Context, name, token string) (server.Reply, error) {
			return s.srv.Eval(ctx, breakScript, []string{s.keys.key(name)}, []string{token})
		},
	})
	return &Store{s}
}

// Client returns the client that the store uses, for a recipe over several stores. The store
// closes it.
func (s *store) Client() Client { return s.srv.Client }

// declare completes the guarantees.
func (s *store) declare(g *driver.Guarantees) {
	g.Order, g.Fallback, g.Visible = driver.OrderFIFO, fallbackInterval, driver.VisibleAll
	g.Wanted = driver.WakePush
	g.Shared, g.Semaphore, g.Mixed, g.Slots, g.Linger, g.Reserves = true, true, true, true, true, true
	g.Tokens = "the server's clock in microseconds, above the last token that the server or this client has seen. " +
		"After a flush, a restart without data or a failover they may fall for a new client, if the clock was set back. " +
		"A former primary that still answers gives older ones"
	if s.srv.Config.Replicas > 0 {
		g.Notes = append(g.Notes, "a waiter whose grant they do not acknowledge in time queues again, behind the others")
	}
	g.Notes = append(g.Notes, "behind 32 others a waiter notices a lost notification after up to 15s, and may lose its position",
		"if the server stops for more than 2s, the first waiters may queue again at the end; after 4s all may, in any order",
		"the next waiter of the same process queues with the release, at most 5 ms after the grant")
}
