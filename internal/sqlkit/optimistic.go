package sqlkit

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/backoff"
)

// Optimistic is an engine that keeps the grants of a name in one row.
//
// # Safety
//
// Every change replaces a row as it was read. The statement names the version that it
// replaces, and each write makes a new version. The database does one write of a row at a
// time. So a write that takes effect was decided on the present row. Time passes between
// the read and the write, so a grant may expire in between. No expired grant becomes valid
// again. The expiry time is counted from the read. The read follows the send of the
// request, from which the client counts the validity.
//
// The same round trip reads the row again after a write: a grant was made if the row has
// its ID. The engine does not use counts of affected rows, since their meaning depends on
// settings.
//
// Renew replaces the rows of many names by one statement. The statement is one transaction. It replaces
// each row as it was read, or leaves the row alone. So the argument for one write holds for each of its
// rows. The statement does not wait for locked rows, so that two such statements cannot wait for each
// other. After an error that had no effect, such as that of a locked row, the client sends a statement for
// each half of the rows. If a row was not replaced, the client reads it and tries again until the call
// ends.
//
// A write whose answer was lost may still arrive. Undo writes a newer version, so that the
// version which the request has read is replaced, and its write changes nothing. Where
// there was no row, Undo creates an empty one. A client removes a row a minute after its
// last change at the earliest. A write has no effect half a minute after its read, by the
// database's clock. So the removal of a row does not let a late write take effect either.
// No step depends on which connection carried which statement, so poolers and proxies are
// allowed.
//
// A token is the larger of the row's last token plus one and the database's clock in
// microseconds. Before a row is removed its token goes into one of 64 rows of high-water
// marks, and new rows begin above them. So tokens keep rising when a row is removed, when
// the clock is set back, and when the server restarts.
//
// A grant may have several tokens, for the holders to which its process hands it off. They
// are the last microseconds of the clock that are larger than the row's last token. The
// write of the grant makes the last of them the token of the row, so that every later grant
// has larger tokens. Several tokens of a grant are never ahead of the clock. The first grant
// of a row has one token, since a lost row of the name may have had a token a moment ago. A
// replica may be promoted without the last writes. It grants more than a millisecond later,
// and the tokens of a grant begin at most a millisecond before the grant.
//
// Swap replaces a grant by the next one of the same client in one write, so the row has one of
// them. After a lost answer, the outcome of both the release and the request is unknown. The client
// repeats the release, and Undo covers the request. A row does not show the waiters of other
// clients. So a client replaces grants for driver.HandoffTime at most. Then it releases the name
// and notifies the waiters.
type Optimistic struct {
	pool   *Pool
	table  Table
	faults Faults
	waker  Waker
	prefix []byte // precedes each name: the namespace and a NUL

	calls
	// Guarded by the mutex of calls.
	held     map[string]*kept
	watching bool
	swept    time.Time
}

// kept is a grant of this client whose end the client has not seen.
type kept struct {
	g    driver.Grant
	from driver.Requester
	// heldSince is the time of the first grant in a sequence of grants that Swap has replaced.
	heldSince time.Time
}

const (
	// applyTimeout is the time after its read in which a write can take effect.
	applyTimeout = 30 * time.Second
	// rowIdleTime is the time after which a client may remove an unused row.
	rowIdleTime = time.Minute
	// sweepEvery is the interval at which a client removes unused rows.
	sweepEvery = 30 * time.Second
	// checkInterval is the interval at which a client checks whether its grants still stand.
	checkInterval = time.Second
	// takenTime is how long a row records a broken grant.
	takenTime = 10 * time.Minute
	// OptimisticFallback limits the delay that a lost notification causes.
	OptimisticFallback = time.Second
	// batch is the number of names in one script, and maxBatch that of a client with thousands of
	// grants. A client sends at most lanes scripts at the same time.
	batch, maxBatch, lanes = 32, 128, 8
)

