package sqlkit

import (
	"bytes"
	"context"
	"errors"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// Optimistic is a store's engine that keeps the grants of a name in one row.
//
// # Safety
//
// Every change replaces a row as it was read: the statement names the version that
// it replaces, each write makes a new one, and the database does one write of a row
// at a time. So a write that takes effect was decided on the row as it is, with one
// exception, time, which only goes on: a grant that stood by the time of the read
// may have run out by the time of the write, never the other way. The deadline that
// is written is counted from the read, so it lies no later than the request's send
// plus the TTL would have it at the server, and trust runs from that send.
//
// What became of a write is read back from the row, in the same round trip: a grant
// stands if the row names its ID. Counts of affected rows are not looked at, since
// they mean different things under different settings.
//
// A write whose answer was lost may still arrive. Undo makes a version after it:
// whatever the request has read is then no longer what the row says, and its write
// changes nothing. Where there was no row, Undo makes an empty one. A row may be
// removed a minute after its last change, and a write does nothing half a minute
// after the read on which it was decided, by the database's clock, so a late one
// finds no gap either. No step of this asks which connection carried what, so that
// poolers and proxies are welcome.
//
// Tokens are the larger of the row's last one plus one and the database's clock in
// microseconds. Before a row is removed its token is put into one of 64 rows that
// stay, and new rows begin above that: tokens rise through removal, through a clock
// that was set back, and through a restart.
type Optimistic struct {
	pool   *Pool
	table  Table
	faults Faults
	waker  Waker
	prefix []byte // of names: the namespace and a NUL

	ctx    context.Context // ends with the store
	cancel context.CancelFunc
	tasks  sync.WaitGroup

	mu      sync.Mutex
	closed  bool
	held    map[string]*kept
	looking bool
	swept   time.Time
}

// kept is a grant that this store has given and not seen the end of.
type kept struct {
	g    driver.Grant
	from driver.Requester
}

const (
	// applyWithin is how long after its read a write may still change something.
	applyWithin = 30 * time.Second
	// idleBefore is how long a row stays that nobody uses.
	idleBefore = time.Minute
	// sweepEvery is how often a store looks for such rows.
	sweepEvery = 30 * time.Second
	// lookEvery is how often held grants are looked at, for what took them away.
	lookEvery = time.Second
	// takenFor is how long a row remembers what was taken away.
	takenFor = 10 * time.Minute
	// OptimisticFallback bounds what a lost wake-up costs.
	OptimisticFallback = time.Second
	// batch is how many names go in one script.
	batch = 32
)

// NewOptimistic makes the engine. Waker is nil where nobody tells of changes;
// Acquire then cannot wait. The pool is closed with the engine.
func NewOptimistic(pool *Pool, table Table, faults Faults, waker Waker, namespace string) *Optimistic {
	o := &Optimistic{pool: pool, table: table, faults: faults, waker: waker, prefix: NamePrefix(namespace),
		held: map[string]*kept{}, swept: time.Now()}
	o.ctx, o.cancel = context.WithCancel(context.Background())
	return o
}

// NamePrefix is what a namespace puts before the names of its rows. A namespace
// has no NUL, so that no name of one reaches into another.
func NamePrefix(namespace string) []byte { return append([]byte(namespace), 0) }

// row is a name's row as it was read, and when that was asked.
type row struct {
	sent           driver.Instant
	exists         bool
	now, floor     int64
	version, token int64
	ahead          bool // it says that a grant stands longer than content does
	content
}

func (o *Optimistic) key(name string) []byte { return append(bytes.Clone(o.prefix), name...) }

// Bucket is where the floor of a key's tokens is.
func Bucket(name []byte) int {
	h := fnv.New32a()
	_, _ = h.Write(name)
	return int(h.Sum32() % Buckets)
}

// op is a change of one name. Step looks at the row and answers the content that
// shall replace it, or nil when there is nothing more to do, or an error that ends
// it. It is asked again after each write, and recognises its own effect.
type op struct {
	name []byte
	step func(*row) (next *content, err error)
	wake bool // the write makes room, or takes a grant away

	token     int64  // what a write gives the row, if it is larger than the row's
	statement string // to be sent next
	done      bool
	err       error
}

// apply does at most a batch of ops. Its error is that of a round trip; each op
// has its own.
func (o *Optimistic) apply(ctx context.Context, ops ...*op) error {
	// In one order, as a script may be one transaction.
	slices.SortFunc(ops, func(a, b *op) int { return bytes.Compare(a.name, b.name) })
	flushed := false
	for tries := 0; ; {
		var script []string
		var pending []*op
		writes := false
		for _, p := range ops {
			if p.done {
				continue
			}
			pending = append(pending, p)
			if p.statement == "" {
				continue
			}
			script, writes = append(script, p.statement), true
			if wake := o.table.Wake(p.name); wake != "" && p.wake {
				script = append(script, wake)
			}
			p.statement = ""
		}
		if len(pending) == 0 {
			return nil
		}
		for _, p := range pending {
			script = append(script, o.table.Read(p.name, Bucket(p.name)))
		}
		sent := driver.Now()
		answers, err := o.pool.Run(ctx, script...)
		if err == nil && readOnly(answers.Last()) {
			err = ErrReadOnly // a user who may write there all the same has lost that write
		}
		if err != nil {
			coded, retry := o.faults.Sort(err)
			if errors.Is(coded, ErrReadOnly) && !flushed {
				// Connections that were opened now may lead to another server, where whatever
				// was written is read back.
				o.pool.Flush()
				flushed = true
				continue
			}
			if retry && ctx.Err() == nil {
				// Whatever was written is read back next.
				tries++
				if err := pause(ctx, tries); err != nil {
					return driver.Errorf(driver.CodeUnavailable, "%w after %w", err, coded)
				}
				continue
			}
			if !writes && driver.CodeOf(coded) == driver.CodeUnknown {
				return driver.Errorf(driver.CodeUnavailable, "%w", err) // it only read
			}
			if writes && partly(err) {
				return &driver.Error{Code: driver.CodeUnknown, Err: err} // a no to what came after a write
			}
			return coded
		}
		for i, p := range pending {
			if p.err = o.decide(p, answers.First(i), sent); p.err != nil {
				p.done = true
			}
		}
	}
}

// readOnly reports whether a server says that it takes no writes, in the last column of
// [Table.Read].
func readOnly(r Row) bool {
	switch r.Text(5) {
	case "", "0", "f", "false", "OFF":
		return false
	}
	return true
}

// pause lets others go first, the longer the more often it was in vain.
func pause(ctx context.Context, tries int) error {
	t := time.NewTimer(rand.N(time.Duration(min(tries, 20)) * 2 * time.Millisecond))
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// ErrSchema: rows are missing that the schema has.
var ErrSchema = driver.Errorf(driver.CodeRefused, "holdfast's tables are there and not whole: run holdfast init")

// decide asks an op what it wants to do about its row.
func (o *Optimistic) decide(p *op, a Row, sent driver.Instant) error {
	if a == nil {
		return ErrSchema
	}
	r := &row{sent: sent, now: a.Int(0), floor: a.Int(1), exists: !a.Null(2), version: a.Int(2), token: a.Int(3)}
	c, err := decode(a.Text(4))
	if err != nil {
		return err
	}
	r.content = c.live(r.now)
	r.ahead = slices.ContainsFunc(c.Holders, func(h holder) bool { return h.ahead(r.now) })
	next, err := p.step(r)
	if err != nil || next == nil {
		p.done = true
		return err
	}
	w := Write{Version: r.version + 1, Token: max(r.token, p.token), Expires: next.expires(),
		Now: r.now, Deadline: r.now + applyWithin.Microseconds(), State: Encode(next)}
	if r.exists {
		p.statement = o.table.Update(p.name, r.version, w)
	} else {
		// Above the versions that an earlier row of the name may have had.
		w.Version = max(r.now, r.floor)
		w.Token = max(w.Token, r.floor)
		p.statement = o.table.Insert(p.name, Bucket(p.name), w)
	}
	return nil
}

// enter begins a call; the caller ends it with tasks.Done.
func (o *Optimistic) enter() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return ErrClosed
	}
	o.tasks.Add(1)
	return nil
}

// Close forgets the grants of this store, which run out, and ends its connections.
func (o *Optimistic) Close(context.Context) error {
	o.mu.Lock()
	if o.closed {
		o.mu.Unlock()
		return nil
	}
	o.closed = true
	o.mu.Unlock()
	o.cancel()
	o.tasks.Wait()
	if o.waker != nil {
		o.waker.Close()
	}
	o.pool.Close()
	return nil
}
