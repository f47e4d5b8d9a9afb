package sqlkit

import (
	"context"
	"encoding/hex"
	"errors"
	"hash/fnv"
	"iter"
	"slices"
	"strconv"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/record"
	"github.com/holdfast-go/holdfast/internal/backoff"
)

// optimisticFallback limits the delay that a lost notification causes.
const optimisticFallback = time.Second

// NewOptimistic returns an engine that keeps the grants of a name in one row of a table. Its Close also
// closes the pool. If watch is nil, Acquire does not wait. skew may be nil; see [record.Options].
//
// A write and the read after it take one round trip. The engine does not use counts of affected rows,
// since their meaning depends on settings.
func NewOptimistic(pool *Pool, table Table, faults Faults, watch record.Watcher, skew func() time.Duration,
	namespace string) *record.Engine {
	r := &rows{pool, table, faults}
	o := record.Options{Namespace: namespace, Skew: skew, Records: "holdfast_row"}
	if watch == nil {
		return record.NewEngine(r, o)
	}
	o.Poll = optimisticFallback
	return record.NewEngine(watchedRows{r, watch}, o)
}

// rows is a [record.Batch] and a [record.Sweeper].
type rows struct {
	pool   *Pool
	table  Table
	faults Faults
}

type watchedRows struct {
	*rows
	record.Watcher
}

// exchange is a key, the change of its row or nil, and the result.
type exchange struct {
	key    string
	change *record.Change
	result *record.Result
}

// part is what one script replaces and reads.
type part struct {
	rows   []exchange
	apart  bool // a statement for each row, which may wait for it
	unread bool // a write may have taken effect, and the rows were not read since
	tries  int
}

// Exchange implements [record.Batch]. One statement replaces several rows, and another one reads them. They
// never wait for a row that another transaction has locked. The first one is a transaction: it replaces each
// row as it was read, or leaves the row alone. So it may be sent again, also if it had an effect. After an error
// that a retry does not solve, each row gets a statement of its own.
func (r *rows) Exchange(ctx context.Context, changes []record.Change, keys []string) []record.Result {
	if err := r.resolve(ctx); err != nil {
		return slices.Repeat([]record.Result{{Err: err}}, len(keys))
	}
	results := make([]record.Result, len(keys))
	all := part{rows: make([]exchange, len(keys)), apart: len(keys) == 1}
	for i, key := range keys {
		all.rows[i] = exchange{key: key, result: &results[i]}
		if len(changes) > 0 && changes[0].Key == key {
			all.rows[i].change, changes = &changes[0], changes[1:]
		}
	}
	flushed := false
	for queue := []part{all}; len(queue) > 0; {
		p := queue[0]
		queue = queue[1:]
		if n := fits(p.rows); n < len(p.rows) {
			queue = append(queue, part{rows: p.rows[n:]})
			p.rows = p.rows[:n]
		}
		err := r.exchange(ctx, &p)
		coded, retry := r.faults.Sort(err)
		retry = retry && ctx.Err() == nil
		switch {
		case err == nil:
		case errors.Is(coded, ErrReadOnly) && !flushed:
			r.pool.Flush() // new connections may lead to another server
			flushed = true
			queue = append(queue, p.reads())
		case retry && len(p.rows) > 1: // another transaction may have locked a row; the other half does not wait for it
			half, rest := p, p
			half.rows, rest.rows = p.rows[:len(p.rows)/2], p.rows[len(p.rows)/2:]
			queue = append(queue, half, rest)
		case retry:
			if p.tries++; backoff.Yield(ctx, p.tries) == nil {
				queue = append(queue, p.reads()) // they show whether the write has taken effect
			} else {
				p.fail(driver.Errorf(driver.CodeUnavailable, "%w after %w", ctx.Err(), coded))
			}
		case !p.apart:
			p.apart = true
			queue = append(queue, p)
		default:
			p.fail(coded)
		}
	}
	return results
}

// reads returns the part without its changes.
func (p part) reads() part {
	for i := range p.rows {
		p.rows[i].change = nil
	}
	return p
}

// fail sets the results of rows that could not be read.
func (p *part) fail(coded error) {
	switch {
	case p.unread:
		coded = &driver.Error{Code: driver.CodeUnknown, Err: coded}
	case driver.CodeOf(coded) == driver.CodeUnknown: // no write has had an effect
		coded = &driver.Error{Code: driver.CodeUnavailable, Err: coded}
	}
	for _, x := range p.rows {
		x.result.Err = coded
	}
}

// togetherBytes limits the states in a statement that replaces several rows. A server limits its
// packets, MariaDB to 16 MB.
const togetherBytes = 256 << 10

// fits returns how many rows may be replaced together, at least one.
func fits(all []exchange) int {
	size := 0
	for i, x := range all {
		if x.change == nil {
			continue
		}
		if size += len(x.change.Data); size > togetherBytes && i > 0 {
			return i
		}
	}
	return len(all)
}

