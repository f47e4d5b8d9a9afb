package holdfast

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/storeurl"
)

// Guarantees is what a store guarantees; see [driver.Guarantees].
type Guarantees = driver.Guarantees

// State is a name's holders and waiters.
type State = driver.State

// Holder is a grant as an inspection shows it.
type Holder = driver.Holder

// Waiter is a queue entry as an inspection shows it.
type Waiter = driver.Waiter

// Locker acquires locks on one store. It is safe for concurrent use, and one per process
// and store is enough: goroutines that wait for the same name queue inside it and share
// one queue entry at the store.
type Locker struct {
	store driver.Store
	where string // the store's String, read once
	// exposed is the warning of a driver.Exposer, else "".
	exposed string
	// swapper is the store if it can release and request in one step, else nil.
	swapper driver.Swapper
	owned   bool // Close closes the store
	cfg     config

	// guarantees is nil until the store has returned its guarantees.
	guarantees atomic.Pointer[driver.Guarantees]
	idPrefix   string
	ids        atomic.Uint64

	ctx    context.Context // ends with the Locker
	cancel context.CancelCauseFunc

	started    time.Time // when the Locker was made; see sinceStart
	background background
	// unsettled counts the releases and undos that Close no longer waits for.
	unsettled atomic.Int64
	outbox
	// contention remembers the names that requests found held at the store.
	contention contention
	// localContention remembers the names for which goroutines of this Locker compete.
	localContention contention
	// queueCount is the length of queues. It can be read without mu.
	queueCount atomic.Int32
	// keptCount is the length of kept. It can be read without mu.
	keptCount atomic.Int32

	// mu guards the rest, and every lease; see machine.go.
	mu     sync.Mutex
	closed bool
	// closedAt is when Close was first called. Close sets it before it ends ctx, so that
	// background tasks can read it without mu once ctx has ended.
	closedAt time.Time
	queues   map[string]*queue
	wanted   map[string][]*wanted // of Locks whose Wanted was called, by name
	leases   []*lease             // that Close ends
	kept     map[string]*lease    // of phase kept, by name
	delayed  int                  // the number of queues whose request waits in this process
	// leaseCount counts the leases of all time.
	leaseCount int64
	schedule   schedule
}

// New returns a Locker over a store that the caller has opened. The caller closes the
// store after the Locker.
func New(s driver.Store, o ...Option) (*Locker, error) {
	c, err := newConfig(o)
	if err != nil {
		return nil, err
	}
	if s == nil {
		return nil, invalid("the store is nil")
	}
	if c.namespace != "" {
		return nil, invalid("Namespace(%q) is for Open: give it to the store's own constructor", c.namespace)
	}
	return newLocker(s, c, false), nil
}

// Open opens the store that a URL names, and returns a Locker over it. Close closes
// both. Open is lazy: it checks the URL, and most stores connect with the first request,
// so that a service can start before its store. Call [Locker.Ping] to check the
// connection. The package of each store documents its URLs and registers their scheme when it
// is imported:
//
//	import _ "github.com/holdfast-go/holdfast/filestore"
func Open(ctx context.Context, rawURL string, o ...Option) (*Locker, error) {
	c, err := newConfig(o)
	if err != nil {
		return nil, err
	}
	u, err := parseURL(rawURL)
	if err != nil {
		return nil, err
	}
	open, ok := driver.OpenerOf(u.Scheme)
	if !ok {
		return nil, unknownScheme(u.Scheme)
	}
	s, err := open(ctx, u, c.namespace)
	if err != nil {
		kind := kinds[driver.CodeOf(err)]
		return nil, &failure{store: where(u), kind: kind, err: err}
	}
	return newLocker(s, c, true), nil
}

func newConfig(o []Option) (config, error) {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	c := config{host: host, requestTimeout: DefaultRequestTimeout}
	for _, opt := range o {
		opt(&c)
	}
	return c, c.check()
}

// where returns a URL without the parts that may be secret.
func where(u *url.URL) string {
	if u.Opaque != "" { // without slashes, so user and password were not recognized
		return u.Scheme + ":"
	}
	w := *u
	w.RawQuery, w.ForceQuery, w.Fragment, w.RawFragment = "", false, "", ""
	return w.Redacted()
}

