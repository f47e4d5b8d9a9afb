package record

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/internal/calls"
	"github.com/holdfast-go/holdfast/internal/gather"
	"github.com/holdfast-go/holdfast/internal/held"
)

// Options are the options of an [Engine].
type Options struct {
	// Namespace separates the names of two applications. The caller has checked it by [driver.CheckNamespace].
	Namespace string
	// Skew returns by how much two readings of the storage's clock may differ from the time between them:
	// the tick of a coarse clock, and the difference between the clocks of several servers. Each grant
	// lasts that much longer. If Skew is nil, it is a millisecond: one clock of at least that precision.
	Skew func() time.Duration
	// Poll is the longest interval at which a waiter tries again without a notification. If it is 0, Acquire
	// does not wait, and the core polls.
	Poll time.Duration
	// Notice is how soon a holder notices that its grant was broken. The engine reads the records of its
	// grants twice in that time. The default is 2 s.
	Notice time.Duration
	// Records names the records in errors, such as their table. The default is "record".
	Records string
}

// checkInterval is the interval at which a client checks whether its grants still stand.
func (o Options) checkInterval() time.Duration { return cmp.Or(o.Notice, 2*time.Second) / 2 }

// Engine implements the methods of [driver.Store], [driver.Inspector], [driver.Breaker] and
// [driver.Swapper] that concern grants.
type Engine struct{ *engine }

type engine struct {
	batch   Batch
	apart   bool // each op has requests of its own
	o       Options
	prefix  string // precedes each name
	queue   int    // the most queue entries of a record
	waiters waiters

	calls *calls.Calls
	held  *held.Grants

	mu    sync.Mutex
	swept time.Time
}

const (
	// idleTime is the time after which a client may remove an unused record.
	idleTime = time.Minute
	// sweepEvery is the interval at which a client removes unused records.
	sweepEvery = 30 * time.Second
	// takenTime is how long a record shows a broken grant.
	takenTime = 10 * time.Minute
	// answerTimeout limits each try of a waiter. The context of a waiter has no deadline, and a storage may
	// not answer.
	answerTimeout = 10 * time.Second
	// batch is the number of names in one exchange, and maxBatch that of a client with thousands of
	// grants. A client makes at most lanes exchanges at the same time.
	batch, maxBatch, lanes = 32, 128, 8
	// Requests whose waits began within sameAge are equally old: one that the record has stays ahead.
	sameAge = 100 * time.Millisecond
	// leaveTimeout limits how long a wait that has ended takes to give up its queue entry.
	leaveTimeout = time.Second
	// quickest is the shortest interval at which the first waiter tries again without a notification.
	quickest = 5 * time.Millisecond
	// quickTries is how many tries follow the first one without a pause. Later the client pauses, and then reads
	// and writes.
	quickTries = 4
)

// inBatches calls f for each part of n grants. If n is more than a batch, several lanes call f at the
// same time. Over a slow link, one exchange after another would take longer than a TTL. f returns false
// if the part was certainly not applied, for example because the server accepts no more connections.
// The lane then stops, and the other lanes continue. At the end inBatches calls f with last set, for
// the parts that remain.
func inBatches(n int, f func(from, to int, last bool) bool) {
	if n <= batch {
		f(0, n, true)
		return
	}
	size := min(max(n/(4*lanes), batch), maxBatch)
	parts, failed := make(chan int, (n+size-1)/size), make(chan int, lanes)
	for from := 0; from < n; from += size {
		parts <- from
	}
	close(parts)
	var running sync.WaitGroup
	for range min(lanes, cap(parts)) {
		running.Go(func() {
			for from := range parts {
				if !f(from, min(from+size, n), false) {
					failed <- from
					return
				}
			}
		})
	}
	running.Wait()
	close(failed)
	for _, rest := range []chan int{failed, parts} {
		for from := range rest {
			f(from, min(from+size, n), true)
		}
	}
}

