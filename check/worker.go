//go:build linux || darwin

package check

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
)

// worker takes locks and works inside them. It runs in a process of its own, or as
// goroutines of this process.
type worker struct {
	cfg         *Config
	round       int
	index, life int
	log         *historyLog
	open        func(context.Context) (driver.Store, error)
	regs        registers
	guarantees  driver.Guarantees
	gateway     *gateway // nil if the worker locks at the store

	working context.Context // ends when the worker takes no new locks
	endWork context.CancelFunc
	giveUp  context.Context
	endWait context.CancelFunc
	lanes   sync.WaitGroup

	mu       sync.Mutex
	client   // the present one
	closers  sync.WaitGroup
	vanished []client // the clients that were abandoned
	ops      int
	holding  map[holdingKey]holding
}

// client is one generation of a worker's clients.
type client struct {
	gen    int
	probe  *probe
	locker *holdfast.Locker
	using  context.Context // limits the requests through the Locker
	end    context.CancelFunc
}

func (w *worker) present() client {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.client
}

type holdingKey struct {
	name  string
	token uint64
}

type holding struct {
	lock workerLock
	op   int
}

// startTime limits a worker's requests to its store before it begins to work.
const startTime = 30 * time.Second

func (c *Config) newWorker(round, index, life int, log *historyLog, regs registers, open func(context.Context) (driver.Store, error)) *worker {
	w := &worker{
		cfg: c, round: round, index: index, life: life, log: log, open: open, regs: regs,
		holding: map[holdingKey]holding{},
	}
	w.working, w.endWork = context.WithCancel(context.Background())
	w.giveUp, w.endWait = context.WithCancel(context.Background())
	return w
}

func (w *worker) waitTimeout() time.Duration { return w.cfg.waitTimeout(&w.guarantees) }

func workerName(index, life int) string { return fmt.Sprintf("w%d.%d", index, life) }

// start opens the store and begins to work.
func (w *worker) start(ctx context.Context) error {
	if err := w.renewClient(ctx); err != nil {
		return err
	}
	g, err := persist(func() (holdfast.Guarantees, error) { return w.locker.Guarantees(ctx) })
	if err != nil {
		return err
	}
	w.guarantees = g
	w.log.Add(Event{K: kindStart})
	sticky := keeps(&g) && w.gateway == nil
	for lane := range w.cfg.Lanes {
		plan := w.cfg.planLocks(w.round, w.index, w.life, lane, &g)
		if sticky && !sparse(w.round) {
			plan = w.cfg.sometimesSticky(plan, w.round, w.index, w.life, lane)
		}
		w.lanes.Go(func() { w.takeAll(plan) })
	}
	if sticky {
		w.lanes.Go(func() { w.takeAll(w.cfg.planSticky(w.round, w.index, w.life, &g)) })
	}
	w.lanes.Go(func() { w.takeAll(w.cfg.planKept(w.round, w.index, w.life)) })
	if g.Semaphore {
		w.lanes.Go(func() { w.takeAll(w.cfg.planPlaces(w.round, w.index, w.life, &g)) })
	}
	w.lanes.Go(func() { w.repeat(burstLane, time.Second, w.burst) })
	if w.gateway == nil {
		w.startJobs()
	}
	return nil
}

// persist repeats a request that a worker makes to its store before it works, for at most startTime. A fault of the
// store may be under way. For example, a demoted server refuses clients until another server is promoted.
func persist[T any](request func() (T, error)) (answer T, err error) {
	for end := time.Now().Add(startTime); ; time.Sleep(50 * time.Millisecond) {
		if answer, err = request(); err == nil || !time.Now().Before(end) {
			return answer, err
		}
	}
}

// takeAll takes the planned locks one after another until the worker stops.
func (w *worker) takeAll(plan iter.Seq[plannedLock]) {
	for s := range plan {
		select {
		case <-w.working.Done():
			return
		case <-time.After(s.Delay):
		}
		w.take(s)
	}
}

// renewClient gives the worker a new client and Locker in place of the old ones.
func (w *worker) renewClient(ctx context.Context) error {
	s, err := persist(func() (driver.Store, error) { return w.open(ctx) })
	if err != nil {
		return err
	}
	c := client{gen: w.present().gen + 1} // only one goroutine at a time replaces the client
	c.probe = newProbe(s, w.log, c.gen)
	c.locker, err = holdfast.New(c.probe.store(), holdfast.WithHooks(hooks{w}), holdfast.Process("", workerName(w.index, w.life)))
	if err != nil {
		return err
	}
	c.using, c.end = context.WithCancel(w.giveUp)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.client = c
	return nil
}

