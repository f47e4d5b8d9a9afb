package holdfast

import (
	"context"
	"errors"
	"slices"
	"time"
)

// Do waits for the lock, runs f with the lock's context, and releases the lock, even
// if f panics. If the lock could not be acquired, f has not run. If the lock was lost,
// Do returns a *LostError even if f returned nil; it wraps the error of f. A release
// that could not be confirmed is not an error: the work is done, and hooks report it.
func (l *Locker) Do(ctx context.Context, name string, f func(context.Context) error, o ...LockOption) error {
	k, err := l.Lock(ctx, name, o...)
	if err != nil {
		return err
	}
	return k.do(f)
}

// TryDo does the same as Do without waiting. It returns false and nil if another holder
// has the lock.
func (l *Locker) TryDo(ctx context.Context, name string, f func(context.Context) error, o ...LockOption) (ran bool, err error) {
	k, err := l.TryLock(ctx, name, o...)
	if err != nil {
		if errors.Is(err, ErrBusy) {
			err = nil
		}
		return false, err
	}
	return true, k.do(f)
}

// DoAll does the same as Do for several names; see LockAll.
func (l *Locker) DoAll(ctx context.Context, names []string, f func(context.Context) error, o ...LockOption) error {
	k, err := l.LockAll(ctx, names, o...)
	if err != nil {
		return err
	}
	return k.do(f)
}

// LockAll acquires several names, all or none, in byte order, so that two callers
// cannot wait for each other. A name given twice is acquired once. Wait limits the
// whole. The context of the lock ends with the first loss of any of them.
func (l *Locker) LockAll(ctx context.Context, names []string, o ...LockOption) (*Lock, error) {
	if len(names) == 0 {
		return nil, invalid("LockAll without a name")
	}
	names = slices.Clone(names)
	slices.Sort(names)
	names = slices.Compact(names)
	for _, name := range names {
		if err := checkName(name); err != nil {
			return nil, err
		}
	}
	s, err := l.cfg.resolve(o)
	if err != nil {
		return nil, err
	}
	deadline := time.Now().Add(s.wait)

	var under []*Lock
	complete := false
	defer func() {
		if complete {
			return
		}
		for _, k := range slices.Backward(under) {
			k.discard() // LockAll gets all locks or none, also if a hook has ended this goroutine
		}
	}()
	inner := ctx
	for i, name := range names {
		acquire := l.Lock
		if left := time.Until(deadline); s.hasWait && left > 0 {
			o = append(o[:len(o):len(o)], Wait(left))
		} else if s.hasWait {
			acquire = l.TryLock // time is up: a free name is still acquired
		}
		k, err := acquire(inner, name, o...)
		if err == nil && inner.Err() != nil {
			k.discard()
			err = &failure{name: name, store: l.where, err: contextError(inner)}
		}
		if err != nil {
			return nil, err
		}
		if i == len(names)-1 {
			k.under, complete = under, true
			return k, nil
		}
		under = append(under, k)
		inner = k.Context()
	}
	return nil, nil // not reached: names is not empty
}
