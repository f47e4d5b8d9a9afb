package record

import (
	"context"
	"iter"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// Storage keeps records by their keys. A key is UTF-8 text of at most [MaxKey] bytes, and contains
// NUL bytes. Keys compare byte by byte. A Storage never removes a record, not by a TTL or a lifecycle rule
// either. All methods are safe for concurrent use, and return soon after their context ends. Their errors carry
// a [driver.Code].
type Storage interface {
	// Get returns the record of a key. It reads after it was called, and sees every Put that was
	// confirmed before. It returns no write that can still be lost. An error means that nothing was read. Its
	// code is CodeRefused if a retry does not help. Every other code counts as CodeUnavailable.
	Get(ctx context.Context, key string) (Object, error)
	// Put writes the record of a key if its version is still the given one, in one atomic step, and
	// returns the new version. The version "" means that there is no record. A version may be a hash
	// of the data, because the engine never writes the same data twice.
	//
	// The code of an error is CodeConflict if the record has another version, and CodeUnavailable or
	// CodeRefused if nothing was written and nothing can be written later. Every other code means
	// that the record may have been written, or may be written later. A client library should not repeat a
	// Put by itself: the second one conflicts with the first. After a conflict the engine reads the record,
	// and recognises its own write, unless another one has replaced it. A version that the storage has not
	// made is a conflict.
	Put(ctx context.Context, key string, data []byte, version string) (string, error)
	// List yields the records whose keys begin with prefix, in any order, and each key once. An error ends the
	// list. Now is needed, and no Version.
	List(ctx context.Context, prefix string) iter.Seq2[Entry, error]
	// Close closes what the storage has opened. The engine calls it once, after all other calls.
	Close() error
}

// Limits of keys and of the data of values, in bytes. The data of a lock grow with its holders, by some 200
// bytes and the reason for each, and are longer than MaxData from some 2,500 holders. A storage with a lower limit
// refuses longer data.
const (
	MaxKey  = 700
	MaxData = driver.MaxValue + prefixBytes
)

// Object is a record as a storage has read it.
type Object struct {
	Data []byte
	// Version changes with every write of the record, and never names two states of a key, also after a removal,
	// a restore or a failover. A bare counter does not give that. It is "" if there is no record.
	Version string
	// Now is the time at which the storage has read the record, by its own clock.
	Now time.Time
	// Written is when the storage wrote the record, by its own clock. A storage sets it if Now may be older than the
	// read, for example a header that a server makes once a second: a grant then lasts from Written. Without a
	// record it is Now.
	Written time.Time
	// Floor is at least every token of removed records of this key. It is 0 if the storage is no [Sweeper].
	Floor uint64
}

// Entry is a record in a list.
type Entry struct {
	Key string
	Object
}

// Batch is what the engine needs of a storage. [New] makes one of a [Storage], and stores that can write and
// read in one round trip implement it themselves.
type Batch interface {
	// Exchange applies the changes, and then reads the records of the keys. Each change is a Put,
	// and a change that conflicts has no effect. The results have the order of the keys. Changes and
	// keys are in ascending order, and the key of every change is among the keys.
	//
	// With several keys, a missing record needs only its empty version: the engine then creates no
	// record, and no change has Wake.
	Exchange(ctx context.Context, changes []Change, keys []string) []Result
	// List and Close are those of a Storage.
	List(ctx context.Context, prefix string) iter.Seq2[Entry, error]
	Close() error
}

// Result is a record that was read, or Err. The code of Err is CodeUnknown if the record may have been written by
// a change of the same call and was not read afterwards, or if it may be written later. A read proves that it
// cannot be written later only if it shows another version than Old.
type Result struct {
	Object
	Err error
}

// Change replaces the record that was read as Old.
type Change struct {
	Key  string
	Old  Object
	Data []byte
	// Deadline is the time, by the storage's clock, from which the change must have no effect. It is at most
	// ApplyTime after the read.
	Deadline time.Time
	// Token and Expires repeat the last token in Data and the last expiry time of a grant, for
	// storages with columns for them.
	Token   uint64
	Expires time.Time
	// Wake reports that the change may let a waiter get a grant: the request with the ID Next, or any one if it is "".
	Wake bool
	Next string
}

// ApplyTime limits the time between a read and a change that was decided on it.
const ApplyTime = 30 * time.Second

// Sweeper is implemented by a [Batch] that removes records without grants. Before it removes a record
// it makes its last token a Floor of the key. It removes only records that were unchanged for at
// least idle, which is longer than ApplyTime. So no late change finds a record missing that was there
// when the client decided on the change.
type Sweeper interface {
	Sweep(ctx context.Context, idle time.Duration) error
}

// Watcher is implemented by storages that can report changes. Without it, the engine notifies waiters of the
// same engine alone.
type Watcher interface {
	// Watch calls changed with the key of each record whose change may let a waiter get a grant, and with the ID of
	// that request, or "" if it does not know the ID. It calls changed with two empty strings when it has begun to
	// watch, and when it may have missed changes. Until it has begun, waiters poll. It returns when ctx ends, or with an
	// error. The engine calls it while there are waiters, and again after an error, unless the error has
	// CodeUnsupported. changed does not block.
	Watch(ctx context.Context, changed func(key, id string)) error
}

// Waker is implemented by a [Watcher] whose storage does not report changes: the client that makes one does.
type Waker interface {
	// Wake notifies the watchers of all clients that the record of a key has changed, and passes the ID to them. The
	// engine calls it after a Put that may let a waiter get a grant. It does not block, and the notification may get
	// lost.
	Wake(key, id string)
}
