package holdfast

import (
	"context"
	"errors"
	"slices"
	"time"
)

// Do waits for the lock, runs f with the lock's context, and releases the lock,
// also when f panics. If the lock could not be taken f has not run. If it was
// lost the answer is a *LostError even when f returned nil; it wraps f's own
// error. A release that could not be confirmed is not an error: the work is
// done, and hooks report it.
func (l *Locker) Do(ctx context.Context, name string, f func(context.Context) error, o ...LockOption) error {
	k, err := l.Lock(ctx, name, o...)
	if err != nil {
		return err
	}
	return k.do(f)
}

// TryDo is Do without waiting: false and nil when someone else holds the lock.
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

// DoAll is Do for several names; see LockAll.
func (l *Locker) DoAll(ctx context.Context, names []string, f func(context.Context) error, o ...LockOption) error {
	k, err := l.LockAll(ctx, names, o...)
	if err != nil {
		return err
	}
	return k.do(f)
}

// LockAll takes several names, all or none, in byte order, so that two callers
// cannot wait for each other. A name given twice is taken once. Wait bounds the
// whole. The lock's context ends with the first loss of any of them.
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
	inner := ctx
	for i, name := range names {
		take := l.Lock
		if left := time.Until(deadline); s.hasWait && left > 0 {
			o = append(o[:len(o):len(o)], Wait(left))
		} else if s.hasWait {
			take = l.TryLock // time is up: what is free is still taken
		}
		k, err := take(inner, name, o...)
		if err == nil && inner.Err() != nil {
			k.discard()
			err = &failure{name: name, store: l.where, err: contextError(inner)}
		}
		if err != nil {
			for _, k := range slices.Backward(under) {
				k.discard() // what was not asked for in full is not kept
			}
			return nil, err
		}
		if i == len(names)-1 {
			k.under = under
			return k, nil
		}
		under = append(under, k)
		inner = k.Context()
	}
	return nil, nil // not reached: names is not empty
}
