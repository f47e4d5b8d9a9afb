package redisstore

import (
	"context"
	"crypto/rand"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// Store is one client of the locks on a Redis.
type Store struct {
	client  Client
	cfg     config
	keys    keyspace
	channel string // where the scripts tell this client something: p:CHANNEL
	clock   clock
	floors  floors
	owner   atomic.Pointer[ownerText]
	asker   atomic.Pointer[headText]

	// ctx ends when Close begins.
	ctx    context.Context
	cancel context.CancelFunc
	// ops are the calls under way, tasks the goroutines of the store's own.
	ops, tasks sync.WaitGroup
	finished   chan struct{}

	peers *peers // of a layout of others, nil in the native one

	probing chan struct{} // has room for who probes
	probed  atomic.Pointer[findings]

	mu      sync.Mutex
	closing bool
	entries map[string]*entry   // requests and grants by ID
	queued  map[string][]*entry // those with a place, by name
	late    map[string]int64    // requests in doubt: until when they may arrive
	subs    map[string]*subscription
	beat    *time.Timer
	beating bool
	looking bool // a look is under way
	lookAll bool // the next look is at all grants
}

var (
	_ driver.Store     = (*Store)(nil)
	_ driver.Inspector = (*Store)(nil)
	_ driver.Breaker   = (*Store)(nil)
	_ driver.Watcher   = (*Store)(nil)
	_ driver.Notifier  = (*Store)(nil)
)

// entry is a request that asks, and the grant that it becomes.
type entry struct {
	r       driver.Request
	keys    [2]string // of the name and of the bucket's counter
	bucket  uint16
	channel string

	// The store's mutex guards the rest.
	seq    int64         // of its place, 0 if none
	wake   chan struct{} // its turn may have come
	close  chan struct{} // it is close to the head, or messages do not arrive
	woken  bool          // before wake was made
	passed *driver.Grant // granted by a Release of this client
	held   bool          // a grant that was handed out
	grant  driver.Grant
	proven time.Time // when the grant was last known to stand
}

// handle is what a grant carries for its store.
type handle struct {
	key, seat string
	// void: a request of this grant's ID may arrive until then, by the server's
	// clock, because it was sent and not answered.
	void int64
}

// New makes a store over a client, which it closes with itself. Package goredis
// does that for a go-redis client, which stays open.
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
		client: c, cfg: cfg, keys: newKeyspace(cfg.namespace), channel: "p:" + wakeChannel(strings.ToLower(rand.Text())),
		probing: make(chan struct{}, 1), finished: make(chan struct{}), entries: map[string]*entry{}, queued: map[string][]*entry{}, late: map[string]int64{},
		subs: map[string]*subscription{},
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	if cfg.layout != Native {
		s.peers = newPeers(s)
	}
	return s
}

// String says where the locks live.
func (s *Store) String() string { return s.client.String() }

// Client returns the client that the store uses, for a recipe over several stores. It
// ends with the store.
func (s *Store) Client() Client { return s.client }

// Explain puts the code on an error of the store's client: what it means for the
// request that got it.
func (s *Store) Explain(err error) error { return s.explain(err) }

// GoString says no more than String, for %#v.
func (s *Store) GoString() string { return s.String() }

// Classify finds the code that every error of this store carries.
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

// begin enters and sees to it that the server is known.
func (s *Store) begin(ctx context.Context) error {
	if err := s.enter(); err != nil {
		return err
	}
	if _, err := s.know(ctx); err != nil {
		s.ops.Done()
		return err
	}
	return nil
}

// Close ends what waits, takes its places back, and gives back the connections
// that the store opened, in the background if ctx ends before that is done: the error
// is then the context's, and a second Close waits for it. Grants stay at the server
// until they are released by their TTL.
func (s *Store) Close(ctx context.Context) error {
	s.mu.Lock()
	first := !s.closing
	s.closing = true
	if s.beat != nil {
		s.beat.Stop()
	}
	s.mu.Unlock()
	if first {
		s.cancel()
		wait(ctx, &s.ops)
		go func() { // a client may wait for a server that is silent
			defer close(s.finished)
			s.client.Close()
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

// wait waits for a group no longer than the context.
func wait(ctx context.Context, g *sync.WaitGroup) {
	done := make(chan struct{})
	go func() {
		g.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-ctx.Done():
	}
}
