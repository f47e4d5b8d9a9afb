// Package memstore keeps locks in the memory of one process: for tests, and for
// programs that use the same API before they have a server.
//
// It has every rule of the real stores: leases that expire unless they are renewed, waiters in order,
// fencing tokens, inspection and break. Its clock is the process's own, so it works in a
// testing/synctest bubble. [Script] simulates failures: it loses a held lock, fails a renewal, or
// leaves the outcome of an acquisition unknown. Package holdfasttest disturbs the calls of one client.
//
//	store := memstore.New()
//	locker, err := holdfast.New(store)
//
// By URL, `memory://` opens a new and empty store each time.
//
// # Safety
//
// One mutex guards the whole store, so each call is one atomic step. A grant stands until it is released
// or broken, or until its deadline has passed on the process's monotonic clock. Expired grants are
// removed before any decision. The client's validity runs on the same clock from before the deadline was
// set, and is shorter by the margin, so it always ends first.
package memstore

import (
	"context"
	"fmt"
	"iter"
	"maps"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

func init() {
	driver.Register("memory", func(_ context.Context, u *url.URL, namespace string) (driver.Store, error) {
		if u.Host != "" || strings.Trim(u.Path, "/") != "" || u.Opaque != "" || u.RawQuery != "" || u.User != nil {
			return nil, driver.Errorf(driver.CodeInvalid, "a memory URL is memory:// and nothing more")
		}
		return New().Namespace(namespace), nil
	})
}

// Store is one client of a memory store. Clients that Client and Namespace return share its locks. It implements
// [driver.Store], Inspector, Breaker, Watcher and Values.
type Store struct{ *store }

type store struct {
	space     *space
	namespace string

	closed atomic.Bool
	end    chan struct{} // closed by Close
}

// New returns a client of a new, empty store.
func New() *Store {
	return newStore(&space{started: time.Now(), names: map[string]*name{}}, "")
}

// Client returns another client of the same locks, as in another process.
func (s *Store) Client() *Store { return s.Namespace(s.namespace) }

// Namespace returns a client of the same store with names of its own.
func (s *Store) Namespace(namespace string) *Store { return newStore(s.space, namespace) }

func newStore(sp *space, namespace string) *Store {
	return &Store{&store{space: sp, namespace: namespace, end: make(chan struct{})}}
}

// space is shared by the clients.
type space struct {
	started time.Time // see now

	mu     sync.Mutex
	names  map[string]*name // by namespace, NUL, name
	values map[string]value // likewise
	token  uint64
	script script
	halted atomic.Bool // script.stopped is set; read without mu
	watch  map[*watcher]struct{}
	spare  []*name // unused names that open uses again
}

// name is one name's holders and its queue, in order of arrival.
type name struct {
	key     string
	holders []*entry
	queue   []*entry
	timer   *time.Timer // for the next expiry, while there are waiters
	listed  bool        // in space.names
}

// entry is a queue entry or, once it has a token, a grant.
type entry struct {
	id      string
	n       *name
	store   *store
	from    driver.Requester
	limit   int
	ttl     time.Duration
	token   uint64
	tokens  int // the number of the grant's tokens; in the queue, the requested number
	slot    int
	expires time.Duration // since the creation of the space
	sent    driver.Instant
	owner   driver.Owner
	granted chan struct{} // closed when a queue entry becomes a grant
}

// String returns the store's name.
func (s *store) String() string {
	if s.namespace == "" {
		return "memory"
	}
	return "memory (namespace " + s.namespace + ")"
}

// Guarantees returns the guarantees of this store.
func (s *store) Guarantees(context.Context) (driver.Guarantees, error) {
	return driver.Guarantees{
		Kind:   "memory",
		Scope:  driver.ScopeProcess,
		Reach:  "this process: the clients of one Store",
		Crash:  driver.CrashFreesSpace,
		Pause:  driver.PauseLoses,
		Order:  driver.OrderFIFO,
		Wake:   driver.WakePush,
		Shared: true, Semaphore: true, Mixed: true, Slots: true,
		Tokens: "a counter of the store; it starts again with the process", Reserves: true,
		MinTTL: time.Millisecond, MaxTTL: 24 * time.Hour, LeftoversExpire: true,
		Linger:  true,
		Break:   driver.BreakNow,
		Visible: driver.VisibleAll,
		Wanted:  driver.WakePush,
	}, nil
}

// Classify returns the code of an error.
func (s *store) Classify(err error) driver.Code { return driver.CodeOf(err) }

// Close ends the client's grants and queue entries. The store remains for its other clients.
func (s *store) Close(context.Context) error {
	if s.closed.Swap(true) {
		return nil
	}
	close(s.end)
	sp := s.space
	sp.mu.Lock()
	defer sp.mu.Unlock()
	for _, n := range slices.Collect(maps.Values(sp.names)) {
		for _, e := range n.all() {
			if e.store == s {
				sp.drop(e)
			}
		}
	}
	return nil
}

func (s *store) checkOpen() error {
	if s.closed.Load() {
		return driver.Errorf(driver.CodeClosed, "the memory store is closed")
	}
	return nil
}

func (s *store) key(name string) string {
	if s.namespace == "" {
		return name
	}
	return s.namespace + "\x00" + name
}

// nameOf returns the name of a key.
func nameOf(key string) string {
	if _, name, ok := strings.Cut(key, "\x00"); ok {
		return name
	}
	return key
}

// Acquire returns a grant, waits in the queue, or returns an error.
func (s *store) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	if err := s.ready(ctx); err != nil {
		return driver.Grant{}, err
	}
	if err := ctx.Err(); err != nil {
		return driver.Grant{}, &driver.Error{Code: driver.CodeWithdrawn, Err: err}
	}
	// Outside the store's mutex, since the core may lock its own.
	e := &entry{id: r.ID, store: s, from: r.From, limit: r.Limit, ttl: r.TTL, tokens: max(r.Tokens, 1), slot: driver.NoSlot, owner: r.From.Owner()}
	sp := s.space
	sp.mu.Lock()
	if fault := takeFault(&sp.script.acquires, r.Name); fault != nil {
		defer sp.mu.Unlock()
		sp.applyFault(e, s.key(r.Name), fault)
		return driver.Grant{}, fault.err
	}
	n := sp.open(s.key(r.Name))
	e.n = n
	sp.expire(n)
	if len(n.queue) == 0 && n.admits(e.limit) { // mutation: memory-queue
		sp.grant(e)
		g := e.toGrant()
		sp.mu.Unlock()
		return g, nil
	}
	holders := sp.describe(n)
	if !r.Wait {
		sp.tidy(n)
		sp.mu.Unlock()
		return driver.Grant{}, &driver.BusyError{Holders: holders}
	}
	e.granted = make(chan struct{})
	e.owner.Since = time.Now()
	n.queue = append(n.queue, e)
	sp.arm(n)
	sp.changed(n)
	sp.mu.Unlock()
	r.From.Queued(holders)
	return s.await(ctx, e)
}

