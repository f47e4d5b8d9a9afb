package record

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// Store is a complete store on a [Storage]. It implements [driver.Store], [driver.Inspector],
// [driver.Breaker], [driver.Swapper] and [driver.Values].
type Store struct{ *store }

type store struct {
	*Engine
	storage    Storage
	name       string
	values     string // precedes each key of a value
	guarantees driver.Guarantees
}

// New returns a store on s, which its Close closes. The record of a lock has the key "lock", a NUL, the namespace, a NUL
// and the name. name is what String returns: where the locks are, without a password. Of the guarantees, g has Kind, Scope and, if there are any, Notes and the events
// of the storage that may end a grant early. Tokens and MaxTTL have defaults, and the engine sets the
// others. If s is a [Watcher], waiters are notified, and Options.Poll is at most a second by default.
// Otherwise waiters poll.
func New(s Storage, name string, g driver.Guarantees, o Options) *Store {
	var b Batch = single{s}
	if w, ok := s.(Watcher); ok {
		b = struct {
			Batch
			Watcher
		}{b, w}
		o.Poll = cmp.Or(o.Poll, time.Second)
	}
	o.Declare(&g)
	g.EarlyEnd = append([]string{"an operator's break", "records deleted or changed by hand",
		"the storage's clock set forward"}, g.EarlyEnd...)
	g.Tokens = cmp.Or(g.Tokens, "the name's record: the last token plus one, or the storage's clock in microseconds "+
		"if that is larger")
	g.MaxTTL = cmp.Or(g.MaxTTL, 24*time.Hour)
	g.Notes = append(slices.Clone(g.Notes), "each name that was ever locked has a record, which has its last token",
		"a renewal that arrives late may extend an expired grant for one TTL, unless its record has changed")
	e := NewEngine(b, o)
	e.apart = true
	e.prefix = "lock\x00" + e.prefix
	return &Store{&store{Engine: e, storage: s, name: name, values: "value\x00" + o.Namespace + "\x00", guarantees: g}}
}

// String implements [driver.Store].
func (s *store) String() string { return s.name }

// Guarantees implements [driver.Store].
func (s *store) Guarantees(context.Context) (driver.Guarantees, error) { return s.guarantees, nil }

// Get implements [driver.Values].
func (s *store) Get(ctx context.Context, key string) ([]byte, string, error) {
	ctx, end, err := s.value(ctx, key, nil)
	if err != nil {
		return nil, "", err
	}
	defer end()
	o, err := get(ctx, s.storage, s.values+key)
	return o.Data, o.Version, s.ended(err)
}

// Put implements [driver.Values].
func (s *store) Put(ctx context.Context, key string, data []byte, version string) (string, error) {
	ctx, end, err := s.value(ctx, key, data)
	if err != nil {
		return "", err
	}
	defer end()
	o, err := put(ctx, s.storage, s.values+key, data, version)
	if err != nil {
		o.Version = ""
	}
	if driver.CodeOf(err) == driver.CodeConflict {
		err = driver.Conflict(key)
	}
	return o.Version, s.ended(err)
}

// value begins a call for a value.
func (s *store) value(ctx context.Context, key string, data []byte) (context.Context, func(), error) {
	if err := s.calls.Ready(ctx, key, data); err != nil {
		return nil, nil, err
	}
	return s.calls.Call(ctx)
}

// prefixBytes is the number of random bytes that precede the data of each write. So a storage whose versions
// are hashes of the data never has the same version again.
const prefixBytes = 26

