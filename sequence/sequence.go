// Package sequence draws unique, rising ids from blocks that are reserved at a store: the
// usual table of segments (biz_code, max_id, version) works as it stands, and so do the
// values of every holdfast store.
//
//	orders, err := sequence.New(sequence.Table{DB: db, Dialect: fence.MySQL}, "order")
//	...
//	id, err := orders.Next(ctx)
//
// # What is guaranteed
//
// No id is drawn twice, by any number of processes, whatever crashes. The end of the last
// reserved block is one number at the store, which only rises. A process uses a block only
// after the store has confirmed the write that reserved it: see package optimistic. The ids
// that one goroutine draws rise. Those of different processes interleave in blocks: a larger id
// is not a later one.
//
// There are gaps. A process that ends, or a reservation whose answer was lost, leaves the rest
// of its blocks unused. Ids may be drawn twice from a store that loses confirmed writes, as
// Redis can in a crash or a failover. The same holds for a database that is restored from a
// backup.
//
// # Cost
//
// An id costs an atomic addition. When half of a block is used, the next one is reserved in the
// background. So a caller waits for the store only if a block is used up sooner than a
// reservation takes. The size of the blocks adapts to the rate: see [Blocks].
package sequence

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/fence"
	"github.com/holdfast-go/holdfast/optimistic"
)

// MaxID is the largest id.
const MaxID = 1 << 62

// Source reserves ids. Implement it to keep sequences elsewhere.
type Source interface {
	// Reserve raises the end of the sequence by n, atomically and durably, and returns
	// the new end. The ids from end-n+1 to end belong to the caller. After an error some
	// ids may be reserved; no process uses them.
	Reserve(ctx context.Context, name string, n int64) (end int64, err error)
}

// The limits of blocks, unless [Blocks] sets others.
const (
	defaultLeast = 16
	defaultMost  = 1 << 20
)

const (
	// A block that is used up sooner than shortUse doubles the size; one that lasts longer
	// than longUse halves it. See adapt.
	shortUse = time.Second
	longUse  = 8 * time.Second
	// reserveTimeout limits a reservation, which continues after the context of the waiting
	// caller has ended.
	reserveTimeout = 30 * time.Second
)

// Sequence draws ids of one name. It is safe for concurrent use and needs no Close; make one
// for each name in a process, because each has blocks of its own.
type Sequence struct {
	source      Source
	name        string
	least, most int64

	current atomic.Pointer[block]

	mu    sync.Mutex
	size  int64     // of the next block
	since time.Time // when current became the current block
	ahead *fetch    // nil: none was begun
}

// block is a reserved range, of which the ids after last are unused.
type block struct {
	last    atomic.Int64
	end     int64
	fetchAt int64 // the draw of this id begins to fetch the next block
}

// fetch is a reservation. The other fields are set when done is closed.
type fetch struct {
	done  chan struct{}
	block *block
	err   error
}

// failed reports whether the reservation has ended with an error.
func (f *fetch) failed() bool {
	select {
	case <-f.done:
		return f.err != nil
	default:
		return false
	}
}

// Option is a setting of New.
type Option func(*Sequence)

// Blocks sets the size of the first and smallest block and of the largest. A block that
// lasts less than a second makes the next one twice as large, one that lasts more than
// eight seconds half as large. A process that ends loses up to two blocks. Default:
// 16 and 1<<20; at most 1<<30.
func Blocks(least, most int64) Option {
	return func(s *Sequence) { s.least, s.most = least, most }
}

// New returns a sequence. It does no I/O. Errors wrap holdfast.ErrInvalid.
func New(source Source, name string, o ...Option) (*Sequence, error) {
	if source == nil {
		return nil, fmt.Errorf("sequence: %w: the source is nil", holdfast.ErrInvalid)
	}
	if err := driver.CheckName(name); err != nil {
		return nil, fmt.Errorf("sequence: %w: %w", holdfast.ErrInvalid, err)
	}
	s := &Sequence{source: source, name: name, least: defaultLeast, most: defaultMost}
	for _, f := range o {
		f(s)
	}
	if s.least < 1 || s.most < s.least || s.most > 1<<30 {
		return nil, fmt.Errorf("sequence: %w: blocks of %d to %d ids, want 1 <= least <= most <= %d", holdfast.ErrInvalid, s.least, s.most, 1<<30)
	}
	s.size = s.least
	s.current.Store(&block{})
	return s, nil
}

// Next returns an id that no other call returns, in any process. It waits for the store only
// when a block is used up before the next one is reserved. An error is that of a reservation which was under
// way during the call, and the next call tries again. Errors are those of package optimistic, or the context's.
func (s *Sequence) Next(ctx context.Context) (int64, error) {
	for {
		b := s.current.Load()
		if id := b.last.Add(1); id <= b.end {
			if id == b.fetchAt {
				s.fetchAhead()
			}
			return id, nil
		}
		if err := s.advance(ctx, b); err != nil {
			return 0, err
		}
	}
}

// fetchAhead starts the reservation of the next block, unless one was started.
func (s *Sequence) fetchAhead() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ahead == nil {
		s.begin()
	}
}