// inBatches calls f for each part of n grants. If n is more than a batch, several lanes call f at the
// same time. Over a slow link, one script after another would take longer than a TTL. f returns false
// if the part was certainly not applied, for example because the server accepts no more connections.
// The lane then stops, and the other lanes continue. At the end inBatches calls f with last set, for
// the parts that remain.
func inBatches(n int, f func(from, to int, last bool) bool) {
	if n <= batch {
		f(0, n, true)
		return
	}
	size := min(max(n/(4*lanes), batch), maxBatch)
	var next atomic.Int64
	stopped := make(chan int, lanes) // the parts at which lanes have stopped
	var running sync.WaitGroup
	for range min(lanes, (n+size-1)/size) {
		running.Go(func() {
			for {
				from := int(next.Add(int64(size))) - size
				if from >= n {
					return
				}
				if !f(from, min(from+size, n), false) {
					stopped <- from
					return
				}
			}
		})
	}
	running.Wait()
	close(stopped)
	for from := range stopped {
		f(from, min(from+size, n), true)
	}
	for from := int(next.Load()); from < n; from += size {
		f(from, min(from+size, n), true)
	}
}

// NewOptimistic returns an engine. Its Close also closes the pool. If waker is nil, Acquire
// cannot wait.
func NewOptimistic(pool *Pool, table Table, faults Faults, waker Waker, namespace string) *Optimistic {
	o := &Optimistic{pool: pool, table: table, faults: faults, waker: waker, prefix: NamePrefix(namespace),
		held: map[string]*kept{}, swept: time.Now()}
	o.ctx, o.cancel = context.WithCancel(context.Background())
	return o
}

// NamePrefix returns what precedes the names of a namespace in their rows. A namespace
// contains no NUL, so that the prefixes of two namespaces never match the same name.
func NamePrefix(namespace string) []byte { return append([]byte(namespace), 0) }

// row is a name's row as it was read.
type row struct {
	sent           driver.Instant // when the read was sent
	exists         bool
	now, highWater int64
	version, token int64
	ahead          bool // live has shortened the time of a grant in the row
	content
}

func (o *Optimistic) key(name string) []byte { return append(bytes.Clone(o.prefix), name...) }

// Bucket returns the number of the row that has the high-water mark of a name's tokens.
func Bucket(name []byte) int {
	h := fnv.New32a()
	_, _ = h.Write(name)
	return int(h.Sum32() % Buckets)
}

// op is a change of one name. step reads the row and returns the content that shall replace
// it. It returns nil when nothing more is to be done, or an error that ends the op. The
// engine calls step again after each write, and step recognises its own effect.
type op struct {
	name []byte
	step func(*row) (next *content, err error)
	wake bool // the write frees the name or a permit, or breaks a grant

	token     int64   // the token that a write gives the row, if larger than the row's
	statement string  // the next statement to send
	change    *Change // the next change of applyTogether
	unread    bool    // a write may have taken effect, and the op has not read the row since
	done      bool
	err       error
}

// apply executes at most a batch of ops. It returns the error of a round trip; each op has
// its own error.
func (o *Optimistic) apply(ctx context.Context, ops ...*op) error {
	// Every client uses the same order, because a script may be one transaction, and two of them
	// must not deadlock.
	slices.SortFunc(ops, func(a, b *op) int { return bytes.Compare(a.name, b.name) })
	flushed := false
	unread := slices.ContainsFunc(ops, func(p *op) bool { return p.unread })
	for tries := 0; ; {
		script, pending, writes := o.script(ops)
		if len(pending) == 0 {
			return nil
		}
		sent := driver.Now()
		answers, mayHaveWritten, err := o.run(ctx, script)
		if err == nil {
			unread = false
			for i, p := range pending {
				o.decide(p, answers.First(i), sent)
			}
			continue
		}
		unread = unread || writes && mayHaveWritten
		// If the script is sent again, it reads back what was written.
		coded, retry := o.faults.Sort(err)
		if errors.Is(coded, ErrReadOnly) && !flushed {
			o.pool.Flush() // new connections may lead to another server
			flushed = true
			continue
		}
		if retry && ctx.Err() == nil {
			tries++
			stopped := backOff(ctx, tries)
			if stopped == nil {
				continue
			}
			err = fmt.Errorf("%w after %w", stopped, coded)
			coded = &driver.Error{Code: driver.CodeUnavailable, Err: err}
		}
		switch {
		case unread:
			return &driver.Error{Code: driver.CodeUnknown, Err: err}
		case driver.CodeOf(coded) == driver.CodeUnknown:
			return &driver.Error{Code: driver.CodeUnavailable, Err: err} // the script was a read
		}
		return coded
	}
}