// parseURL parses a store's URL. Its errors do not quote the URL, which may contain a
// password.
func parseURL(raw string) (*url.URL, error) {
	u, err := storeurl.Read(raw)
	if err != nil {
		if e, ok := errors.AsType[*url.Error](err); ok {
			err = e.Err
		}
		// Some of net/url's reasons quote a part of the URL as well.
		reason, _, _ := strings.Cut(err.Error(), `"`)
		return nil, invalid("the store's URL cannot be read: %s", strings.TrimSpace(reason))
	}
	if u.Scheme == "" {
		return nil, invalid("the store's URL is empty or has no scheme: it begins with one of these: %s", strings.Join(driver.Schemes(), ", "))
	}
	return u, nil
}

// packages maps a scheme to the package that registers it.
var packages = map[string]string{
	"file": "filestore", "memory": "memstore",
	"etcd": "etcdstore", "etcds": "etcdstore",
	"zk":    "zkstore",
	"nats":  "natsstore",
	"mysql": "mysqlstore", "mariadb": "mysqlstore",
	"postgres": "pgstore", "postgresql": "pgstore",
	"redis": "redisstore", "rediss": "redisstore", "redis+sentinel": "redisstore", "rediss+sentinel": "redisstore",
	"redis+cluster": "redisstore", "rediss+cluster": "redisstore",
	"redlock": "redisstore/redlock", "redlocks": "redisstore/redlock",
	"s3":     "s3store",
	"sqlite": "sqlitestore",
}

func unknownScheme(scheme string) error {
	linked := "none"
	if s := driver.Schemes(); len(s) > 0 {
		linked = strings.Join(s, ", ")
	}
	if pkg, ok := packages[scheme]; ok {
		return invalid("scheme %q is not linked in (linked: %s): import _ \"github.com/holdfast-go/holdfast/%s\"", scheme, linked, pkg)
	}
	return invalid("unknown scheme %q (linked: %s)", scheme, linked)
}

func newLocker(s driver.Store, c config, owned bool) *Locker {
	l := &Locker{
		store: s, where: s.String(), owned: owned, cfg: c,
		idPrefix: strings.ToLower(rand.Text()[:16]) + "-",
		queues:   map[string]*queue{}, started: time.Now(),
	}
	l.swapper, _ = s.(driver.Swapper)
	if e, ok := s.(driver.Exposer); ok {
		l.exposed = e.Exposed()
	}
	if l.exposed != "" && c.hooks != nil {
		e := l.describe(EventExposed, "", &settings{})
		e.Err = errors.New(l.exposed)
		l.emit(context.Background(), e)
	}
	l.ctx, l.cancel = context.WithCancelCause(context.Background())
	return l // mutation: locker
}

// Guarantees returns what the store guarantees. It may send a request to the server.
func (l *Locker) Guarantees(ctx context.Context) (Guarantees, error) {
	g, err := l.loadGuarantees(ctx, l.cfg.requestTimeout)
	if err != nil {
		return Guarantees{}, err
	}
	return *g, nil
}

// Ping sends a request to the store, and returns nil if the store answers it. The error
// matches ErrUnavailable if there was no answer within the request timeout, and ErrRefused if
// the store refused the request. Ping acquires nothing and needs only the right to read.
func (l *Locker) Ping(ctx context.Context) error {
	if ctx.Err() != nil {
		return &failure{store: l.where, err: contextError(ctx)}
	}
	if _, err := l.loadGuarantees(ctx, l.cfg.requestTimeout); err != nil {
		return err
	}
	if _, ok := l.store.(driver.Inspector); !ok {
		limited, cancel := context.WithTimeout(ctx, l.cfg.requestTimeout)
		defer cancel()
		if _, err := l.store.Guarantees(limited); err != nil {
			return l.explain(ctx, "", err)
		}
		return nil
	}
	_, err := l.Inspect(ctx, "holdfast-ping")
	return err
}

// loadGuarantees returns the store's guarantees. It requests them until the store has returned
// them once.
func (l *Locker) loadGuarantees(ctx context.Context, timeout time.Duration) (*driver.Guarantees, error) {
	if g := l.guarantees.Load(); g != nil {
		return g, nil
	}
	limited, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	g, err := l.store.Guarantees(limited)
	if err != nil {
		return nil, l.explain(ctx, "", err)
	}
	if l.exposed != "" {
		g.Notes = append([]string{"WARNING: " + l.exposed}, g.Notes...)
	}
	l.guarantees.CompareAndSwap(nil, &g)
	return l.guarantees.Load(), nil
}