// exchange replaces the rows that have a change, and then reads all rows of the part, in one round trip.
func (r *rows) exchange(ctx context.Context, p *part) error {
	names := make([][]byte, len(p.rows))
	var script []string
	var changes []Change
	for i, x := range p.rows {
		names[i] = []byte(x.key)
		switch {
		case x.change == nil:
		case !p.apart:
			changes = append(changes, rowOf(x.change))
		default:
			script = append(script, r.write(x.change)...)
		}
	}
	if len(changes) > 0 {
		script = append(script, r.table.UpdateEach(changes))
	}
	writes, read := len(script) > 0, r.table.Find
	one := p.apart && len(names) == 1
	if one {
		read = func([][]byte) string { return r.table.Read(names[0], Bucket(names[0])) }
	}
	answers, mayHaveWritten, err := r.run(ctx, append(script, read(names)))
	if err != nil {
		p.unread = p.unread || writes && mayHaveWritten
		return err
	}
	if one {
		*p.rows[0].result = object(answers.Last())
		return nil
	}
	found := map[string]Row{}
	for _, a := range answers[len(answers)-1] {
		if key, err := hex.DecodeString(a.Text(columnName)); err == nil {
			a[columnHighWater].String = "" // Find returns none
			found[string(key)] = a
		}
	}
	for _, x := range p.rows {
		if a, ok := found[x.key]; ok {
			*x.result = object(a)
		}
	}
	return nil
}

// write returns the statements of a change.
func (r *rows) write(c *record.Change) []string {
	w := rowOf(c)
	var statement string
	if c.Old.Version == "" {
		statement = r.table.Insert(w.Name, Bucket(w.Name), w.Write)
	} else {
		statement = r.table.Update(w.Name, w.Old, w.Write)
	}
	if wake := r.table.Wake(w.Name, c.Next); wake != "" && c.Wake {
		return []string{statement, wake}
	}
	return []string{statement}
}

// rowOf returns the row that a change writes. Its version is above those of any earlier row of the name. It has
// the time, so a primary that was promoted without the last writes does not use their versions again.
func rowOf(c *record.Change) Change {
	now := c.Old.Now.UnixMicro()
	old, version := int64(0), max(now, int64(c.Old.Floor))
	if c.Old.Version != "" {
		old, _ = strconv.ParseInt(c.Old.Version, 10, 64)
		version = max(old+1, now)
	}
	return Change{[]byte(c.Key), old, Write{Version: version, Token: int64(c.Token), Expires: c.Expires.UnixMicro(),
		Now: now, Deadline: c.Deadline.UnixMicro(), State: string(c.Data)}}
}

// object returns the record in an answer of [Table.Read] or [Table.Find].
func object(a Row) record.Result {
	if a == nil {
		return record.Result{Err: ErrSchema}
	}
	floor := max(a.Int(columnHighWater), a.Int(columnToken))
	o := record.Object{Now: time.UnixMicro(a.Int(columnNow)), Floor: uint64(floor)}
	if !a.Null(columnVersion) {
		o.Version, o.Data = a.Text(columnVersion), []byte(a.Text(columnState))
	}
	return record.Result{Object: o}
}

// run executes a script that ends with a [Table.Read] or a [Table.Find]. mayHaveWritten reports that the
// writes of a script may have taken effect in spite of an error.
func (r *rows) run(ctx context.Context, script []string) (answers Answers, mayHaveWritten bool, err error) {
	answers, err = r.pool.Run(ctx, script...)
	if err == nil && readOnly(answers.Last().Text(columnReadOnly)) {
		return nil, true, ErrReadOnly // the demoted primary may have lost a write of the script
	}
	if err == nil {
		return answers, false, nil
	}
	coded, _ := r.faults.Sort(err)
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

// ErrSchema reports that holdfast's tables lack a row that init inserts.
var ErrSchema = driver.Errorf(driver.CodeRefused, "holdfast's tables lack a row: run holdfast init")

// List implements [record.Batch].
func (r *rows) List(ctx context.Context, prefix string) iter.Seq2[record.Entry, error] {
	return func(yield func(record.Entry, error) bool) {
		if err := r.resolve(ctx); err != nil {
			yield(record.Entry{}, err)
			return
		}
		answers, err := r.pool.Run(ctx, r.table.List([]byte(prefix)))
		if err != nil {
			yield(record.Entry{}, Unreached(r.faults, err))
			return
		}
		for _, a := range answers[len(answers)-1] {
			key, err := hex.DecodeString(a.Text(1))
			if err != nil {
				continue
			}
			o := record.Object{Data: []byte(a.Text(2)), Now: time.UnixMicro(a.Int(0))}
			if !yield(record.Entry{Key: string(key), Object: o}, nil) {
				return
			}
		}
	}
}

// resolve returns when the table can build statements.
func (r *rows) resolve(ctx context.Context) error {
	if d, ok := r.table.(*Dialect); ok {
		return d.resolve(ctx)
	}
	return nil
}

// Close closes the pool.
func (r *rows) Close() error {
	r.pool.Close()
	return nil
}

// Bucket returns the number of the row that has the high-water mark of a name's tokens.
func Bucket(name []byte) int {
	h := fnv.New32a()
	_, _ = h.Write(name)
	return int(h.Sum32() % Buckets)
}

// NamePrefix returns what precedes the names of a namespace in their rows. A namespace
// contains no NUL, so that the prefixes of two namespaces never match the same name.
func NamePrefix(namespace string) []byte { return append([]byte(namespace), 0) }