// NewEngine returns an engine on b, which its Close closes. Keys are the namespace, a NUL and a name.
func NewEngine(b Batch, o Options) *Engine {
	// A namespace contains no NUL, so that the prefixes of two namespaces never match the same name.
	e := &engine{batch: b, o: o, prefix: o.Namespace + "\x00", calls: calls.New(), swept: time.Now()}
	e.o.Records = cmp.Or(o.Records, "record")
	if e.queue = 1; o.Poll > 0 {
		e.queue = maxQueue
	}
	e.held = held.New(o.checkInterval(), 0, e.checkHeld)
	e.waiters.init(e)
	return &Engine{e}
}

// Declare sets the guarantees that the engine has with every storage. The caller declares the others: Kind,
// Scope, Tokens, EarlyEnd, MaxTTL and Notes.
func (o Options) Declare(g *driver.Guarantees) {
	g.Wake = driver.WakePoll
	if o.Poll > 0 {
		g.Wake, g.Fallback = driver.WakePush, o.Poll
	}
	g.Crash, g.Pause, g.LeftoversExpire = driver.CrashFreesAfterTTL, driver.PauseLoses, true
	g.Order, g.TryFirst = driver.OrderLongest, true
	g.Shared, g.Semaphore, g.Mixed, g.Slots = true, true, true, true
	g.Reserves, g.Linger = true, true
	g.Break, g.Notice, g.Visible = driver.BreakNow, 2*o.checkInterval(), driver.VisibleHolders
	g.MinTTL, g.Granularity = time.Millisecond, cmp.Or(g.Granularity, time.Microsecond)
}

// view is a record as it was read.
type view struct {
	sent    driver.Instant // when the read was sent
	version string         // "" if there is no record
	now     int64          // microseconds, by the storage's clock
	last    int64          // no token of the name was larger
	ahead   bool           // live has shortened the time of a grant in the record
	read    content        // with what has expired
	content
}

// lasts returns how long a record keeps a grant for a duration, in microseconds.
func (e *engine) lasts(d time.Duration) int64 {
	skew := time.Millisecond
	if e.o.Skew != nil {
		skew = e.o.Skew()
	}
	return micros(d + skew) // mutation: record-skew
}

func (e *engine) key(name string) string { return e.prefix + name }

// op is a change of one name. step reads the record and returns the content that shall replace
// it. It returns nil when nothing more is to be done, or an error that ends the op. The
// engine calls step again after each write, and step recognises its own effect.
type op struct {
	key  string
	step func(*view) (next *content, err error)
	wake bool // the write frees the name or a permit, or breaks a grant

	token  int64   // the token that a write gives the record, if larger than the record's
	change *Change // the next change to make
	done   bool
	err    error
}

// apply executes ops of different names. Each op has its own error.
func (e *engine) apply(ctx context.Context, ops ...*op) {
	if e.apart && len(ops) > 1 { // so that a request without an answer delays no other op
		gather.Each(len(ops), batch, func(i int) { e.apply(ctx, ops[i]) })
		return
	}
	pending := slices.SortedFunc(slices.Values(ops), func(a, b *op) int { return strings.Compare(a.key, b.key) })
	paused := false
	for tries := 0; len(pending) > 0; tries++ {
		if paused = tries > quickTries && !paused; paused {
			if err := backoff.Yield(ctx, tries); err != nil {
				for _, p := range pending { // their changes have not been sent
					p.done, p.change, p.err = true, nil, &driver.Error{Code: driver.CodeUnavailable, Err: err}
				}
				return
			}
			for _, p := range pending { // others have changed the records meanwhile
				p.change = nil
			}
		}
		var changes []Change
		keys := make([]string, len(pending))
		for i, p := range pending {
			keys[i] = p.key
			if p.change != nil {
				changes = append(changes, *p.change)
			}
		}
		sent := driver.Now()
		results := e.batch.Exchange(ctx, changes, keys)
		for i, p := range pending {
			changed := p.change != nil
			e.decide(p, &results[i], sent)
			if changed && p.wake && p.err == nil {
				e.waiters.wakeLocal(p.key)
			}
		}
		pending = slices.DeleteFunc(pending, func(p *op) bool { return p.done })
	}
}