// retryGuarantees repeats a request for the guarantees that failed with err. It repeats it with
// backoff until timeout, as a waiter repeats every request.
func (l *Locker) retryGuarantees(ctx context.Context, timeout time.Duration, err error) (*driver.Guarantees, error) {
	end := time.Now().Add(timeout)
	for r := (retry{}); ; {
		left := time.Until(end)
		if !errors.Is(err, ErrUnavailable) || left <= 0 {
			return nil, err
		}
		switch slept := sleep(ctx, l.ctx, min(left, r.delay())); {
		case ctx.Err() != nil:
			return nil, l.unanswered("", contextError(ctx), err)
		case !slept:
			return nil, l.closedError("")
		}
		var g *driver.Guarantees
		if left = time.Until(end); left <= 0 {
			return nil, err
		}
		if g, err = l.loadGuarantees(ctx, left); err == nil {
			return g, nil
		}
	}
}

// sinceStart returns the time from the making of the Locker until t. The schedule and the leases
// store points in time in this form.
func (l *Locker) sinceStart(t time.Time) time.Duration { return t.Sub(l.started) }

// now returns sinceStart of the present time. It reads one clock; time.Now reads two.
func (l *Locker) now() time.Duration { return time.Since(l.started) }

func (l *Locker) newID() string {
	var buf [40]byte
	return string(strconv.AppendUint(append(buf[:0], l.idPrefix...), l.ids.Add(1), 36))
}

// requestTimeout returns the timeout of one request for a lock with that TTL.
func (l *Locker) requestTimeout(ttl time.Duration) time.Duration {
	return min(ttl/3, l.cfg.requestTimeout)
}

// Close ends every lock of the Locker and releases it, and those that [Sticky] keeps. The cause of their contexts is a
// LostError with cause CauseClosed. Waiters get ErrClosed. Close then waits until every
// release and every roll back is confirmed, every MinHold has passed, also of a lock that is still held, and the
// last event is reported, or until ctx ends. It does not wait for the end of the locks that Every leaves at
// the store. The locks are released even if the work under them has not returned: let it return
// before Close.
//
// If ctx has ended already, or ends within a second, Close still gives the releases a
// second, and the store another one to be closed. So a Close with the context that
// SIGTERM has ended leaves no lock behind, unless the store is unreachable.
//
// Close waits four TTLs of the lock, and at least 30 s, for a store that does not confirm a
// release or a roll back. It then returns an error that matches ErrUnavailable. The
// work continues in the background, and Close can be called again to wait for it. A store
// that Open opened is closed at the end in any case, which ends that work, too.
func (l *Locker) Close(ctx context.Context) error {
	l.mu.Lock()
	if !l.closed {
		l.closed, l.closedAt = true, time.Now()
	}
	leases := slices.Clone(l.leases)
	slices.SortFunc(leases, func(a, b *lease) int { return cmp.Compare(b.number, a.number) }) // inner locks first
	var waits []outcome
	for _, q := range l.queues {
		_, cancel := l.stepQueue(q, &queueEvent{kind: lockerClosed})
		waits = append(waits, outcome{cancel: cancel})
	}
	l.mu.Unlock()

	l.cancel(&failure{store: l.where, kind: ErrClosed})
	for i := range waits {
		_ = l.perform(&waits[i])
	}
	for _, x := range leases {
		_, _ = l.apply(x, &event{kind: closed})
		// Close does not wait for the MinHold of a lease of Every. Such a lease is never
		// handed off, so its first holder is its only one.
		if x.firstHolder.set.job != "" {
			l.background.run(func() { _, _ = l.apply(x, &event{kind: lingered}) })
		}
	}
	waiting, cancel := atLeast(ctx, closeLeast)
	err := l.background.wait(waiting)
	cancel()
	if err != nil {
		err = &failure{store: l.where, kind: ErrUnavailable,
			err: fmt.Errorf("closing: not everything is released and undone: %w", contextError(ctx))}
	} else {
		l.disarm()
		if n := l.unsettled.Load(); n > 0 {
			err = &failure{store: l.where, kind: ErrUnavailable, err: fmt.Errorf("closing: the store has not confirmed %d releases or undos", n)}
		}
	}
	if l.owned {
		closing, cancel := atLeast(ctx, closeLeast)
		cerr := l.store.Close(closing)
		cancel()
		if cerr != nil && l.store.Classify(cerr) != driver.CodeClosed && err == nil {
			err = l.explain(ctx, "", cerr)
		}
	}
	return err
}

// atLeast returns a context that ends with ctx, but not before d has passed.
func atLeast(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	if ctx.Done() == nil {
		return ctx, func() {}
	}
	longer, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	timer := time.AfterFunc(d, func() {
		stop := context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })
		context.AfterFunc(longer, func() { stop() })
	})
	return longer, func() {
		timer.Stop()
		cancel(nil)
	}
}

func (l *Locker) closedError(name string) error {
	return &failure{name: name, store: l.where, kind: ErrClosed}
}