// script returns the statements of a round trip: the next write of each op that has one, and then a
// read for each pending op.
func (o *Optimistic) script(ops []*op) (script []string, pending []*op, writes bool) {
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
	for _, p := range pending {
		script = append(script, o.table.Read(p.name, Bucket(p.name)))
	}
	return script, pending, writes
}

// run executes a script that ends with a [Table.Read] or a [Table.Find]. mayHaveWritten reports that the
// writes of a script may have taken effect in spite of an error.
func (o *Optimistic) run(ctx context.Context, script []string) (answers Answers, mayHaveWritten bool, err error) {
	answers, err = o.pool.Run(ctx, script...)
	if err == nil && readOnly(answers.Last().Text(columnReadOnly)) {
		return nil, true, ErrReadOnly // the demoted primary may have lost a write of the script
	}
	if err == nil {
		return answers, false, nil
	}
	coded, _ := o.faults.Sort(err)
	// If the first statement was refused, nothing was written.
	return nil, partly(err) || driver.CodeOf(coded) == driver.CodeUnknown, err
}

// The columns of the answers of [Table.Read] and [Table.Find].
const (
	columnNow = iota
	columnHighWater
	columnVersion
	columnToken
	columnState
	columnReadOnly

	columnName = columnHighWater // of Find
)

// readOnly reports whether the last column of [Table.Read] or [Table.Find] shows that the server
// is read-only.
func readOnly(text string) bool {
	switch text {
	case "", "0", "f", "false", "OFF":
		return false
	}
	return true
}

// backOff waits for a random time, so that other clients go first. The longest time is 2 ms for
// the first try, and rises to 40 ms.
func backOff(ctx context.Context, tries int) error {
	return backoff.Sleep(ctx, rand.N(time.Duration(min(tries, 20))*2*time.Millisecond))
}

// ErrSchema reports that holdfast's tables lack a row that init inserts.
var ErrSchema = driver.Errorf(driver.CodeRefused, "holdfast's tables lack a row: run holdfast init")

// decide calls the op's step with its row, and prepares the next statement.
func (o *Optimistic) decide(p *op, a Row, sent driver.Instant) {
	if a == nil {
		p.done, p.err = true, ErrSchema
		return
	}
	switch r, w := p.next(a, sent); {
	case w == nil:
	case r.exists:
		p.statement = o.table.Update(p.name, r.version, *w)
	default:
		// The version is above those of any earlier row of the name.
		w.Version = max(r.now, r.highWater)
		w.Token = max(w.Token, r.highWater)
		p.statement = o.table.Insert(p.name, Bucket(p.name), *w)
	}
}

// next calls the op's step with its row, an answer of [Table.Read], and returns the write that shall
// replace the row. If there is none, the op is done.
func (p *op) next(a Row, sent driver.Instant) (*row, *Write) {
	p.unread, p.done = false, true
	r := &row{sent: sent, now: a.Int(columnNow), highWater: a.Int(columnHighWater),
		exists: !a.Null(columnVersion), version: a.Int(columnVersion), token: a.Int(columnToken)}
	c, err := decode(a.Text(columnState))
	if err != nil {
		p.err = err
		return r, nil
	}
	r.content = c.live(r.now)
	r.ahead = slices.ContainsFunc(c.Holders, func(h holder) bool { return h.ahead(r.now) })
	var next *content
	if next, p.err = p.step(r); p.err != nil || next == nil {
		return r, nil
	}
	p.done = false
	return r, &Write{Version: r.version + 1, Token: max(r.token, p.token), Expires: next.lastExpiry(),
		Now: r.now, Deadline: r.now + applyTimeout.Microseconds(), State: Encode(next)}
}

// Close ends the connections. The grants of this client expire.
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
