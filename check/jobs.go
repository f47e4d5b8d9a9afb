//go:build linux || darwin

package check

import (
	"context"
	crand "crypto/rand"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/optimistic"
	"github.com/holdfast-go/holdfast/sequence"
)

// The work of this file uses what the library builds on locks and on versioned values: ticks
// of a schedule, work that is done once, unique ids. Its names and keys are not those of the
// other locks.
const (
	scheduleName = "check-schedule"
	sequenceName = "check-ids"
	onceKeys     = 64
	valueKeys    = 3
)

func onceKey(i int64) string { return fmt.Sprintf("check-once-%d", i%onceKeys) }

// period returns the distance of the ticks. The TTL of a tick is two distances, and with the time for which a store may
// keep it longer, four of them at most.
func (w *worker) period() time.Duration { return max(w.cfg.TTL, w.guarantees.Granularity) / 2 }

// jobClient is the client that a worker uses at present.
type jobClient struct {
	client
	ctx    context.Context // ends when the worker stops, or when it abandons the client
	values driver.Values   // nil if the store has none
}

func (w *worker) jobClient() (c jobClient, cancel context.CancelFunc) {
	w.mu.Lock()
	defer w.mu.Unlock()
	c = jobClient{client: w.client}
	if v, ok := w.probe.Store.(driver.Values); ok {
		c.values = valuesProbe{w.probe, v}
	}
	c.ctx, cancel = context.WithCancel(w.using)
	context.AfterFunc(w.working, cancel)
	return c, cancel
}

// repeat calls do with the worker's present client until the worker stops. It pauses before each
// call for a random time up to pause.
func (w *worker) repeat(lane int, pause time.Duration, do func(jobClient, *rand.Rand)) {
	r := w.cfg.source(w.round, streamSteps, w.index, w.life, w.cfg.Lanes+lane)
	for {
		select {
		case <-w.working.Done():
			return
		case <-time.After(upTo(r, pause)):
		}
		c, cancel := w.jobClient()
		do(c, r)
		cancel()
	}
}

// startJobs starts the goroutines of this file.
func (w *worker) startJobs() {
	w.lanes.Go(func() { w.repeat(tickLane, 10*time.Millisecond, w.serveTicks) })
	if _, ok := w.probe.Store.(driver.Values); !ok {
		return
	}
	w.lanes.Go(func() { w.repeat(onceLane, 50*time.Millisecond, w.doOnce) })
	w.lanes.Go(func() {
		var ids *sequence.Sequence
		gen := 0
		last := map[string]versioned{}
		w.repeat(valueLane, 30*time.Millisecond, func(c jobClient, r *rand.Rand) {
			if gen != c.gen {
				// The source is valid and so are the blocks: New returns no error.
				ids, _ = sequence.New(sequence.Values(c.values), sequenceName, sequence.Blocks(1, 4))
				gen = c.gen
			}
			w.drawIDs(c, r, ids)
			w.changeValue(c, r, last)
		})
	})
}

// serveTicks serves the ticks of a schedule until the Locker is closed.
func (w *worker) serveTicks(c jobClient, r *rand.Rand) {
	now := time.Now().UnixNano()
	w.log.Add(Event{K: kindEvery, Name: scheduleName, Gen: c.gen, Value: now, For: int64(w.period())})
	defer w.log.Add(Event{K: kindEveryEnd, Name: scheduleName, Gen: c.gen})
	for tick, err := range c.locker.Every(c.ctx, scheduleName, holdfast.Period(w.period())) {
		e := Event{Name: scheduleName, Gen: c.gen, Value: tick.Time.UnixNano()}
		if err != nil {
			if e.K = kindMissed; !errors.Is(err, holdfast.ErrMissed) {
				e.Err = short(err)
			}
			if !tick.Time.IsZero() {
				w.log.Add(e)
			}
			continue
		}
		e.K = kindTick
		w.log.Add(e)
		sleep(tick.Context(), upTo(r, w.period()))
		e.K = kindTicked
		w.log.Add(e)
	}
}