// await waits until a queue entry is granted, and returns the grant.
func (s *store) await(ctx context.Context, e *entry) (driver.Grant, error) {
	select {
	case <-e.granted:
	case <-ctx.Done():
	case <-s.end:
	}
	owner := e.from.Owner() // may have changed during the wait
	sp := s.space
	sp.mu.Lock()
	defer sp.mu.Unlock()
	// The validity begins with a step after the wait, which sets a new deadline.
	if e.token != 0 && ctx.Err() == nil && sp.confirm(e) {
		owner.Since = e.owner.Since
		e.owner = owner
		return e.toGrant(), nil
	}
	sp.drop(e)
	if err := ctx.Err(); err != nil {
		return driver.Grant{}, &driver.Error{Code: driver.CodeWithdrawn, Err: err}
	}
	if err := s.checkOpen(); err != nil {
		return driver.Grant{}, err
	}
	return driver.Grant{}, driver.Errorf(driver.CodeUnavailable, "the grant ended before the waiter saw it")
}

// Undo removes a queue entry or a grant by its ID.
func (s *store) Undo(ctx context.Context, r driver.Request) error {
	if err := s.ready(ctx); err != nil {
		return err
	}
	sp := s.space
	sp.mu.Lock()
	defer sp.mu.Unlock()
	if f := takeFault(&sp.script.undos, r.Name); f != nil {
		return f.err
	}
	sp.script.forget(r.ID)
	if n := sp.names[s.key(r.Name)]; n != nil {
		for _, e := range n.all() {
			if e.id == r.ID { // mutation: memory-undo
				sp.drop(e)
			}
		}
	}
	return nil
}

// Renew sets new deadlines for grants that still stand.
func (s *store) Renew(ctx context.Context, grants []driver.Grant) []driver.Renewal {
	answers := make([]driver.Renewal, len(grants))
	for i, g := range grants {
		answers[i] = s.renew(ctx, g)
	}
	return answers
}

func (s *store) renew(ctx context.Context, g driver.Grant) driver.Renewal {
	if err := s.ready(ctx); err != nil {
		return driver.Renewal{Err: err}
	}
	if err := s.space.renewFault(ctx, g.Name); err != nil {
		return driver.Renewal{Err: err}
	}
	sp := s.space
	sp.mu.Lock()
	defer sp.mu.Unlock()
	e := sp.find(s.key(g.Name), &g)
	if e == nil {
		return driver.Renewal{Cause: driver.CauseGone, Err: driver.NotHeld(g.Name, g.Token)}
	}
	e.ttl = g.TTL
	sp.extend(e)
	return driver.Renewal{SentAt: e.sent, TTL: e.ttl}
}

