package console

import (
	"context"
	"crypto/rand"
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/shape"
)

// streamValidity limits the validity of a line of a stream. A server whose link is silent ends the stream after at
// least half a minute, and releases the lock. The client, which may not notice that, has lost it before.
const streamValidity = 20 * time.Second

// maxWait is the longest wait of a grant without a stream.
const maxWait = time.Minute

// lockRequest has the options of a lock. Absent fields have the defaults of the library.
type lockRequest struct {
	TTL *float64 `json:"ttl_seconds,omitempty"`
	// Wait is 0 not to wait. A stream waits for as long as it is read if Wait is absent; a grant does not wait then.
	Wait    *float64 `json:"wait_seconds,omitempty"`
	MinHold *float64 `json:"min_hold_seconds,omitempty"`
	Limit   *int     `json:"limit,omitempty"`
	Shared  bool     `json:"shared,omitempty"`
	Reason  string   `json:"reason,omitempty"`
}

// granted describes a held lock.
type granted struct {
	ID    string `json:"id"`
	Token string `json:"token"`
	Slot  *int   `json:"slot"`
	// Valid is until how long after the send of this request the client may rely on the lock.
	Valid float64 `json:"valid_seconds"`
}

// line is one line of a stream.
type line struct {
	// Event is queued, granted, valid, released, lost or failed. The last three end the stream. A line queued or
	// valid is repeated.
	Event   string         `json:"event"`
	Holders []shape.Holder `json:"holders,omitempty"` // queued: as far as the store names them
	*granted
	Error *problem `json:"error,omitempty"` // lost, failed
}

// options returns the options of a lock. The wait is negative if it is absent.
func (in *lockRequest) options() (o []holdfast.LockOption, wait time.Duration, err error) {
	wait = -1
	duration := func(field string, seconds *float64, use func(time.Duration)) {
		switch {
		case seconds == nil || err != nil:
		case *seconds < 0 || *seconds > holdfast.MaxTTL.Seconds():
			err = invalid("%s %v: from 0 to %v is allowed", field, *seconds, holdfast.MaxTTL.Seconds())
		default:
			use(time.Duration(*seconds * float64(time.Second)))
		}
	}
	duration("ttl_seconds", in.TTL, func(d time.Duration) { o = append(o, holdfast.TTL(d)) })
	duration("min_hold_seconds", in.MinHold, func(d time.Duration) { o = append(o, holdfast.MinHold(d)) })
	duration("wait_seconds", in.Wait, func(d time.Duration) { wait = d })
	if in.Limit != nil {
		o = append(o, holdfast.Limit(*in.Limit))
	}
	if in.Shared {
		o = append(o, holdfast.Shared())
	}
	return o, wait, err
}

// reason returns the reason that the store records. It names the client, because all locks of the handler have one
// process.
func (c *call) reason(in *lockRequest) (string, error) {
	if len(in.Reason) > holdfast.MaxReason {
		return "", invalid("reason is %d bytes long: at most %d are allowed", len(in.Reason), holdfast.MaxReason)
	}
	text := strings.TrimSpace(in.Reason + " for " + strings.TrimSpace(c.client.Name+" "+c.address()))
	if len(text) > holdfast.MaxReason {
		return in.Reason, nil
	}
	return text, nil
}

// grant is a lock that a client holds through the handler.
type grant struct {
	id, key string
	lock    *holdfast.Lock
	ttl     time.Duration // 0: the grant lives as long as its stream
	minimum time.Time     // the end of its minimum hold, for a grant without a stream

	mu    sync.Mutex
	timer *time.Timer // nil if ttl is 0
	until time.Time   // when the handler releases the lock of a grant that is not renewed
	ended bool
}

// describe returns what the client may rely on.
func (g *grant) describe(received time.Time) *granted {
	// In this order: time that passes between the two readings then shortens the validity.
	elapsed := time.Since(received)
	left := g.lock.Remaining()
	g.mu.Lock()
	if g.timer == nil {
		left = min(left, streamValidity)
	} else {
		// A tenth is the margin between the clocks of the client and the handler.
		left = min(left, max(time.Until(g.until)-g.ttl/10, 0))
	}
	g.mu.Unlock()
	d := &granted{ID: g.id, Token: strconv.FormatUint(g.lock.Token(), 10)}
	if slot := g.lock.Slot(); slot != driver.NoSlot {
		d.Slot = &slot
	}
	// Seconds rounds to milliseconds.
	d.Valid = *shape.Seconds(elapsed + left - time.Millisecond) // mutation: console-valid
	return d
}

