package holdfast

import (
	"context"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/holdfast-go/holdfast/driver"
)

// Defaults and limits of the options.
const (
	DefaultTTL            = 30 * time.Second
	MinTTL                = 50 * time.Millisecond
	MaxTTL                = 24 * time.Hour
	MaxLimit              = driver.MaxLimit
	MaxReason             = 512 // bytes
	DefaultDrain          = time.Minute
	DefaultRequestTimeout = 5 * time.Second
	MaxSticky             = time.Hour
)

// LockOption is an option of one lock.
type LockOption func(*settings)

// settings are the options of one lock, resolved. They no longer change, so that
// the locks of one call, or of no option, share them.
type settings struct {
	ttl, wait, minHold, maxHold, margin time.Duration
	drain                               time.Duration
	waitCtx                             context.Context
	sticky                              time.Duration
	hasWait, hasMaxHold, hasMargin      bool
	hasTTL                              bool
	limit                               int
	shared, hasLimit, reentrant         bool
	reason                              string
	// job is the name that Every was called with, for a lock of a tick. Errors have this name, and
	// Close does not wait for the MinHold.
	job string
}

// TTL sets for how long the store keeps the lock without renewal, and so for how
// long a crashed holder blocks others. The lock is renewed every third of it, and sometimes
// sooner, so that many clients do not renew in step. Default 30 s, from 50 ms to 24 h; if the
// store does not allow 30 s, the default is the nearest TTL that it allows. Stores whose locks end with the process ignore it.
func TTL(d time.Duration) LockOption {
	return func(s *settings) { s.ttl, s.hasTTL = d, true }
}

// Wait limits the waiting. The context of the call limits both the waiting and the work;
// see also [WaitContext]. Default: wait until the context ends.
func Wait(d time.Duration) LockOption {
	return func(s *settings) { s.wait, s.hasWait = d, true }
}

// WaitContext limits the waiting by a context of its own: it ends when ctx or the
// context of the call ends. The lock's context derives from the context of the call
// alone. So a service can stop waiting at SIGTERM, and finish what it has begun:
//
//	err := locker.Do(context.WithoutCancel(ctx), name, f, holdfast.WaitContext(ctx))
//
// A nil context has no effect. Default: none.
func WaitContext(ctx context.Context) LockOption {
	return func(s *settings) { s.waitCtx = ctx }
}

// Drain sets for how long the lock is renewed after the end of the caller's context. In that
// time the work can come to an orderly end, and the store grants the name to no other holder.
// Unlock ends the lock at once. The schedule finds the end of the context at the next renewal, so d
// can become longer by a third of the TTL; then the lease expires after its TTL. Default 1 min,
// from 0 to 24 h. 0 ends the renewal with the context.
//
// Drain is about the end of the caller's context alone. After a loss there is nothing to
// renew, and MaxHold and Close end the lock at once. See [DrainContext] for work that
// has to be done in that time.
func Drain(d time.Duration) LockOption { return func(s *settings) { s.drain = d } }

// MinHold keeps the lock for at least d after it was granted, even if it is unlocked
// earlier. So a job that takes a second on one replica is not run again by the next
// replica, whose clock is a little behind. Default 0, at most 24 h. If the store cannot
// keep the lock by itself, the Locker does, and Close waits.
func MinHold(d time.Duration) LockOption { return func(s *settings) { s.minHold = d } }

// MaxHold ends the lock's context with [ErrHoldLimit] after d, and stops its renewal. Which waiter
// is next depends on the store's order of waiters; see also [Locker.Lead]. Default: no limit.
func MaxHold(d time.Duration) LockOption {
	return func(s *settings) { s.maxHold, s.hasMaxHold = d, true }
}