// reopen closes the Locker while its goroutines use it, and opens another.
func (w *worker) reopen(ctx context.Context) error {
	old := w.present()
	w.log.Add(Event{K: kindClosing, Gen: old.gen})
	if err := w.renewClient(ctx); err != nil {
		return err
	}
	w.closers.Go(func() { w.shut(old) })
	return nil
}

// vanish abandons a client: the store receives nothing more from it.
func (w *worker) vanish(ctx context.Context) error {
	w.mu.Lock()
	old := w.client
	w.vanished = append(w.vanished, old)
	w.mu.Unlock()
	w.log.Add(Event{K: kindVanished, Gen: old.gen})
	old.probe.link.Cut()
	old.end()
	return w.renewClient(ctx)
}

// shut closes a Locker and records what it has left at the store. Close must end within
// twice waitTimeout, counted from its begin or from the end of the work, if that is later.
func (w *worker) shut(c client) {
	c.probe.link.Heal()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	// A fault of the servers may last until the drain, and Close needs the servers.
	go func() {
		select {
		case <-w.working.Done():
		case <-ctx.Done():
			return
		}
		select {
		case <-time.After(2 * w.waitTimeout()):
			cancel()
		case <-ctx.Done():
		}
	}()
	err := c.locker.Close(ctx)
	if err != nil {
		w.log.Add(Event{K: kindLeft, Note: fmt.Sprintf("Close of a Locker did not return: %v", err)})
	} else {
		for _, e := range c.probe.leftovers(ctx) {
			w.log.Add(e)
		}
	}
	_ = c.probe.Store.Close(ctx) // the coordinator records what this client leaves
}

// finish ends the work: the worker takes no new locks, lets its waiters wait until
// waitTimeout, and closes the Locker.
func (w *worker) finish() {
	w.endWork()
	done := make(chan struct{})
	go func() {
		w.lanes.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(w.waitTimeout()):
		w.endWait()
		select {
		case <-done:
		case <-time.After(w.waitTimeout()):
			// An Unlock hangs. Its missing event shows that in the history.
		}
	}
	w.endWait()
	w.closers.Wait()
	w.mu.Lock()
	last, vanished := w.client, w.vanished
	w.mu.Unlock()
	for _, c := range vanished {
		c.probe.link.End()
		ctx, cancel := context.WithTimeout(context.Background(), w.waitTimeout())
		_ = c.locker.Close(ctx) // the probe sends nothing, so the store keeps the client's state
		if w.guarantees.Crash == driver.CrashFreesAfterTTL {
			_ = c.probe.Store.Close(ctx) // closes the connections; the store receives no request
		}
		cancel()
	}
	w.log.Add(Event{K: kindClosing, Gen: last.gen})
	w.shut(last)
	w.log.Add(Event{K: kindStop})
}

// inject begins one of this worker's own faults.
func (w *worker) inject(ctx context.Context, f Fault) error {
	p := w.present().probe
	switch f.Kind {
	case faultCut:
		p.link.Cut()
	case faultDrop:
		p.link.Lose(1 + f.N%3)
	case faultDelay:
		// The delay is shorter than the request timeout, which is a third of the TTL.
		out, in := w.cfg.TTL*time.Duration(f.N%16)/100, w.cfg.TTL*time.Duration(f.N%15)/100
		p.link.Delay(out, in)
	case faultClose:
		return w.reopen(ctx)
	case faultVanish:
		return w.vanish(ctx)
	case faultHeal:
		p.link.Heal()
	default:
		return fmt.Errorf("check: a worker has no fault %q", f.Kind)
	}
	return nil
}

// hooks record renewals and losses.
type hooks struct{ w *worker }

func (h hooks) Start(ctx context.Context, _ holdfast.Event) context.Context { return ctx }

func (h hooks) Event(_ context.Context, e holdfast.Event) {
	if e.Kind != holdfast.EventRenewed && e.Kind != holdfast.EventLost {
		return
	}
	h.w.mu.Lock()
	held, ok := h.w.holding[holdingKey{e.Name, e.Token}]
	h.w.mu.Unlock()
	if !ok {
		return
	}
	if e.Kind == holdfast.EventLost {
		// The holder's goroutine records the loss, too, but on a busy machine it may run
		// seconds later. The hook records the loss here if the context has ended.
		if held.lock.Context().Err() != nil {
			h.w.log.Add(Event{K: kindLost, Name: e.Name, Op: held.op, Token: e.Token, Cause: string(e.Cause)})
		}
		return
	}
	if until, live := h.w.validity(held.lock); live {
		h.w.log.Add(Event{K: kindRenewed, Name: e.Name, Op: held.op, Token: e.Token, Until: until})
	}
}

// validity returns the moment until which a lock is certainly valid, or 0 if it has no end.
func (w *worker) validity(k workerLock) (until int64, live bool) {
	return validUntil(w.log.now, k.Remaining)
}