// doOnce lets the workers meet at a key that changes twice a second. A part of the work fails, so
// that another caller does it.
func (w *worker) doOnce(c jobClient, r *rand.Rand) {
	step := max(500*time.Millisecond, w.cfg.length(w.round)/onceKeys)
	ctx, cancel := context.WithTimeout(c.ctx, 2*w.cfg.TTL)
	defer cancel()
	e := Event{Res: onceKey(time.Now().UnixNano() / int64(step)), Op: w.nextOp(), Gen: c.gen}
	add := func(k Kind) { e.K, e.T = k, 0; w.log.Add(e) }
	took, fails := upTo(r, 20*time.Millisecond), r.IntN(8) == 0
	add(kindOnce)
	ran, err := optimistic.Once(ctx, c.locker, c.values, e.Res, func(ctx context.Context) error {
		add(kindRan)
		sleep(ctx, took)
		if fails {
			return errors.New("the work failed (planned)")
		}
		return nil
	}, holdfast.TTL(w.cfg.TTL))
	if e.Err = short(err); err != nil && e.Err == "" {
		e.Err = err.Error()
	}
	if ran {
		e.Value = 1
	}
	add(kindOnceDone)
}

// drawIDs draws a few ids.
func (w *worker) drawIDs(c jobClient, r *rand.Rand, ids *sequence.Sequence) {
	ctx, cancel := context.WithTimeout(c.ctx, w.cfg.TTL/2)
	defer cancel()
	for range r.IntN(4) {
		id, err := ids.Next(ctx)
		if err != nil {
			return
		}
		w.log.Add(Event{K: kindID, Res: sequenceName, Gen: c.gen, Value: id})
	}
}

// versioned is the data of a value and its version.
type versioned struct{ data, version string }

// changeValue reads one of the values and, in most cases, writes it. Sometimes it writes
// with the version that it read before. The data of each write are unique. last has the data
// read before of each key.
func (w *worker) changeValue(c jobClient, r *rand.Rand, last map[string]versioned) {
	ctx, cancel := context.WithTimeout(c.ctx, w.cfg.TTL)
	defer cancel()
	key := fmt.Sprintf("check-value-%d", r.IntN(valueKeys))
	began := w.log.now()
	data, version, err := optimistic.Get(ctx, c.values, key)
	if err != nil {
		return
	}
	at := versioned{string(data), version}
	now := w.log.now()
	w.log.Add(Event{T: now, K: kindGet, Res: key, ID: at.data, For: now - began})
	before := last[key]
	last[key] = at
	switch r.IntN(8) {
	case 0, 1:
		return
	case 2:
		at = before
	}
	_ = backoff.Sleep(ctx, upTo(r, 5*time.Millisecond))
	e := Event{K: kindPut, Res: key, Op: w.nextOp(), ID: crand.Text(), Note: at.data}
	w.log.Add(e)
	_, err = optimistic.Put(ctx, c.values, key, []byte(e.ID), at.version)
	e.K = kindPutDone
	switch {
	case err == nil:
	case errors.Is(err, optimistic.ErrConflict):
		e.Err = conflict
	case errors.Is(err, optimistic.ErrUnknown):
		e.Err = unknown
	default:
		e.Err = err.Error()
	}
	w.log.Add(e)
}

// nextOp returns a new number of an operation.
func (w *worker) nextOp() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ops++
	return w.ops
}

// valuesProbe is the probe of a store's values. The faults of the link affect them like locks.
type valuesProbe struct {
	*probe
	values driver.Values
}

func (p valuesProbe) Get(ctx context.Context, key string) (data []byte, version string, err error) {
	err = p.link.Call(ctx, func() error { data, version, err = p.values.Get(ctx, key); return err })
	return data, version, err
}

func (p valuesProbe) Put(ctx context.Context, key string, data []byte, version string) (next string, err error) {
	err = p.link.Call(ctx, func() error { next, err = p.values.Put(ctx, key, data, version); return err })
	return next, err
}

// clearMarks removes the marks of onceKeys, so that the work of a new round is not done yet. A key
// whose mark stays only has no work in the round.
func clearMarks(ctx context.Context, s driver.Store) {
	v, ok := s.(driver.Values)
	if !ok {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	for i := range int64(onceKeys) {
		data, version, err := v.Get(ctx, onceKey(i))
		if err == nil && len(data) > 0 {
			_, err = v.Put(ctx, onceKey(i), nil, version)
		}
		if err != nil {
			return
		}
	}
}
