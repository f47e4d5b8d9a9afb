package holdfast

import (
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
	DefaultRequestTimeout = 5 * time.Second
)

// LockOption says how one lock is taken.
type LockOption interface{ apply(*settings) }

type lockOption func(*settings)

func (o lockOption) apply(s *settings) { o(s) }

// settings are the options of one lock, resolved.
type settings struct {
	ttl, wait, minHold, maxHold, margin time.Duration
	hasWait, hasMaxHold, hasMargin      bool
	limit                               int
	shared, hasLimit, reentrant         bool
	reason                              string
}

// TTL is how long the store keeps the lock when nobody renews it: what a crash
// costs the next holder. The lock is renewed every third of it. Default 30 s,
// from 50 ms to 24 h. Stores whose locks end with the process have no use for
// it.
func TTL(d time.Duration) LockOption { return lockOption(func(s *settings) { s.ttl = d }) }

// Wait bounds the waiting; the context bounds both the waiting and the hold.
// Default: wait until the context ends.
func Wait(d time.Duration) LockOption {
	return lockOption(func(s *settings) { s.wait, s.hasWait = d, true })
}

// MinHold keeps the lock that long after it was granted, even when it is
// unlocked earlier: a job that finishes in a second on one replica is not run
// again by the next, whose clock is a little behind. Default 0, at most 24 h.
// Where the store cannot keep it by itself the Locker does, and Close waits.
func MinHold(d time.Duration) LockOption { return lockOption(func(s *settings) { s.minHold = d }) }

// MaxHold ends the lock's context with [ErrHoldLimit] that long after the grant
// and stops renewing it. Default: no limit.
func MaxHold(d time.Duration) LockOption {
	return lockOption(func(s *settings) { s.maxHold, s.hasMaxHold = d, true })
}

// Margin is how long before the store's own deadline the lock counts as lost,
// for the difference between two clocks' speeds. Default a tenth of the TTL,
// at most half of it.
func Margin(d time.Duration) LockOption {
	return lockOption(func(s *settings) { s.margin, s.hasMargin = d, true })
}

// Shared takes the lock beside other shared holders and never beside an
// exclusive one.
func Shared() LockOption { return lockOption(func(s *settings) { s.shared = true }) }

// Limit makes the lock a semaphore: at most n hold it together, 1 to 4096.
// Default 1, exclusive. The rule holds for every mix on one name: a lock of
// limit n never stands beside more than n-1 others.
func Limit(n int) LockOption {
	return lockOption(func(s *settings) { s.limit, s.hasLimit = n, true })
}

// Reentrant joins the lock that the context already holds instead of answering
// [ErrSelfDeadlock]: same token, counted, released by the last Unlock.
func Reentrant() LockOption { return lockOption(func(s *settings) { s.reentrant = true }) }

// Reason is shown to people who ask who holds the lock. At most 512 bytes.
func Reason(text string) LockOption { return lockOption(func(s *settings) { s.reason = text }) }

// Option says how a Locker behaves.
type Option interface{ applyTo(*config) }

type option func(*config)

func (o option) applyTo(c *config) { o(c) }

type config struct {
	defaults       []LockOption
	hooks          Hooks
	host, instance string
	namespace      string
	requestTimeout time.Duration
	handoff        int
	base           settings // the defaults, resolved
}

// Defaults gives every lock of the Locker these options first.
func Defaults(o ...LockOption) Option {
	return option(func(c *config) { c.defaults = append(c.defaults, o...) })
}

// WithHooks reports what the Locker does; see [Hooks] and [LogHooks]. Given
// twice, both are called, in order.
func WithHooks(h Hooks) Option {
	return option(func(c *config) {
		if h == nil {
			return
		}
		if c.hooks != nil {
			h = tee{c.hooks, h}
		}
		c.hooks = h
	})
}

// Process names this process to those who inspect a lock. Default: the host's
// name, and no instance.
func Process(host, instance string) Option {
	return option(func(c *config) { c.host, c.instance = host, instance })
}

// Namespace keeps two applications on one store apart. It is for Open; a store
// passed to New was given its namespace when it was made. Default empty, at
// most 128 bytes.
func Namespace(ns string) Option { return option(func(c *config) { c.namespace = ns }) }

// RequestTimeout bounds one request to the store; it is never more than a third
// of the lock's TTL. Default 5 s, from 10 ms to 5 min.
func RequestTimeout(d time.Duration) Option {
	return option(func(c *config) { c.requestTimeout = d })
}

// MaxHandoff is the most that LocalHandoff allows.
const MaxHandoff = 1 << 16

// LocalHandoff passes an exclusive grant from a goroutine that unlocks to the
// next of the same Locker that waits for it, without asking the store, at most
// max times in a row before other processes get their turn. Default 0: off, at
// most 65,536.
//
// It is fast, and it gives something up: the grant keeps its token, so a write
// that a goroutine sends after it has unlocked is not refused in favour of the
// next goroutine's.
func LocalHandoff(max int) Option { return option(func(c *config) { c.handoff = max }) }

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
	c.base, err = c.combine(nil)
	return err
}

// resolve puts the options together and checks them.
func (c *config) resolve(opts []LockOption) (settings, error) {
	if len(opts) == 0 {
		return c.base, nil
	}
	return c.combine(opts)
}

func (c *config) combine(opts []LockOption) (settings, error) {
	s := settings{ttl: DefaultTTL, limit: driver.Exclusive}
	for _, o := range c.defaults {
		o.apply(&s)
	}
	for _, o := range opts {
		o.apply(&s)
	}
	if err := s.check(); err != nil {
		return settings{}, err
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
	case s.hasMaxHold && s.maxHold <= 0:
		return invalid("MaxHold(%s): more than 0 is allowed", s.maxHold)
	case s.hasMaxHold && s.minHold > s.maxHold:
		return invalid("MinHold(%s) is longer than MaxHold(%s)", s.minHold, s.maxHold)
	case s.hasMargin && (s.margin < 0 || s.margin > s.ttl/2):
		return invalid("Margin(%s): from 0 to half the TTL, %s, is allowed", s.margin, s.ttl/2)
	case s.shared && s.hasLimit:
		return invalid("Shared and Limit(%d) given together: shared has no limit", s.limit)
	case s.limit < 1 || s.limit > MaxLimit:
		return invalid("Limit(%d): from 1 to %d is allowed", s.limit, MaxLimit)
	}
	return checkWords("Reason", s.reason, MaxReason)
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

// checkStore compares what is asked with what the store can do.
func (s *settings) checkStore(g *driver.Guarantees) error {
	semaphore := s.limit > driver.Exclusive && s.limit < driver.Unlimited
	switch {
	case s.shared && !g.Shared:
		return &failure{kind: ErrUnsupported, err: fmt.Errorf("the %s store has no shared locks", g.Kind)}
	case semaphore && !g.Semaphore:
		return &failure{kind: ErrUnsupported, err: fmt.Errorf("the %s store has no semaphores: Limit(%d)", g.Kind, s.limit)}
	case g.MaxTTL > 0 && (s.ttl < g.MinTTL || s.ttl > g.MaxTTL):
		return invalid("TTL(%s): the %s store allows %s to %s", s.ttl, g.Kind, g.MinTTL, g.MaxTTL)
	}
	return nil
}