// Sticky lets the Locker keep the lock at the store for up to d after its last Unlock, while no other client wants it.
// The next Lock or TryLock of this Locker for the name, with the same TTL, then takes it with the next fencing token,
// without a request to the store. Default 0: the store gets each release. d is at most 1 h.
//
// Use it where one process locks the same names again and again, and others want them seldom: its shards, its
// tenants, its devices. A request that waits in another process is the recall: the Locker hears of it, as for
// [Lock.Wanted], and releases the lock at once, or with the next last Unlock if it is locked again. The Locker also
// releases it when d is over, when a request of its own has another TTL, Shared or Limit, and at Close. A grant
// serves up to 65 locks (LocalHandoff sets the number), and fewer if the store has reserved fewer tokens. A MinHold
// that is not over comes first; the lock is then not kept.
//
// The price:
//
//   - Other clients see the name as held until it is released. Their TryLock gets ErrBusy, and does not
//     recall it; nor does that of this Locker at the moment when it gives the lock back. Inspect shows this process as
//     the holder. If this process was killed, is paused or is cut off from the store, others wait for the end of the
//     TTL.
//   - A lock of this process that begins before the recall has arrived overtakes the waiter. It makes no
//     request, so it may also begin on a grant that has just ended, by a break or a failover, and loses it then: see EarlyEnd
//     and Notice of [Guarantees].
//   - The Locker renews what it keeps, and watches each name from the first Unlock until the release: one read a
//     second and name, on Redis eleven short ones, and one for each change. So it is for hundreds of names of a
//     process, not for many thousands. On SQL session recipes each kept name has a connection. If a
//     request of this Locker waits for one, the Locker keeps nothing.
//   - The user of the store needs the right to inspect. Without it nothing is kept. If the processes use several users
//     of a database, each also has to see the waiters of the others: PROCESS on MySQL and MariaDB, pg_read_all_stats for
//     Pessimistic on PostgreSQL. Otherwise they recall nothing, and wait until the lock was not used for d, or until the
//     grant has served its locks. While the store cannot be read, a lock is kept for at most d after the first failure.
//
// Given to [Defaults], Sticky concerns all locks of the Locker, also those of packages that use it; Sticky(0) excepts one.
// The error matches ErrInvalid with Shared, with Limit above 1 or with a d out of its limits, and ErrUnsupported if the
// store reserves no tokens, does not show waiters or makes them poll (see Reserves, Visible and Wake of [Guarantees]), or
// with LocalHandoff(0). Lead and Every ignore Sticky: their locks are free when they end.
func Sticky(d time.Duration) LockOption {
	return func(s *settings) { s.sticky = d }
}

// Margin sets how long before the store's own deadline the lock counts as lost, because
// two clocks do not run at the same speed. Default a tenth of the TTL, at most half of
// it. With this option the lock has its whole validity from the start. Without it a lock
// that was waited for on Redis is valid for about two seconds until its first renewal, a
// few milliseconds later.
func Margin(d time.Duration) LockOption {
	return func(s *settings) { s.margin, s.hasMargin = d, true }
}

// Shared acquires the lock beside other shared holders, and never beside an exclusive
// one.
func Shared() LockOption { return func(s *settings) { s.shared = true } }

// Limit makes the lock a semaphore with n permits, 1 to 4096. Default 1, exclusive. One
// rule covers every mix on one name: a lock of limit n never stands beside more than
// n-1 others.
func Limit(n int) LockOption {
	return func(s *settings) { s.limit, s.hasLimit = n, true }
}

// Reentrant joins the lock that the context already holds, instead of returning
// [ErrSelfDeadlock]. The token is the same, and the last Unlock releases the lock.
func Reentrant() LockOption { return func(s *settings) { s.reentrant = true } }

// Reason sets a text that an inspection of the lock shows, at most 512 bytes.
func Reason(text string) LockOption { return func(s *settings) { s.reason = text } }

// Option is an option of a Locker.
type Option func(*config)