// add registers a grant under an ID that cannot be guessed. It lives as long as its stream, or for a TTL after each
// renewal, and the minimum hold.
func (c *call) add(k *holdfast.Lock, ttl, minHold time.Duration) *grant {
	g := &grant{id: rand.Text(), key: c.key(), lock: k, ttl: ttl, minimum: time.Now().Add(minHold)}
	g.mu.Lock()
	defer g.mu.Unlock()
	if ttl > 0 {
		g.promise()
		g.timer = time.AfterFunc(ttl, func() { c.expire(g) })
	}
	c.h.mu.Lock()
	defer c.h.mu.Unlock()
	c.h.grants[g.id] = g
	return g
}

// promise lets the store keep the lock of a grant without a stream for as long as its client may rely on it, also when
// the server is stopped. mu is held.
func (g *grant) promise() {
	g.until = time.Now().Add(g.ttl)
	g.lock.Keep(max(g.ttl, time.Until(g.minimum)))
}

// end forgets the grant and releases its lock. If the client has released it, the store keeps the lock for the minimum
// hold alone. Later calls return the same as the first one.
func (h *handler) end(g *grant, released bool) error {
	h.mu.Lock()
	delete(h.grants, g.id)
	h.mu.Unlock()
	g.mu.Lock()
	g.ended = true
	if g.timer != nil {
		g.timer.Stop()
		if released {
			g.lock.Keep(time.Until(g.minimum)) // no later renewal makes another promise
		}
	}
	g.mu.Unlock()
	return g.lock.Unlock()
}

// lock acquires the lock for ctx. It waits for at most most, and for absent if the request does not say. If the name is
// busy and the client waits, it calls queued first.
func (c *call) lock(ctx context.Context, in *lockRequest, absent, most time.Duration,
	queued func([]holdfast.Holder) error, more ...holdfast.LockOption) (*holdfast.Lock, error) {
	l, name, err := c.name("lock", c.client.Lock)
	if err != nil {
		return nil, err
	}
	if err := c.decode(in, maxBody); err != nil {
		return nil, err
	}
	o, wait, err := in.options()
	if err != nil {
		return nil, err
	}
	if wait < 0 {
		wait = absent
	}
	if wait > most {
		return nil, invalid("wait_seconds %v: at most %v is allowed here", wait.Seconds(), most.Seconds())
	}
	reason, err := c.reason(in)
	if err != nil {
		return nil, err
	}
	o = append(append(o, holdfast.Reason(reason)), more...)
	// A request never joins a lock of the service that the handler is mounted in.
	ctx = holdfast.NewOwner(ctx)
	began := time.Now()
	k, err := l.TryLock(ctx, name, o...)
	busy, isBusy := errors.AsType[*holdfast.BusyError](err)
	if wait -= time.Since(began); !isBusy || wait <= 0 {
		return k, err
	}
	if err := queued(busy.Holders); err != nil {
		return nil, err
	}
	return l.Lock(ctx, name, append(o, holdfast.Wait(wait))...)
}

// stream holds a lock for as long as the client reads the answer.
func (c *call) stream() error {
	leave, err := c.admit()
	if err != nil {
		return err
	}
	defer leave()
	// The lock ends with the connection, and with the handler.
	ctx, cancel := context.WithCancelCause(c.r.Context())
	defer cancel(nil)
	defer context.AfterFunc(c.h.ctx, func() { cancel(errEnding) })()
	var repeating sync.WaitGroup
	waited := make(chan struct{})
	k, err := c.lock(ctx, &lockRequest{}, holdfast.MaxTTL, holdfast.MaxTTL, func(all []holdfast.Holder) error {
		if err := c.write(line{Event: "queued", Holders: holders(all)}); err != nil {
			return err
		}
		repeating.Go(func() { c.repeatQueued(waited, cancel) })
		return nil
	})
	close(waited)
	repeating.Wait()
	if err != nil {
		if context.Cause(ctx) == errEnding {
			err = errEnding
		}
		if c.started {
			_ = c.write(line{Event: "failed", Error: problemOf(err)})
		}
		return err
	}
	g := c.add(k, 0, 0)
	defer func() { c.lost(k, c.h.end(g, false)) }()
	if err := c.write(line{Event: "granted", granted: g.describe(c.received)}); err != nil {
		return err
	}
	// A lock that was waited for may be valid for a short time at first.
	next := func() time.Duration { return max(min(k.Remaining(), streamValidity)/3, 100*time.Millisecond) }
	timer := time.NewTimer(next())
	defer timer.Stop()
	for {
		select {
		case <-k.Context().Done():
			return c.ended(k)
		case <-timer.C:
			timer.Reset(next())
			if err := c.write(line{Event: "valid", granted: g.describe(c.received)}); err != nil {
				return err // a slow reader: the connection is cut, and the lock ends
			}
		}
	}
}

