package holdfast

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/driver"
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

// Guarded writes one resource under one lock, with its token and a guard of package fence. [DoGuarded] makes it.
type Guarded[W any] struct {
	lock  *Lock
	raise func(ctx context.Context, resource string, token uint64) error
	write func(ctx context.Context, resource string, token uint64, write W) error
}

// Write calls the guard's Write. After a loss of the lock it returns the *LostError, and writes nothing.
func (g Guarded[W]) Write(ctx context.Context, write W) error {
	return g.call(func() error { return g.write(ctx, g.lock.Name(), g.lock.Token(), write) })
}

// Raise calls the guard's Raise. Call it before you read the resource outside of Write.
func (g Guarded[W]) Raise(ctx context.Context) error {
	return g.call(func() error { return g.raise(ctx, g.lock.Name(), g.lock.Token()) })
}

func (g Guarded[W]) call(guard func() error) error {
	if !g.lock.held() {
		return *g.lock.ended.Load()
	}
	return guard()
}

// DoGuarded does the same as Locker.Do, and gives f the means to write the resource of the same name: the guard
// refuses the write if a newer holder has written. W is the type of a write of the guard, such as
// fence.Func. Shared and Limit are invalid, because several holders have no order. A guarded
// update of SQL rows:
//
//	guard := fence.SQL{Dialect: fence.PostgreSQL}.Guard(db, nil)
//	err := holdfast.DoGuarded(ctx, locker, "account/7", guard,
//		func(ctx context.Context, account holdfast.Guarded[fence.Func]) error {
//			return account.Write(ctx, func(ctx context.Context) error {
//				_, err := fence.Tx(ctx).ExecContext(ctx, "UPDATE accounts SET ...")
//				return err
//			})
//		})
func DoGuarded[W any](ctx context.Context, l *Locker, name string, guard interface {
	Write(ctx context.Context, resource string, token uint64, write W) error
	Raise(ctx context.Context, resource string, token uint64) error
}, f func(ctx context.Context, g Guarded[W]) error, o ...LockOption) error {
	s, err := l.cfg.resolve(o)
	switch {
	case err != nil:
		return err
	case s.limit != driver.Exclusive:
		return invalid("DoGuarded(%q): Shared and Limit are not for a guarded resource", name)
	case guard == nil:
		return invalid("DoGuarded(%q): the guard is nil", name)
	}
	k, err := l.Lock(ctx, name, o...)
	if err != nil {
		return err
	}
	return k.do(func(ctx context.Context) error { return f(ctx, Guarded[W]{k, guard.Raise, guard.Write}) })
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
		for _, k := range slices.Backward(under) { // mutation: all-or-none
			k.discard() // LockAll gets all locks or none, also if a hook has ended this goroutine
		}
	}()
	inner := ctx
	for _, name := range names {
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
		under, inner = append(under, k), k.Context()
	}
	last := under[len(under)-1]
	last.under, complete = under[:len(under)-1], true
	return last, nil
}