type config struct {
	defaults       []LockOption
	hooks          Hooks
	host, instance string
	namespace      string
	requestTimeout time.Duration
	handoff        int
	hasHandoff     bool
	base           *settings // the defaults, resolved
}

// Defaults sets options for every lock of the Locker. The options of a call come after
// them.
func Defaults(o ...LockOption) Option {
	return func(c *config) { c.defaults = append(c.defaults, o...) }
}

// WithHooks sets the hooks that receive the Locker's events; see [Hooks] and [LogHooks].
// If it is given twice, both are called, in order.
func WithHooks(h Hooks) Option {
	return func(c *config) {
		if h == nil {
			return
		}
		if c.hooks != nil {
			h = tee{c.hooks, h}
		}
		c.hooks = h
	}
}

// Process sets the name of this process that an inspection shows: its host, and the
// name of the instance, such as that of a pod. An empty host means the default, so that
// Process("", "web-1") sets the instance alone. Default: the host's name, and no
// instance. Each is valid UTF-8 of at most 255 bytes.
func Process(host, instance string) Option {
	return func(c *config) {
		if host != "" {
			c.host = host
		}
		c.instance = instance
	}
}

// Namespace separates two applications on one store. It is for Open; a store that is
// passed to New got its namespace when it was made. Default empty, at most 128 bytes.
func Namespace(ns string) Option { return func(c *config) { c.namespace = ns } }

// RequestTimeout sets the timeout of one request to the store. It is never more than a
// third of the lock's TTL. Default 5 s, from 10 ms to 5 min.
func RequestTimeout(d time.Duration) Option {
	return func(c *config) { c.requestTimeout = d }
}

// MaxHandoff is the largest argument of LocalHandoff.
const MaxHandoff = 1 << 16

// LocalHandoff hands an exclusive lease off from a goroutine that unlocks to the next
// waiter of the same Locker, without a request to the store. It does so at most max
// times in a row before waiters of other processes are served. 0 turns it off, at most
// 65,536.
//
// Default: where the store reserves tokens (see driver.Guarantees), 64 times, and only within
// 5 ms of the store's grant. Short holds then cost no request, and waiters of other processes
// lose little. Each hold has a new, larger token. With this option there is no limit of time
// there. Elsewhere the default is off, and a handoff keeps the token: a write that a goroutine
// sends after its Unlock is not refused in favour of the next goroutine's.
func LocalHandoff(max int) Option {
	return func(c *config) { c.handoff, c.hasHandoff = max, true }
}

func (c *config) check() error {
	if err := driver.CheckNamespace(c.namespace); err != nil {
		return invalid("%w", err)
	}
	if d := c.requestTimeout; d < 10*time.Millisecond || d > 5*time.Minute {
		return invalid("RequestTimeout(%s): from 10ms to 5m is allowed", d)
	}
	if c.handoff < 0 || c.handoff > MaxHandoff {
		return invalid("LocalHandoff(%d): from 0 to %d is allowed", c.handoff, MaxHandoff)
	}
	for field, s := range map[string]string{"host": c.host, "instance": c.instance} {
		if err := checkWords("Process "+field, s, 255); err != nil {
			return err
		}
	}
	var err error
	c.base, err = c.resolve(nil)
	return err
}

// resolve combines the options of a call with the defaults, and checks them.
func (c *config) resolve(opts []LockOption) (*settings, error) {
	if len(opts) == 0 && c.base != nil {
		return c.base, nil
	}
	s := &settings{ttl: DefaultTTL, drain: DefaultDrain, limit: driver.Exclusive}
	for _, o := range c.defaults {
		o(s)
	}
	for _, o := range opts {
		o(s)
	}
	if err := s.check(); err != nil {
		return nil, err
	}
	if s.shared {
		s.limit = driver.Unlimited
	}
	return s, nil
}

