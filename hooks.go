package holdfast

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// EventKind is what an Event reports.
type EventKind string

// The events of a lock's life, in the order in which they may happen.
const (
	// EventAcquiring begins every acquisition. Only Hooks.Start gets it.
	EventAcquiring EventKind = "acquiring"
	// EventQueued: the store reported that the name is held, by Holders, or that the request waits in this
	// process because of Err, such as for a connection. With a
	// [driver.Swapper], the Locker holds the next waiter's request back for at most
	// driver.HandoffTime. In that time it may report the waiter as queued behind its own lock,
	// before the store has the request.
	EventQueued EventKind = "queued"
	// EventAcquired: the store granted the lock, after Took.
	EventAcquired EventKind = "acquired"
	// EventFailed: the acquisition failed because of Err, after Took.
	EventFailed EventKind = "failed"
	// EventRenewed and EventRenewFailed: a renewal succeeded, or failed because of Err. The
	// Locker repeats a failed one as long as the lock is valid.
	EventRenewed     EventKind = "renewed"
	EventRenewFailed EventKind = "renewal failed"
	// EventHoldLimit: MaxHold ended the lock's context.
	EventHoldLimit EventKind = "hold limit"
	// EventLost: the lock's context has ended with Err, a *LostError.
	EventLost EventKind = "lost"
	// EventReleased: the lock was released at the store, handed off, or kept (see [Sticky]). It was held for Took. A
	// kept lock is reported again only if its release fails: by EventUnconfirmed, and by EventReleased at the end.
	// The event comes without EventAcquired for a grant that arrived after its waiter had left.
	EventReleased EventKind = "released"
	// EventUnconfirmed: a release was refused or not confirmed in time, because of Err.
	// The release continues in the background, until EventReleased or until the lease must
	// have expired.
	EventUnconfirmed EventKind = "release unconfirmed"
	// EventUndoFailed: an acquisition with unknown outcome could not be rolled back yet. The
	// Locker repeats the rollback.
	EventUndoFailed EventKind = "undo failed"
)

// EventExposed comes once, before all others: a password goes to another machine without TLS to a
// verified server. Err describes it. The URLs of all such stores have require_tls=true, which is
// then an error instead.
const EventExposed EventKind = "password exposed"

// Event is one step in the life of a lock.
type Event struct {
	Kind EventKind
	// At is when the event happened, which may be a little before it is reported.
	At          time.Time
	Name, Store string
	// StoreKind is the store's recipe, such as "redis". There are few recipes, so it can
	// label a metric, which Name cannot.
	StoreKind string
	Limit     int
	Token     uint64
	Slot      int
	Reason    string
	// Took is how long the caller waited or held the lock.
	Took    time.Duration
	Holders []Holder
	Cause   Cause
	Err     error
}

// Hooks receive the events of a Locker. Events of an acquisition or an Unlock are
// reported on its goroutine, after the store has done its part. Events of renewal, loss
// and background work are reported in order on a goroutine of their own, so that a slow
// hook delays no lock. A hook's panic is ignored. A hook must not close its Locker,
// because Close waits for the hooks.
type Hooks interface {
	// Start begins an acquisition. The store and the later events of this acquisition
	// get the context that it returns, as tracers need it.
	Start(ctx context.Context, e Event) context.Context
	Event(ctx context.Context, e Event)
}

// LogHooks returns Hooks that write events to a logger: losses as errors; failed renewals,
// releases and rollbacks, the end of a MaxHold, and once a store an exposed password, as warnings; the rest,
// also failed acquisitions, at debug level. A line at info level names each store and its recipe, once. It
// writes one failed renewal a second and store, with the number of those that it left out before; releases and
// rollbacks likewise. The number of those after the last line is written with the next event of the store, of any
// level, a second or more after that line. Without such an event they are not counted.
func LogHooks(log *slog.Logger) Hooks { return &logHooks{log: log, stores: map[string]*loggedStore{}} }

type logHooks struct {
	log    *slog.Logger
	mu     sync.Mutex
	stores map[string]*loggedStore // by the store's name
}

// loggedStore is what logHooks has written about a store.
type loggedStore struct {
	kind     string // the recipe that was logged
	failures map[EventKind]loggedFailure
	exposed  bool // an exposed password was logged
}

// loggedFailure is when a failed renewal, release or rollback was logged last, and how many were left out since then.
type loggedFailure struct {
	at      time.Time
	omitted int
}

func (h *logHooks) Start(ctx context.Context, _ Event) context.Context { return ctx }

// pass reports whether the event is to be logged, and how many events before it were left out. found is
// set for the first event with the recipe of its store. If rest is not empty, the events left out are of that kind, of
// which no event has come for a second.
func (h *logHooks) pass(e Event) (found, pass bool, omitted int, rest EventKind) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.stores[e.Store]
	if s == nil {
		s = &loggedStore{failures: map[EventKind]loggedFailure{}}
		h.stores[e.Store] = s
	}
	if e.StoreKind != "" && s.kind != e.StoreKind {
		s.kind, found = e.StoreKind, true
	}
	switch e.Kind {
	case EventExposed:
		pass, s.exposed = !s.exposed, true
		return found, pass, 0, ""
	case EventRenewFailed, EventUnconfirmed, EventUndoFailed:
	default:
		for kind, f := range s.failures {
			if f.omitted > 0 && time.Since(f.at) >= time.Second {
				delete(s.failures, kind)
				return found, true, f.omitted, kind
			}
		}
		return found, true, 0, ""
	}
	f := s.failures[e.Kind]
	if !f.at.IsZero() && time.Since(f.at) < time.Second {
		f.omitted++
		s.failures[e.Kind] = f
		return found, false, 0, ""
	}
	s.failures[e.Kind] = loggedFailure{at: time.Now()}
	return found, true, f.omitted, ""
}

