package redisstore

import (
	"context"
	"crypto/rand"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/deadline"
)

// Store is one client of the locks on a Redis.
type Store struct {
	client    Client
	cfg       config
	keys      keyspace
	channel   string // to which the scripts publish for this client
	combiner  combiner
	clock     clock
	highWater highWater
	lastOwner atomic.Pointer[encodedOwner]
	lastHead  atomic.Pointer[encodedHead]

	// ctx ends when Close begins.
	ctx    context.Context
	cancel context.CancelFunc
	// ops counts the calls under way, tasks the store's own goroutines.
	ops, tasks sync.WaitGroup
	finished   chan struct{}

	peers *peers // of a layout of another client library, nil in the native layout

	probing chan struct{} // a semaphore: one probe at a time
	probed  atomic.Pointer[findings]
	spread  atomic.Bool // the keys of two names may be on different servers: see compareServers

	mu           sync.Mutex
	closing      bool
	entries      map[string]*entry   // requests and grants by ID
	queued       map[string][]*entry // requests with a queue entry, by name
	late         map[string]int64    // until when a request without an answer may arrive, by ID
	subscription subscription
	checkTimer   *time.Timer
	checksGrants bool // checkTimer is set, or checkGrants runs
	checking     bool // checkGrants runs
	checkAll     bool // the next check includes all grants
}

var (
	_ driver.Store     = (*Store)(nil)
	_ driver.Inspector = (*Store)(nil)
	_ driver.Breaker   = (*Store)(nil)
	_ driver.Watcher   = (*Store)(nil)
	_ driver.Notifier  = (*Store)(nil)
)

// entry is a request, and the grant that it gets.
type entry struct {
	r      driver.Request
	keys   [2]string // of the name and of the bucket's counter
	bucket uint16

	// The store's mutex guards the rest.
	seq         int64         // of its queue entry, 0 if none
	wake        chan struct{} // the request may be granted
	refreshSoon chan struct{} // the entry is near the head, or messages do not arrive
	woken       bool          // a message came before wake existed
	start       string        // the last message by which the request may start: "TOKEN TTL TAG"
	passed      *driver.Grant // granted by a Release of this client
	proven      time.Time     // when the server last confirmed that the grant stands
	held        bool          // the grant was returned to the caller; token and handle are set
	token       uint64
	handle      *handle
	lead        time.Duration // the lease at the server is at least this much longer than the TTL, -1 if unknown; see serverTTL
}

// handle is the store's own data in a grant.
type handle struct {
	key, slot string
	// lateUntil is the time, by the server's clock, until which an unanswered request with this
	// grant's ID may arrive. It is 0 if there is no such request.
	lateUntil int64
	// counter is the key of the bucket's counter. A release that has it lets the next waiter
	// start before the waiter confirms its grant. It is "" if the name was free, because most
	// such releases have no waiter.
	counter string
	// ttl is the TTL that a renewal sets, for a grant that was provisional; else 0.
	ttl time.Duration
}

// New returns a store over a client. Close of the store closes the client. Package goredis makes
// a store over a go-redis client, which stays open.
func New(c Client, options ...Option) (*Store, error) {
	cfg, err := configure(options)
	if err != nil {
		return nil, err
	}
	if c == nil {
		return nil, driver.Errorf(driver.CodeInvalid, "redisstore: the client is nil")
	}
	return newStore(c, cfg), nil
}

func newStore(c Client, cfg config) *Store {
	s := &Store{
		client: c, cfg: cfg, keys: newKeyspace(cfg.namespace), channel: wakeChannel(strings.ToLower(rand.Text())),
		probing: make(chan struct{}, 1), finished: make(chan struct{}),
		entries: map[string]*entry{}, queued: map[string][]*entry{}, late: map[string]int64{},
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	// In a Cluster the keys of a batch are in several hash slots. WAIT would be for the whole batch.
	s.combiner.init(c.Mode() != Cluster && cfg.replicas == 0)
	if cfg.layout != Native {
		s.peers = newPeers(s)
	}
	return s
}

// String returns where the locks are, without a password.
func (s *Store) String() string { return s.client.String() }

// Client returns the client that the store uses, for a recipe over several stores. The store
// closes it.
func (s *Store) Client() Client { return s.client }

// Explain adds the code to an error of the store's client: what the error means for the request.
func (s *Store) Explain(err error) error { return s.explain(err) }

// GoString returns the same as String, so that %#v shows no password.
func (s *Store) GoString() string { return s.String() }

// Classify returns the code of an error of this store.
func (s *Store) Classify(err error) driver.Code { return driver.CodeOf(err) }

// enter begins a call; the caller ends it with ops.Done.
func (s *Store) enter() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing {
		return errClosed
	}
	s.ops.Add(1)
	return nil
}

// begin begins a call, and probes the server if no probe has been made. The caller ends it with
// ops.Done.
func (s *Store) begin(ctx context.Context) error {
	if err := s.enter(); err != nil {
		return err
	}
	if _, err := s.firstFindings(ctx); err != nil {
		s.ops.Done()
		return err
	}
	return nil
}

// Close ends the waiting calls, withdraws their queue entries, and closes the client (see [New]).
// If ctx ends first, Close returns its error and the rest continues in the background; a second
// Close waits for it. Grants stay at the server until their TTL expires.
func (s *Store) Close(ctx context.Context) error {
	s.mu.Lock()
	first := !s.closing
	s.closing = true
	if s.checkTimer != nil {
		s.checkTimer.Stop()
	}
	s.mu.Unlock()
	if first {
		s.cancel()
		deadline.Wait(ctx, &s.ops)
		go func() { // the client's Close may wait for a silent server
			defer close(s.finished)
			s.client.Close()
			s.combiner.wait()
			s.tasks.Wait()
		}()
	}
	select {
	case <-s.finished:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