// repeatQueued writes lines while the client waits. Without them it could not notice a dead server, and proxies and
// client libraries end a silent stream.
func (c *call) repeatQueued(waited <-chan struct{}, end context.CancelCauseFunc) {
	tick := time.NewTicker(streamValidity / 3)
	defer tick.Stop()
	for {
		select {
		case <-waited:
			return
		case <-tick.C:
			if err := c.write(line{Event: "queued"}); err != nil {
				end(err)
				return
			}
		}
	}
}

var (
	errEnding  = refuse("unavailable", "the server ends")
	errNoGrant = refuse("not_held", "there is no such grant, or it has ended")
)

// ended writes the last line of a stream whose lock has ended.
func (c *call) ended(k *holdfast.Lock) error {
	switch cause := context.Cause(k.Context()); {
	case errors.Is(cause, holdfast.ErrReleased):
		return c.write(line{Event: "released"})
	case errors.Is(cause, holdfast.ErrLost):
		return c.write(line{Event: "lost", Error: problemOf(cause)})
	case cause == error(errEnding):
		end := refuse("lost", "the server ends")
		end.Cause = string(holdfast.CauseClosed)
		return c.write(line{Event: "lost", Error: end})
	}
	return nil // the client has gone
}

// lost records the loss of a lock, if its end was one.
func (c *call) lost(k *holdfast.Lock, err error) {
	if e, ok := errors.AsType[*holdfast.LostError](err); ok {
		c.board.note(k.Name(), eventLost, string(e.Cause))
	}
}

// write writes one line of a stream.
func (c *call) write(v any) error {
	if !c.started {
		c.started = true
		c.w.Header().Set("Content-Type", "application/x-ndjson")
		c.w.Header().Set("X-Accel-Buffering", "no") // nginx would hold lines back
	}
	c.deadline()
	if err := shape.JSON(c.w, v, true); err != nil {
		return err
	}
	return c.flush()
}

// acquire grants a lock without a stream. The handler releases it if it is not renewed for its TTL.
func (c *call) acquire() error {
	leave, err := c.admit()
	if err != nil {
		return err
	}
	var in lockRequest
	silent := func([]holdfast.Holder) error { return nil }
	k, err := c.lock(c.h.ctx, &in, 0, maxWait, silent, holdfast.WaitContext(c.r.Context()))
	if err != nil {
		leave()
		return err
	}
	context.AfterFunc(k.Context(), leave)
	ttl, minHold := holdfast.DefaultTTL, time.Duration(0)
	if in.TTL != nil {
		ttl = time.Duration(*in.TTL * float64(time.Second))
	}
	if in.MinHold != nil {
		minHold = time.Duration(*in.MinHold * float64(time.Second))
	}
	return c.ok(c.add(k, ttl, minHold).describe(c.received))
}

// endAll releases the locks of all grants without a stream. The store keeps each for as long as its client may rely
// on it.
func (h *handler) endAll() {
	h.mu.Lock()
	all := slices.Collect(maps.Values(h.grants))
	h.mu.Unlock()
	for _, g := range all {
		if g.ttl > 0 {
			_ = h.end(g, false)
		}
	}
}

// expire releases the lock of a grant that was not renewed.
func (c *call) expire(g *grant) {
	g.mu.Lock()
	renewed := time.Until(g.until) > 0 || g.ended
	g.ended = !renewed || g.ended
	g.mu.Unlock()
	if !renewed {
		c.lost(g.lock, c.h.end(g, false))
	}
}

// find returns the client's grant of the ID in the path.
func (c *call) find() (*grant, error) {
	c.h.mu.Lock()
	defer c.h.mu.Unlock()
	if g := c.h.grants[c.r.PathValue("id")]; g != nil && g.key == c.key() {
		return g, nil
	}
	return nil, errNoGrant
}

func (c *call) renew() error {
	g, err := c.find()
	if err != nil {
		return err
	}
	if g.lock.Remaining() == 0 {
		if err := c.h.end(g, false); err != nil {
			return err // a LostError
		}
		return errNoGrant
	}
	g.mu.Lock()
	if g.timer != nil && !g.ended {
		g.promise()
		g.timer.Reset(g.ttl)
	}
	ended := g.ended
	g.mu.Unlock()
	if ended {
		return errNoGrant
	}
	return c.ok(g.describe(c.received))
}

func (c *call) release() error {
	g, err := c.find()
	if err != nil {
		return err
	}
	if err := c.h.end(g, true); err != nil {
		return err
	}
	return c.ok(done{})
}