// put writes a record. After a conflict it reads the record, and returns it with the error. The conflict may be one
// with the same write, if a client library, a proxy or a server has repeated it: then put has succeeded.
func put(ctx context.Context, s Storage, key string, data []byte, version string) (o Object, err error) {
	data = append([]byte(rand.Text()[:prefixBytes]), data...)
	o.Version, err = s.Put(ctx, key, data, version)
	if err == nil && o.Version == "" {
		err = fmt.Errorf("the storage has returned no version of %q", key)
	}
	switch code := driver.CodeOf(err); {
	case err == nil, code == driver.CodeUnavailable, code == driver.CodeRefused:
		return o, err
	case code != driver.CodeConflict:
		return o, &driver.Error{Code: driver.CodeUnknown, Err: err}
	}
	switch o, err = s.Get(ctx, key); {
	case err != nil:
		return o, driver.Errorf(driver.CodeUnknown, "a read after a conflict: %w", err)
	case o.Version == version:
		return o, driver.Errorf(driver.CodeUnknown, "a conflict with the version that %q has", key)
	case bytes.Equal(o.Data, data):
		return o, nil
	}
	if o, err = withoutPrefix(key, o); err == nil {
		err = driver.Conflict(key)
	}
	return o, err
}

func get(ctx context.Context, s Storage, key string) (Object, error) {
	o, err := s.Get(ctx, key)
	if err != nil {
		return Object{}, certain(err)
	}
	return withoutPrefix(key, o)
}

// withoutPrefix returns a record without the random bytes before its data.
func withoutPrefix(key string, o Object) (Object, error) {
	switch {
	case o.Version == "":
		o.Data = nil
	case len(o.Data) < prefixBytes:
		return Object{}, driver.Broken(key, "it is too short")
	default:
		o.Data = o.Data[prefixBytes:]
	}
	return o, nil
}

// single is a [Batch] that makes a request for each record.
type single struct{ Storage }

// Exchange implements [Batch]. A record that was written is not read again.
func (s single) Exchange(ctx context.Context, changes []Change, keys []string) []Result {
	results := make([]Result, len(keys))
	for i, key := range keys {
		var change *Change
		if len(changes) > 0 && changes[0].Key == key {
			change, changes = &changes[0], changes[1:]
		}
		results[i] = s.exchange(ctx, change, key)
	}
	return results
}

func (s single) exchange(ctx context.Context, c *Change, key string) Result {
	if c == nil {
		o, err := get(ctx, s.Storage, key)
		return Result{Object: o, Err: timed(o, err)}
	}
	o, err := put(ctx, s.Storage, key, c.Data, c.Old.Version)
	switch {
	case driver.CodeOf(err) == driver.CodeConflict:
		return Result{Object: o, Err: timed(o, nil)}
	case err != nil:
		return Result{Err: err}
	}
	if w, ok := s.Storage.(Waker); ok && c.Wake {
		w.Wake(key, c.Next)
	}
	written := c.Old.Written
	if !written.IsZero() {
		written = c.Old.Now // so that its grants have the expiry time of the change
	}
	return Result{Object: Object{Data: c.Data, Version: o.Version, Now: c.Old.Now, Written: written}}
}

// timed returns an error if a record that was read has no time.
func timed(o Object, err error) error {
	if err == nil && o.Now.IsZero() {
		return driver.Errorf(driver.CodeRefused, "the storage has returned no time of its clock")
	}
	return err
}

// List implements [Batch].
func (s single) List(ctx context.Context, prefix string) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		for entry, err := range s.Storage.List(ctx, prefix) {
			entry.Data = entry.Data[min(prefixBytes, len(entry.Data)):]
			if !yield(entry, timed(entry.Object, err)) {
				return
			}
		}
	}
}

// Checks implements driver.Examiner if the storage does. Otherwise it returns none.
func (s *store) Checks() []driver.Check {
	if e, ok := s.storage.(driver.Examiner); ok {
		return e.Checks()
	}
	return nil
}

// Examine implements driver.Examiner if the storage does. Otherwise it finds nothing.
func (s *store) Examine(ctx context.Context) ([]driver.Finding, error) {
	if e, ok := s.storage.(driver.Examiner); ok {
		return e.Examine(ctx)
	}
	return nil, nil
}