// validUntil reads the clock before the remaining validity. So a pause between the two
// makes the result earlier and never later. After a pause it reads both again. Otherwise
// the history would show a holder that continues after its validity, although the real
// validity had not ended.
func validUntil(now func() int64, remaining func() time.Duration) (until int64, live bool) {
	for range 10 {
		began := now()
		left := remaining()
		if left == driver.Forever {
			return 0, true
		}
		until, live = max(until, began+int64(left)), live || left > 0
		if now()-began < int64(50*time.Microsecond) {
			break
		}
	}
	return until, live
}

// takenLock is a planned lock that the worker has got.
type takenLock struct {
	plannedLock
	workerLock
	locker       *holdfast.Locker
	log          *historyLog
	grants       []holdfast.Lease
	op           map[string]int // the number of the lock request, by name
	lossRecorded bool
}

// record records an event for each of the lock's names.
func (t *takenLock) record(e Event) {
	for _, g := range t.grants {
		e.Name, e.Op, e.Token = g.Name, t.op[g.Name], g.Token
		t.log.Add(e)
	}
}

// recordLoss records once that the lock is lost. A context may also end without a loss.
func (t *takenLock) recordLoss() {
	lost, ok := errors.AsType[*holdfast.LostError](context.Cause(t.Context()))
	if ok && !t.lossRecorded {
		t.lossRecorded = true
		t.record(Event{K: kindLost, Cause: string(lost.Cause)})
	}
}

// request requests a planned lock.
func (s *plannedLock) request(ctx context.Context, l *holdfast.Locker) (*holdfast.Lock, error) {
	options := []holdfast.LockOption{holdfast.TTL(s.TTL)}
	switch {
	case s.Limit == driver.Unlimited:
		options = append(options, holdfast.Shared())
	case s.Limit > 1:
		options = append(options, holdfast.Limit(s.Limit))
	}
	if s.Wait > 0 {
		options = append(options, holdfast.Wait(s.Wait))
	}
	if s.MinHold > 0 {
		options = append(options, holdfast.MinHold(s.MinHold))
	}
	if s.Sticky > 0 {
		options = append(options, holdfast.Sticky(s.Sticky))
	}
	switch {
	case s.Try:
		return l.TryLock(ctx, s.Names[0], options...)
	case len(s.Names) > 1:
		return l.LockAll(ctx, s.Names, options...)
	}
	return l.Lock(ctx, s.Names[0], options...)
}

// take requests a planned lock, works inside it, and unlocks it.
func (w *worker) take(s plannedLock) {
	if s.Try || w.gateway != nil {
		s.Names = s.Names[:1]
	}
	w.mu.Lock()
	c := w.client
	first := w.ops + 1
	w.ops += len(s.Names)
	w.mu.Unlock()

	ctx, cancel := context.WithCancel(c.using)
	defer cancel()
	op := map[string]int{}
	for i, n := range s.Names {
		op[n] = first + i
		w.log.Add(Event{K: kindLock, Name: n, Op: first + i, Gen: c.gen, Limit: s.Limit, Wait: !s.Try, For: int64(s.Wait)})
	}
	if s.Cancel > 0 {
		defer time.AfterFunc(s.Cancel, cancel).Stop()
	}
	var k workerLock
	var err error
	if w.gateway != nil {
		k, err = w.gateway.lock(ctx, &s)
	} else {
		k, err = s.request(ctx, c.locker)
	}
	if err != nil {
		kind := kindFailed
		if w.giveUp.Err() != nil {
			kind = kindStuck
		}
		for _, n := range s.Names {
			w.log.Add(Event{K: kind, Name: n, Op: op[n], Err: short(err)})
		}
		return
	}
	t := &takenLock{plannedLock: s, workerLock: k, locker: c.locker, log: w.log, grants: k.Leases(), op: op}
	w.mu.Lock()
	for _, g := range t.grants {
		w.holding[holdingKey{g.Name, g.Token}] = holding{k, op[g.Name]}
	}
	w.mu.Unlock()
	until, live := w.validity(k)
	if !live {
		until = w.log.now() // the context ended before validity read it
	}
	for _, g := range t.grants {
		w.log.Add(Event{K: kindGranted, Name: g.Name, Op: op[g.Name], Gen: c.gen, Token: g.Token, Limit: s.Limit, Slot: g.Slot + 1, Until: until})
	}
	w.workInside(t)
	if k.Context().Err() != nil {
		t.recordLoss()
	}
	t.record(Event{K: kindUnlock, For: int64(t.MinHold), Sticky: int64(t.Sticky)})
	err = k.Unlock()
	t.record(Event{K: kindUnlocked, Err: short(err)})
	w.mu.Lock()
	for _, g := range t.grants {
		delete(w.holding, holdingKey{g.Name, g.Token})
	}
	w.mu.Unlock()
}