func (h *logHooks) Event(ctx context.Context, e Event) {
	found, pass, omitted, rest := h.pass(e)
	if found {
		h.log.LogAttrs(ctx, slog.LevelInfo, "holdfast: locks", slog.String("store", e.Store), slog.String("kind", e.StoreKind))
	}
	if rest != "" {
		h.log.LogAttrs(ctx, slog.LevelWarn, "holdfast: "+string(rest),
			slog.String("store", e.Store), slog.Int("omitted", omitted))
		omitted = 0
	}
	if !pass {
		return
	}
	level := slog.LevelDebug
	switch e.Kind {
	case EventLost:
		level = slog.LevelError
	case EventRenewFailed, EventUnconfirmed, EventUndoFailed, EventHoldLimit, EventExposed:
		level = slog.LevelWarn
	}
	if !h.log.Enabled(ctx, level) {
		return
	}
	var attrs []slog.Attr
	add := func(set bool, a slog.Attr) {
		if set {
			attrs = append(attrs, a)
		}
	}
	waited := e.Kind == EventQueued || e.Kind == EventAcquired || e.Kind == EventFailed
	add(e.Name != "", slog.String("name", e.Name))
	add(true, slog.String("store", e.Store))
	add(e.Token != 0, slog.Uint64("token", e.Token))
	add(e.Took != 0 && waited, slog.Duration("waited", e.Took))
	add(e.Took != 0 && !waited, slog.Duration("held", e.Took))
	add(omitted > 0, slog.Int("omitted", omitted))
	add(e.Reason != "", slog.String("reason", e.Reason))
	add(e.Cause != "", slog.String("cause", string(e.Cause)))
	for _, h := range e.Holders[:min(len(e.Holders), 1)] {
		add(h.PID != 0, slog.Int("holder_pid", h.PID))
		add(h.PID != 0, slog.String("holder_host", h.Host))
		add(h.PID == 0, slog.String("holder", h.Client()))
	}
	add(e.Err != nil, slog.Any("error", e.Err))
	h.log.LogAttrs(ctx, level, "holdfast: "+string(e.Kind), attrs...)
}

type tee struct{ first, second Hooks }

func (t tee) Start(ctx context.Context, e Event) context.Context {
	return start(t.second, start(t.first, ctx, e), e)
}

func (t tee) Event(ctx context.Context, e Event) {
	call(t.first, ctx, e)
	call(t.second, ctx, e)
}

func start(h Hooks, ctx context.Context, e Event) (started context.Context) {
	started = ctx
	defer func() { _ = recover() }() // a hook's panic must not reach the caller
	if c := h.Start(ctx, e); c != nil {
		started = c
	}
	return started
}

func call(h Hooks, ctx context.Context, e Event) {
	defer func() { _ = recover() }()
	h.Event(ctx, e)
}

// maxPending is the largest number of events that wait for a slow hook. Further events
// are dropped, but losses are not: there are no more of them than locks.
const maxPending = 4096

// outbox holds the events that are reported in the background. A goroutine reports them, and
// ends when there are none left.
type outbox struct {
	eventsMu sync.Mutex
	events   []pendingEvent
	emitting bool
}

type pendingEvent struct {
	ctx   context.Context
	event Event
}

// describe returns an event with the fields that every event of a request has.
func (l *Locker) describe(kind EventKind, name string, s *settings) Event {
	e := Event{Kind: kind, At: time.Now(), Name: name, Store: l.where, Limit: s.limit, Slot: driver.NoSlot, Reason: s.reason}
	if g := l.guarantees.Load(); g != nil {
		e.StoreKind = g.Kind
	}
	return e
}

// emit calls the hooks on this goroutine.
func (l *Locker) emit(ctx context.Context, e Event) { call(l.cfg.hooks, ctx, e) }

// emitLater calls the hooks in the background.
func (l *Locker) emitLater(ctx context.Context, e Event) {
	l.eventsMu.Lock()
	defer l.eventsMu.Unlock()
	if l.cfg.hooks == nil || len(l.events) >= maxPending && e.Kind != EventLost {
		return
	}
	l.events = append(l.events, pendingEvent{ctx, e})
	if !l.emitting {
		l.emitting = true
		l.background.run(l.drainEvents)
	}
}

func (l *Locker) drainEvents() {
	var batch []pendingEvent
	done := false
	defer func() {
		if !done { // a hook has ended this goroutine with runtime.Goexit
			l.eventsMu.Lock()
			l.events = append(batch, l.events...)
			l.eventsMu.Unlock()
			l.background.run(l.drainEvents)
		}
	}()
	for {
		l.eventsMu.Lock()
		batch = l.events
		l.events = nil
		l.emitting = len(batch) > 0
		l.eventsMu.Unlock()
		if len(batch) == 0 {
			done = true
			return
		}
		for len(batch) > 0 {
			p := batch[0]
			batch = batch[1:]
			l.emit(p.ctx, p.event)
		}
	}
}