func (s *settings) check() error {
	switch {
	case s.ttl < MinTTL || s.ttl > MaxTTL:
		return invalid("TTL(%s): from %s to %s is allowed", s.ttl, MinTTL, MaxTTL)
	case s.hasWait && s.wait <= 0:
		return invalid("Wait(%s): more than 0 is allowed; use TryLock or TryDo not to wait", s.wait)
	case s.minHold < 0 || s.minHold > MaxTTL:
		return invalid("MinHold(%s): from 0 to %s is allowed", s.minHold, MaxTTL)
	case s.drain < 0 || s.drain > MaxTTL:
		return invalid("Drain(%s): from 0 to %s is allowed", s.drain, MaxTTL)
	case s.hasMaxHold && s.maxHold <= 0:
		return invalid("MaxHold(%s): more than 0 is allowed", s.maxHold)
	case s.hasMaxHold && s.minHold > s.maxHold:
		return invalid("MinHold(%s) is longer than MaxHold(%s)", s.minHold, s.maxHold)
	case s.sticky < 0 || s.sticky > MaxSticky:
		return invalid("Sticky(%s): 0 to %s is allowed", s.sticky, MaxSticky)
	case s.sticky > 0 && s.shared:
		return invalid("Sticky(%s) and Shared given together: only an exclusive lock can be kept", s.sticky)
	case s.sticky > 0 && s.limit != driver.Exclusive:
		return invalid("Sticky(%s) and Limit(%d) given together: only an exclusive lock can be kept", s.sticky, s.limit)
	case s.shared && s.hasLimit:
		return invalid("Shared and Limit(%d) given together: shared has no limit", s.limit)
	case s.limit < 1 || s.limit > MaxLimit:
		return invalid("Limit(%d): from 1 to %d is allowed", s.limit, MaxLimit)
	}
	if err := s.checkMargin(); err != nil {
		return err
	}
	return checkWords("Reason", s.reason, MaxReason)
}

func (s *settings) checkMargin() error {
	if s.hasMargin && (s.margin < 0 || s.margin > s.ttl/2) {
		return invalid("Margin(%s): from 0 to half the TTL, %s, is allowed", s.margin, s.ttl/2)
	}
	return nil
}

func checkWords(field, text string, most int) error {
	switch {
	case len(text) > most:
		return invalid("%s is %d bytes long: at most %d are allowed", field, len(text), most)
	case !utf8.ValidString(text):
		return invalid("%s %q is not valid UTF-8", field, text)
	case strings.ContainsRune(text, 0):
		return invalid("%s %q contains a NUL byte", field, text)
	}
	return nil
}

func checkName(name string) error {
	if err := driver.CheckName(name); err != nil {
		return invalid("%w", err)
	}
	return nil
}

// forStore returns the settings for a store, or an error if the store cannot do what the
// options require. A TTL that the caller has not set becomes the nearest one that the
// store allows.
func (s *settings) forStore(g *driver.Guarantees) (*settings, error) {
	if allowed := min(max(s.ttl, g.MinTTL), g.MaxTTL); !s.hasTTL && g.MaxTTL > 0 && s.ttl != allowed {
		nearest := *s
		nearest.ttl = allowed
		s = &nearest
		if err := s.checkMargin(); err != nil {
			return nil, err
		}
	}
	semaphore := s.limit > driver.Exclusive && s.limit < driver.Unlimited
	switch {
	case s.shared && !g.Shared:
		return nil, &failure{kind: ErrUnsupported, err: fmt.Errorf("the %s store has no shared locks", g.Kind)}
	case semaphore && !g.Semaphore:
		return nil, &failure{kind: ErrUnsupported, err: fmt.Errorf("the %s store has no semaphores: Limit(%d)", g.Kind, s.limit)}
	case g.MaxTTL > 0 && (s.ttl < g.MinTTL || s.ttl > g.MaxTTL):
		return nil, invalid("TTL(%s): the %s store allows %s to %s", s.ttl, g.Kind, g.MinTTL, g.MaxTTL)
	}
	return s, nil
}