// begin starts a reservation. The caller holds the mutex.
func (s *Sequence) begin() {
	f := &fetch{done: make(chan struct{})}
	s.ahead = f
	n := s.size
	go func() {
		defer close(f.done)
		ctx, cancel := context.WithTimeout(context.Background(), reserveTimeout)
		defer cancel()
		f.block, f.err = reserve(ctx, s.source, s.name, n)
	}()
}

// reserve repeats a reservation whose outcome is unknown. That leaves a gap at most.
func reserve(ctx context.Context, source Source, name string, n int64) (*block, error) {
	end, err := source.Reserve(ctx, name, n)
	for range 2 {
		if !errors.Is(err, optimistic.ErrUnknown) || ctx.Err() != nil {
			break
		}
		end, err = source.Reserve(ctx, name, n)
	}
	switch {
	case err != nil:
		return nil, fmt.Errorf("sequence: %q: %w", name, err)
	case end < n || end > MaxID:
		// Above MaxID, Next could overflow.
		return nil, fmt.Errorf("sequence: %q: %w: a block ends with %d, want %d to %d", name, holdfast.ErrInvalid, end, n, int64(MaxID))
	}
	b := &block{end: end, fetchAt: end - n + 1 + n/2}
	b.last.Store(end - n) // mutation: sequence-block
	return b, nil
}

// advance replaces a block that is used up.
func (s *Sequence) advance(ctx context.Context, used *block) error {
	s.mu.Lock()
	if s.current.Load() != used {
		s.mu.Unlock()
		return nil
	}
	if s.ahead == nil || s.ahead.failed() {
		s.begin()
	}
	f := s.ahead
	s.mu.Unlock()
	select {
	case <-f.done:
	case <-ctx.Done():
		return fmt.Errorf("sequence: %q: %w", s.name, errors.Join(ctx.Err(), context.Cause(ctx)))
	}
	if f.err != nil {
		return f.err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ahead != f {
		return nil // another caller has replaced the block
	}
	s.ahead = nil
	now := time.Now()
	if !s.since.IsZero() {
		s.adapt(now.Sub(s.since))
	}
	s.since = now
	s.current.Store(f.block)
	return nil
}

// adapt sets the size of the block after the next one, because the next one is reserved
// already.
func (s *Sequence) adapt(use time.Duration) {
	switch {
	case use < shortUse:
		s.size = min(2*s.size, s.most)
	case use > longUse:
		s.size = max(s.size/2, s.least)
	}
}

// Values keeps sequences among the values of a store, as decimal numbers under their names.
// Options are those of the updates.
func Values(v optimistic.Values, o ...optimistic.Option) Source { return values{v, o} }

type values struct {
	v optimistic.Values
	o []optimistic.Option
}

func (s values) Reserve(ctx context.Context, name string, n int64) (end int64, err error) {
	err = optimistic.Update(ctx, s.v, name, func(_ context.Context, old []byte) (_ []byte, err error) {
		var last int64
		if len(old) > 0 {
			if last, err = strconv.ParseInt(string(old), 10, 64); err != nil || last < 0 {
				return nil, fmt.Errorf("%w: the value %.40q is no sequence", holdfast.ErrInvalid, old)
			}
		}
		if end, err = sum(last, n); err != nil {
			return nil, err
		}
		return strconv.AppendInt(nil, end, 10), nil
	}, s.o...)
	return end, err
}

// Table keeps sequences in a table of segments, one row each, which must exist:
//
//	CREATE TABLE segment_id (
//		biz_code VARCHAR(64) PRIMARY KEY,
//		max_id   BIGINT NOT NULL, -- the last id that was reserved
//		version  BIGINT NOT NULL
//	)
//	INSERT INTO segment_id VALUES ('order', 0, 0)
//
// Other programs may draw from the same row, as long as they raise max_id and version in one
// statement with a comparison of the version. A number that max_id or version does not take is an error
// that wraps holdfast.ErrRefused, and so are sessions of MySQL that would clip it: see [optimistic.Rows].
type Table struct {
	// DB and Dialect are required.
	DB      optimistic.Queryer
	Dialect fence.Dialect
	// Name is the table's, Key, Max and Version are its columns. Give Name a schema if other
	// code may have changed the search path or the default database of a session: the table
	// of another schema gives the same ids again. Default: segment_id, biz_code, max_id,
	// version.
	Name, Key, Max, Version string
	// Options are those of the updates.
	Options []optimistic.Option
}

// Reserve implements [Source].
func (t Table) Reserve(ctx context.Context, name string, n int64) (end int64, err error) {
	rows := optimistic.Rows[int64]{
		DB: t.DB, Dialect: t.Dialect, Table: cmp.Or(t.Name, "segment_id"), Key: cmp.Or(t.Key, "biz_code"),
		Version: cmp.Or(t.Version, "version"), Columns: []string{cmp.Or(t.Max, "max_id")},
		Fields: func(last *int64) []any { return []any{last} },
	}
	err = rows.Update(ctx, name, func(_ context.Context, last *int64) (err error) {
		if end, err = sum(*last, n); err == nil {
			*last = end
		}
		return err
	}, t.Options...)
	return end, err
}

// sum returns the end of a block of n ids after last.
func sum(last, n int64) (int64, error) {
	if last > MaxID-n {
		return 0, fmt.Errorf("%w: %d ids after %d are beyond %d", holdfast.ErrInvalid, n, last, int64(MaxID))
	}
	return last + n, nil
}