// short returns the text of an error without the library's name and the operation.
func short(err error) string {
	if err == nil {
		return ""
	}
	_, text, _ := strings.Cut(strings.TrimPrefix(err.Error(), "holdfast: "), ": ")
	return text
}

// workInside reads a guarded and an unguarded register, holds the lock, and writes each value
// plus one, as long as the lock's context lives. An exclusive lock uses the registers of its name,
// and a permit those of its slot. Shared locks do not write.
func (w *worker) workInside(t *takenLock) {
	g := t.grants[0]
	op := t.op[g.Name]
	res := g.Name
	if t.Limit != driver.Exclusive {
		if g.Slot < 0 {
			w.hold(t, g, op)
			return
		}
		res = fmt.Sprintf("%s/%d", g.Name, g.Slot)
	}
	unguardedRes := res + " (unguarded)"
	onGuarded := func(kind Kind, v int64) {
		w.log.Add(Event{K: kind, Op: op, Res: res, Token: g.Token, Guarded: true, Value: v})
	}
	onUnguarded := func(kind Kind, v int64) {
		w.log.Add(Event{K: kind, Op: op, Res: unguardedRes, Token: g.Token, Value: v})
	}

	onGuarded(kindBegin, 0)
	guarded, ok, err := w.regs.raise(res, g.Token)
	switch {
	case err != nil:
		onGuarded(kindQuit, 0)
	case !ok:
		onGuarded(kindStale, 0)
	default:
		onGuarded(kindRead, guarded)
	}
	if t.Reenters && w.gateway == nil {
		w.reenter(t, g)
	}
	mayWrite := err == nil && ok
	onUnguarded(kindBegin, 0)
	unguarded, err := w.regs.read(unguardedRes)
	if err != nil {
		w.log.Add(Event{K: kindLeft, Note: "register: " + err.Error()})
		return
	}
	onUnguarded(kindRead, unguarded)

	w.hold(t, g, op)
	if !t.IgnoresContext && !w.alive(t.workerLock, g, op) {
		if mayWrite {
			onGuarded(kindQuit, 0)
		}
		onUnguarded(kindQuit, 0)
		return
	}
	if mayWrite {
		switch ok, err := w.regs.write(res, g.Token, guarded+1); {
		case err != nil:
			onGuarded(kindQuit, 0)
		case ok:
			onGuarded(kindWrote, guarded+1)
		default:
			onGuarded(kindStale, 0)
		}
	}
	if (t.IgnoresContext || w.alive(t.workerLock, g, op)) && w.regs.put(unguardedRes, unguarded+1) == nil {
		onUnguarded(kindWrote, unguarded+1)
	} else {
		onUnguarded(kindQuit, 0)
	}
}

// reenter joins the lock and unlocks what it has joined. The lock remains.
func (w *worker) reenter(t *takenLock, g holdfast.Lease) {
	k, err := t.locker.Lock(t.Context(), g.Name, holdfast.Reentrant(), holdfast.TTL(t.TTL))
	if err != nil {
		return // the context has ended
	}
	if k.Token() != g.Token {
		w.log.Add(Event{K: kindLeft, Note: fmt.Sprintf("a lock of %q with token %d was joined with token %d", g.Name, g.Token, k.Token())})
	}
	_ = k.Unlock()
}

// alive checks whether the lock's context lives. If so, it records the moment before the
// check, and the validity of that moment. The event of a renewal that just happened may
// come later.
func (w *worker) alive(k workerLock, g holdfast.Lease, op int) bool {
	now := w.log.now()
	if k.Context().Err() != nil {
		return false
	}
	if until, live := w.validity(k); live {
		w.log.Add(Event{T: now, K: kindRenewed, Name: g.Name, Op: op, Token: g.Token, Until: until})
	}
	w.log.Add(Event{T: now, K: kindAlive, Name: g.Name, Op: op, Token: g.Token})
	return true
}

// hold keeps the lock for the planned time. It returns early if the worker must finish, or
// if the lock ends and the work does not ignore its context. At intervals it records whether the
// context lives.
func (w *worker) hold(t *takenLock, g holdfast.Lease, op int) {
	if t.Hold <= 0 {
		return
	}
	end := time.NewTimer(t.Hold)
	defer end.Stop()
	check := time.NewTicker(w.cfg.TTL/8 + t.Hold%(w.cfg.TTL/16))
	defer check.Stop()
	done := t.Context().Done()
	for {
		select {
		case <-end.C:
			return
		case <-w.working.Done():
			return
		case <-done:
			t.recordLoss()
			if !t.IgnoresContext {
				return
			}
			done = nil
		case <-check.C:
			// The check ends a context whose validity has ended.
			if done != nil {
				w.alive(t.workerLock, g, op)
			}
		}
	}
}