// decide calls the op's step with its record, and prepares the change that shall replace the record. If
// there is none, the op is done.
func (e *engine) decide(p *op, o *Result, sent driver.Instant) {
	p.change, p.done, p.err = nil, true, o.Err
	if p.err != nil {
		return
	}
	v := &view{sent: sent, version: o.Version, now: o.Now.UnixMicro()}
	if v.version != "" {
		if v.content, p.err = e.decode(p.key, &o.Object); p.err != nil {
			return
		}
	}
	if o.Floor > maxToken {
		p.err = e.broken(p.key, "a token is out of range")
		return
	}
	v.read = v.content
	v.last = max(v.Token, int64(o.Floor)) // mutation: record-floor
	v.ahead = slices.ContainsFunc(v.Holders, func(h holder) bool { return h.ahead(v.now) })
	v.content = v.live(v.now)
	next, err := p.step(v)
	if p.err = err; err != nil || next == nil {
		return
	}
	next.Token = max(v.last, p.token) // mutation: record-token
	if !o.Written.IsZero() && next.lasting {
		next.At = v.now
	}
	p.done = false
	p.replace(&o.Object, next)
}

// replace prepares the change of a record to the next content.
func (p *op) replace(old *Object, next *content) {
	deadline := old.Now.Add(ApplyTime)
	if before := time.UnixMicro(next.before); next.before > 0 && before.Before(deadline) { // mutation: record-deadline
		deadline = before
	}
	p.change = &Change{Key: p.key, Old: *old, Deadline: deadline, Data: encode(next), Wake: p.wake,
		Next: next.first(), Token: uint64(next.Token), Expires: time.UnixMicro(next.lastExpiry())}
}

// decode returns the content of a record. It returns the error of a broken record if no client can have
// written the data.
func (e *engine) decode(key string, o *Object) (content, error) {
	c, why := decode(o.Data)
	if why != "" {
		return content{}, e.broken(key, why)
	}
	c.lastFrom(o.Written)
	return c, nil
}

func (e *engine) broken(key, why string) error { return driver.Broken(e.o.Records+" "+key, why) }

// ended returns calls.ErrClosed instead of err if the engine was closed, unless the outcome is unknown.
func (e *engine) ended(err error) error {
	if err != nil && e.calls.Ctx.Err() != nil && driver.CodeOf(err) != driver.CodeUnknown {
		return calls.ErrClosed
	}
	return err
}

// Classify returns the code that every error of the engine carries.
func (*engine) Classify(err error) driver.Code { return driver.CodeOf(err) }

// sweep starts a Sweep in the background if the last one began at least sweepEvery ago.
func (e *engine) sweep() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if time.Since(e.swept) < sweepEvery {
		return
	}
	e.swept = time.Now()
	e.calls.Go(func() {
		ctx, cancel := context.WithTimeout(e.calls.Ctx, sweepEvery/2)
		defer cancel()
		_ = e.Sweep(ctx, idleTime) // the next sweep continues
	})
}

// Sweep removes records that were unused for at least idle, if the storage is a [Sweeper]. The engine
// calls it at times, after a release. Only tests use a time of less than a minute, while no request is
// under way: a client that found no record before the sweep would bring a smaller token.
func (e *engine) Sweep(ctx context.Context, idle time.Duration) error {
	s, ok := e.batch.(Sweeper)
	if !ok {
		return nil
	}
	return s.Sweep(ctx, idle)
}

// Close ends the calls and closes the storage. The grants of this client expire.
func (e *engine) Close(context.Context) error {
	if !e.calls.Stop() {
		return nil
	}
	e.calls.Cancel()
	e.held.Stop()
	e.calls.Running.Wait()
	e.calls.Tasks.Wait()
	return e.batch.Close()
}
