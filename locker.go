package holdfast

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// Guarantees is what a store promises; see [driver.Guarantees].
type Guarantees = driver.Guarantees

// State is a name's holders and waiters.
type State = driver.State

// Holder is a grant as an inspection shows it.
type Holder = driver.Holder

// Waiter is a place in a queue as an inspection shows it.
type Waiter = driver.Waiter

// Locker takes locks on one store. It is safe for concurrent use, and one per
// process and store is enough: goroutines that want the same name queue inside
// it and keep one place at the store.
type Locker struct {
	store driver.Store
	where string // the store's name, which costs nothing and locks nothing
	owned bool   // Close closes the store
	cfg   config

	// guarantees is nil until the store has told them.
	guarantees atomic.Pointer[driver.Guarantees]
	idPrefix   string
	ids        atomic.Uint64

	ctx    context.Context // ends with the Locker; what waits at the store runs on it
	cancel context.CancelCauseFunc
	sched  scheduler

	work activity
	// unsettled are the releases and undos that Close does not wait for any more.
	unsettled atomic.Int64
	outbox

	// mu comes before a hold's mutex where both are taken.
	mu     sync.Mutex
	closed bool
	// closedAt is when Close was first called; written before ctx ends.
	closedAt time.Time
	queues   map[string]*queue
	// waiting counts the queues, to be read without mu.
	waiting atomic.Int32
	crowd   crowd
	held    holdList
}

// New makes a Locker over a store that the caller opened and will close, after
// the Locker.
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

// Open opens the store that a URL names and makes a Locker over it; Close closes
// both. Each store's package documents its URLs and registers their scheme when
// it is imported:
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
		opt.applyTo(&c)
	}
	return c, c.check()
}

// where is a URL without what may be secret.
func where(u *url.URL) string {
	w := *u
	w.RawQuery, w.ForceQuery, w.Fragment, w.RawFragment = "", false, "", ""
	return w.Redacted()
}

// parseURL never quotes what it was given: it may hold a password.
func parseURL(raw string) (*url.URL, error) {
	u, err := url.Parse(raw)
	if err != nil {
		if e, ok := errors.AsType[*url.Error](err); ok {
			err = e.Err
		}
		// Some of net/url's reasons quote a part of the URL as well.
		reason, _, _ := strings.Cut(err.Error(), `"`)
		return nil, invalid("the store's URL cannot be read: %s", strings.TrimSpace(reason))
	}
	if u.Scheme == "" {
		return nil, invalid("the store's URL has no scheme: give one of %s", strings.Join(driver.Schemes(), ", "))
	}
	return u, nil
}

// packages tells which import brings a scheme.
var packages = map[string]string{
	"file": "filestore", "memory": "memstore",
	"etcd": "etcdstore", "etcds": "etcdstore",
	"zk":    "zkstore",
	"mysql": "mysqlstore", "mariadb": "mysqlstore",
	"postgres": "pgstore", "postgresql": "pgstore",
	"redis": "redisstore", "rediss": "redisstore", "redis+sentinel": "redisstore", "rediss+sentinel": "redisstore",
	"redis+cluster": "redisstore", "rediss+cluster": "redisstore",
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
		queues:   map[string]*queue{},
	}
	l.ctx, l.cancel = context.WithCancelCause(context.Background())
	l.sched.l = l
	return l
}

// Guarantees tells what the store promises. It may ask the server.
func (l *Locker) Guarantees(ctx context.Context) (Guarantees, error) {
	g, err := l.know(ctx, l.cfg.requestTimeout)
	if err != nil {
		return Guarantees{}, err
	}
	return *g, nil
}

// know remembers the store's guarantees, for which it asks within d.
func (l *Locker) know(ctx context.Context, d time.Duration) (*driver.Guarantees, error) {
	if g := l.guarantees.Load(); g != nil {
		return g, nil
	}
	asking, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	g, err := l.store.Guarantees(asking)
	if err != nil {
		return nil, l.explain(ctx, "", err)
	}
	l.guarantees.CompareAndSwap(nil, &g)
	return l.guarantees.Load(), nil
}

// insist asks again what a first attempt has not told, as every request of those who
// wait is made again, as long as its patience lasts.
func (l *Locker) insist(ctx context.Context, patience time.Duration, err error) (*driver.Guarantees, error) {
	for n, end := 0, time.Now().Add(patience); ; n++ {
		left := time.Until(end)
		if !errors.Is(err, ErrUnavailable) || left <= 0 {
			return nil, err
		}
		pause := time.NewTimer(min(left, backoff(n, retryFirst, retryMost)))
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			return nil, &failure{store: l.where, kind: ErrUnavailable, err: fmt.Errorf("%w: %w", contextError(ctx), err)}
		case <-l.ctx.Done():
			pause.Stop()
			return nil, l.closedError("")
		}
		var g *driver.Guarantees
		if left = time.Until(end); left <= 0 {
			return nil, err
		}
		if g, err = l.know(ctx, left); err == nil {
			return g, nil
		}
	}
}

func (l *Locker) newID() string {
	var buf [40]byte
	return string(strconv.AppendUint(append(buf[:0], l.idPrefix...), l.ids.Add(1), 36))
}

// requestTimeout bounds one request about a lock of that TTL.
func (l *Locker) requestTimeout(ttl time.Duration) time.Duration {
	return min(ttl/3, l.cfg.requestTimeout)
}

// Close ends every lock of the Locker (their contexts' cause is a LostError with
// cause Closed), releases them, ends what waits with ErrClosed, and waits until
// every release and every undo is confirmed, every MinHold has passed and the
// last event is reported, or ctx ends. It waits for a store that does not confirm
// them for four TTLs of the lock and at least 30 s. The error, which matches
// ErrUnavailable, then says so; what is left goes on in the background, and Close may
// be called again to ask for it. A store that Open opened is closed at the end in any
// case, which ends that too.
func (l *Locker) Close(ctx context.Context) error {
	l.mu.Lock()
	if !l.closed {
		l.closed, l.closedAt = true, time.Now()
	}
	held := l.held.all()
	l.mu.Unlock()

	l.cancel(&failure{store: l.where, kind: ErrClosed})
	for _, h := range held {
		h.close()
	}
	err := l.work.wait(ctx)
	if err != nil {
		err = &failure{store: l.where, kind: ErrUnavailable,
			err: fmt.Errorf("closing: not everything is released and undone: %w", contextError(ctx))}
	} else {
		l.sched.stop()
		if n := l.unsettled.Load(); n > 0 {
			err = &failure{store: l.where, kind: ErrUnavailable, err: fmt.Errorf("closing: the store has not confirmed %d releases or undos", n)}
		}
	}
	if l.owned {
		cerr := l.store.Close(ctx)
		if cerr != nil && l.store.Classify(cerr) != driver.IsClosed && err == nil {
			err = l.explain(ctx, "", cerr)
		}
	}
	return err
}

func (l *Locker) closedError(name string) error {
	return &failure{name: name, store: l.where, kind: ErrClosed}
}
