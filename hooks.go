package holdfast

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// EventKind is what an Event tells.
type EventKind string

// The events of a lock's life, in the order in which they may happen.
const (
	// EventAcquiring opens every acquisition; it goes to Hooks.Start alone.
	EventAcquiring EventKind = "acquiring"
	// EventQueued: the store answered that the name is held; Holders may tell by
	// whom.
	EventQueued EventKind = "queued"
	// EventAcquired: granted, after Took.
	EventAcquired EventKind = "acquired"
	// EventFailed: not acquired; Err says why, after Took.
	EventFailed EventKind = "failed"
	// EventRenewed and EventRenewFailed: a renewal and its answer. A failed one
	// is tried again as long as trust lasts.
	EventRenewed     EventKind = "renewed"
	EventRenewFailed EventKind = "renewal failed"
	// EventHoldLimit: MaxHold ended the lock's context.
	EventHoldLimit EventKind = "hold limit"
	// EventLost: the lock's context has ended with Err, a *LostError.
	EventLost EventKind = "lost"
	// EventReleased: released at the store, held for Took. It may come without
	// EventAcquired: for a grant that arrived when nobody wanted it any more.
	EventReleased EventKind = "released"
	// EventUnconfirmed: a release was refused or not confirmed in time. It goes on
	// in the background, until EventReleased or until the grant must have lapsed; Err
	// says why.
	EventUnconfirmed EventKind = "release unconfirmed"
	// EventUndoFailed: an acquisition of unknown outcome could not be undone yet;
	// it is tried again.
	EventUndoFailed EventKind = "undo failed"
)

// Event is one step in the life of a lock.
type Event struct {
	Kind EventKind
	// At is when it happened, which may be a little before it is reported.
	At          time.Time
	Name, Store string
	// StoreKind is the store's recipe: one of few, fit for a metric's label, as
	// Name is not.
	StoreKind string
	Limit     int
	Token     uint64
	Slot      int
	Reason    string
	// Took is the time waited or held.
	Took    time.Duration
	Holders []Holder
	Cause   Cause
	Err     error
}

// Hooks watch a Locker. They are silent by default. Events of an acquisition or
// an Unlock are reported on its goroutine, after the store has done its part;
// those of renewal, loss and background work in order on a goroutine of their
// own, so that a slow hook delays no lock. A hook's panic is swallowed. A hook must
// not close its Locker: Close waits for it.
type Hooks interface {
	// Start opens an acquisition. The context it returns goes to the store and to
	// the later events of this acquisition, as tracers need it.
	Start(ctx context.Context, e Event) context.Context
	Event(ctx context.Context, e Event)
}

// LogHooks writes events to a logger: losses and failures as errors and
// warnings, the rest at debug level.
func LogHooks(log *slog.Logger) Hooks { return logHooks{log} }

type logHooks struct{ log *slog.Logger }

func (h logHooks) Start(ctx context.Context, _ Event) context.Context { return ctx }

func (h logHooks) Event(ctx context.Context, e Event) {
	level := slog.LevelDebug
	switch e.Kind {
	case EventLost:
		level = slog.LevelError
	case EventRenewFailed, EventUnconfirmed, EventUndoFailed, EventHoldLimit:
		level = slog.LevelWarn
	}
	if !h.log.Enabled(ctx, level) {
		return
	}
	attrs := []slog.Attr{slog.String("name", e.Name), slog.String("store", e.Store)}
	if e.Token != 0 {
		attrs = append(attrs, slog.Uint64("token", e.Token))
	}
	if e.Took != 0 {
		attrs = append(attrs, slog.Duration("took", e.Took))
	}
	if e.Reason != "" {
		attrs = append(attrs, slog.String("reason", e.Reason))
	}
	if e.Cause != "" {
		attrs = append(attrs, slog.String("cause", string(e.Cause)))
	}
	if len(e.Holders) > 0 {
		attrs = append(attrs, slog.Int("holder_pid", e.Holders[0].PID), slog.String("holder_host", e.Holders[0].Host))
	}
	if e.Err != nil {
		attrs = append(attrs, slog.Any("error", e.Err))
	}
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
	defer func() { _ = recover() }() // a hook's panic is its own affair
	if c := h.Start(ctx, e); c != nil {
		started = c
	}
	return started
}

func call(h Hooks, ctx context.Context, e Event) {
	defer func() { _ = recover() }()
	h.Event(ctx, e)
}

// maxPending bounds the events that wait for a slow hook; more are dropped, but
// for losses, of which there are no more than locks.
const maxPending = 4096

// outbox keeps the events that are reported in the background, for a goroutine
// that lives while there are any.
type outbox struct {
	eventsMu sync.Mutex
	events   []pendingEvent
	emitting bool
}

type pendingEvent struct {
	ctx   context.Context
	event Event
}

// describe fills in what every event of a request tells.
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
		l.work.run(l.drainEvents)
	}
}

func (l *Locker) drainEvents() {
	done := false
	defer func() {
		if !done {
			l.work.run(l.drainEvents) // a hook has ended this goroutine
		}
	}()
	for {
		l.eventsMu.Lock()
		batch := l.events
		l.events = nil
		l.emitting = len(batch) > 0
		l.eventsMu.Unlock()
		if len(batch) == 0 {
			done = true
			return
		}
		for _, p := range batch {
			l.emit(p.ctx, p.event)
		}
	}
}