// Release ends a grant, or leaves it standing for a while without an owner.
func (s *store) Release(ctx context.Context, g driver.Grant, keep time.Duration) error {
	if err := s.ready(ctx); err != nil {
		return err
	}
	sp := s.space
	sp.mu.Lock()
	defer sp.mu.Unlock()
	if f := takeFault(&sp.script.releases, g.Name); f != nil {
		return f.err
	}
	e := sp.find(s.key(g.Name), &g)
	if e == nil {
		return driver.NotHeld(g.Name, g.Token)
	}
	if keep <= 0 {
		sp.drop(e)
		return nil
	}
	// The grant no longer has an owner: it cannot be renewed or released again, only expire.
	e.id, e.store = "", nil
	e.expires = sp.now() + keep // mutation: memory-keep
	sp.arm(e.n)
	sp.changed(e.n)
	return nil
}

// Break ends a grant and notifies its holder.
func (s *store) Break(ctx context.Context, name string, token uint64) error {
	if err := s.ready(ctx); err != nil {
		return err
	}
	return s.endGrants(name, token, driver.CauseTaken)
}

// endGrants ends the grant with the token, or every grant of the name if it is 0. It notifies the holders.
func (s *store) endGrants(name string, token uint64, cause driver.Cause) error {
	sp := s.space
	sp.mu.Lock()
	var ended []*entry
	if n := sp.names[s.key(name)]; n != nil {
		sp.expire(n)
		for _, e := range slices.Clone(n.holders) {
			if token == 0 || driver.HasToken(e.token, e.tokens, token) {
				ended = append(ended, e)
				sp.drop(e)
			}
		}
	}
	sp.mu.Unlock()
	for _, e := range ended {
		e.from.Lost(cause, nil)
	}
	if len(ended) == 0 {
		return driver.NotHeld(name, token)
	}
	return nil
}

// Inspect returns the state of one name.
func (s *store) Inspect(ctx context.Context, name string) (driver.State, error) {
	if err := s.ready(ctx); err != nil {
		return driver.State{}, err
	}
	sp := s.space
	sp.mu.Lock()
	defer sp.mu.Unlock()
	st := driver.State{Name: name}
	if n := sp.names[s.key(name)]; n != nil {
		sp.expire(n)
		st.Holders, st.Waiters = sp.describe(n), n.waiters()
	}
	return st, nil
}

// List yields the names of this namespace that have a holder or a waiter.
func (s *store) List(ctx context.Context, prefix string) iter.Seq2[driver.State, error] {
	return func(yield func(driver.State, error) bool) {
		if err := s.checkOpen(); err != nil {
			yield(driver.State{}, err)
			return
		}
		sp, head := s.space, s.key("")
		sp.mu.Lock()
		var names []string
		for key := range sp.names {
			name, ours := strings.CutPrefix(key, head)
			if ours && strings.HasPrefix(name, prefix) && (head != "" || !strings.Contains(key, "\x00")) {
				names = append(names, name)
			}
		}
		sp.mu.Unlock()
		slices.Sort(names)
		for _, name := range names {
			st, err := s.Inspect(ctx, name)
			if err == nil && len(st.Holders)+len(st.Waiters) == 0 {
				continue
			}
			if !yield(st, err) || err != nil {
				return
			}
		}
	}
}

// Watch calls changed after changes until ctx ends.
func (s *store) Watch(ctx context.Context, name string, changed func()) error {
	if err := s.checkOpen(); err != nil {
		return err
	}
	w := &watcher{prefix: s.key(""), name: name, ch: make(chan struct{}, 1)}
	sp := s.space
	sp.mu.Lock()
	if sp.watch == nil {
		sp.watch = map[*watcher]struct{}{}
	}
	sp.watch[w] = struct{}{}
	sp.mu.Unlock()
	defer func() {
		sp.mu.Lock()
		delete(sp.watch, w)
		sp.mu.Unlock()
	}()
	changed()
	for {
		select {
		case <-w.ch:
			changed()
		case <-ctx.Done():
			return ctx.Err()
		case <-s.end:
			return driver.Errorf(driver.CodeClosed, "the memory store is closed")
		}
	}
}

// watcher receives the changes of a name, or of every name of a namespace.
type watcher struct {
	prefix, name string
	ch           chan struct{} // has capacity one, so that changes coalesce
}

var _ interface {
	driver.Store
	driver.Inspector
	driver.Breaker
	driver.Watcher
	fmt.Stringer
} = (*store)(nil)
