package holdfast_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/must"
	"github.com/holdfast-go/holdfast/memstore"
)

// noRequests returns a store that must not get a request.
func noRequests(t *testing.T) *fake {
	return &fake{Store: memstore.New(), OnAcquire: func(context.Context, driver.Request) (driver.Grant, error) {
		t.Error("bad input reached the store")
		return driver.Grant{}, errors.New("no")
	}}
}

// TestInvalidInputIsRefusedBeforeIO: each error names the field, its value, and what is
// allowed.
func TestInvalidInputIsRefusedBeforeIO(t *testing.T) {
	l := newLocker(t, noRequests(t))
	for _, tc := range []struct {
		name string
		opts []holdfast.LockOption
		want string
	}{
		{"", nil, "name is empty"},
		{strings.Repeat("x", 513), nil, "name is 513 bytes long: at most 512"},
		{"a\x00b", nil, "NUL"},
		{"a\xff", nil, "not valid UTF-8"},
		{"a", opts(holdfast.TTL(0)), "TTL(0s): from 50ms to 24h0m0s is allowed"},
		{"a", opts(holdfast.TTL(-time.Second)), "TTL(-1s)"},
		{"a", opts(holdfast.TTL(time.Microsecond)), "TTL(1µs)"},
		{"a", opts(holdfast.TTL(25 * time.Hour)), "TTL(25h0m0s)"},
		{"a", opts(holdfast.Limit(0)), "Limit(0): from 1 to 4096"},
		{"a", opts(holdfast.Limit(-1)), "Limit(-1)"},
		{"a", opts(holdfast.Limit(4097)), "Limit(4097)"},
		{"a", opts(holdfast.Limit(2), holdfast.Shared()), "Shared and Limit(2)"},
		{"a", opts(holdfast.Wait(0)), "Wait(0s): more than 0"},
		{"a", opts(holdfast.Wait(-1)), "Wait(-1ns)"},
		{"a", opts(holdfast.MinHold(-1)), "MinHold(-1ns)"},
		{"a", opts(holdfast.MinHold(48 * time.Hour)), "MinHold(48h0m0s)"},
		{"a", opts(holdfast.MaxHold(0)), "MaxHold(0s)"},
		{"a", opts(holdfast.MinHold(time.Minute), holdfast.MaxHold(time.Second)), "MinHold(1m0s) is longer than MaxHold(1s)"},
		{"a", opts(holdfast.Sticky(-1)), "Sticky(-1ns): 0 to 1h0m0s is allowed"},
		{"a", opts(holdfast.Sticky(2 * time.Hour)), "Sticky(2h0m0s)"},
		{"a", opts(holdfast.Sticky(time.Second), holdfast.Shared()), "Sticky(1s) and Shared"},
		{"a", opts(holdfast.Sticky(time.Second), holdfast.Limit(2)), "Sticky(1s) and Limit(2)"},
		{"a", opts(holdfast.Margin(-1)), "Margin(-1ns)"},
		{"a", opts(holdfast.Margin(16 * time.Second)), "half the TTL, 15s"},
		{"a", opts(holdfast.Reason(strings.Repeat("x", 513))), "Reason is 513 bytes"},
		{"a", opts(holdfast.Reason("\xff")), "Reason"},
		{"a", opts(holdfast.Reason("\x00")), "NUL"},
	} {
		for what, err := range map[string]error{
			"Lock":    second(l.Lock(bg, tc.name, tc.opts...)),
			"TryLock": second(l.TryLock(bg, tc.name, tc.opts...)),
			"LockAll": second(l.LockAll(bg, []string{"ok", tc.name}, tc.opts...)),
		} {
			if !errors.Is(err, holdfast.ErrInvalid) || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%s(%.10q): %v; want %q", what, tc.name, err, tc.want)
			}
		}
	}
	for what, err := range map[string]error{
		"Inspect":     second(l.Inspect(bg, "")),
		"Break name":  l.Break(bg, "", 1),
		"Break zero":  l.Break(bg, "a", 0),
		"Break large": l.Break(bg, "a", 1<<63),
		"List":        listError(l, "\xff"),
		"Watch":       watchError(l, "\x00"),
	} {
		if !errors.Is(err, holdfast.ErrInvalid) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func opts(o ...holdfast.LockOption) []holdfast.LockOption { return o }

func listError(l *holdfast.Locker, prefix string) error {
	for _, err := range l.List(bg, prefix) {
		return err
	}
	return nil
}

func watchError(l *holdfast.Locker, name string) error {
	for _, err := range l.Watch(bg, name) {
		return err
	}
	return nil
}

func TestInvalidLockerOptionsAreRefused(t *testing.T) {
	s := memstore.New()
	for want, err := range map[string]error{
		"store is nil":         second(holdfast.New(nil)),
		"Namespace(\"x\")":     second(holdfast.New(s, holdfast.Namespace("x"))),
		"RequestTimeout(0s)":   second(holdfast.New(s, holdfast.RequestTimeout(0))),
		"RequestTimeout(1h0m":  second(holdfast.New(s, holdfast.RequestTimeout(time.Hour))),
		"TTL(1ns)":             second(holdfast.New(s, holdfast.Defaults(holdfast.TTL(1)))),
		"LocalHandoff(-1)":     second(holdfast.New(s, holdfast.LocalHandoff(-1))),
		"Process host":         second(holdfast.New(s, holdfast.Process(strings.Repeat("h", 256), ""))),
		"Process instance":     second(holdfast.New(s, holdfast.Process("h", "\xff"))),
		"namespace is 129":     second(holdfast.Open(bg, "memory://", holdfast.Namespace(strings.Repeat("n", 129)))),
		"no scheme":            second(holdfast.Open(bg, "/var/lock")),
		"unknown scheme":       second(holdfast.Open(bg, "redsi://h")),
		"linked: memory":       second(holdfast.Open(bg, "redsi://h")),
		"holdfast/filestore\"": second(holdfast.Open(bg, "file:///tmp/x")),
		`_ "github.com/holdfast-go/holdfast/redisstore/redlock"`: second(holdfast.Open(bg, "redlock://a?node=b")),
		`_ "github.com/holdfast-go/holdfast/etcdstore"`:          second(holdfast.Open(bg, "etcds://a")),
		"memory:// and nothing":                                  second(holdfast.Open(bg, "memory://host")),
	} {
		if !errors.Is(err, holdfast.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v; want %q", err, want)
		}
	}
	// No error contains a password, however broken the URL is.
	for _, url := range []string{"redis://user:sEcret@h:port/", "redis://user:sEcret@[h", "://user:sEcret@h", "re dis://user:sEcret@h", "user:sEcret@h", "memory://user:sEcret@h", "memory://?password=sEcret", "nope://user:sEcret@h", "redis://u:sEcret%zz@h"} {
		_, err := holdfast.Open(bg, url)
		if err == nil || strings.Contains(err.Error(), "sEcret") {
			t.Errorf("%v", err)
		}
	}
}

func TestOpenUsesOptionsAndOwnsStore(t *testing.T) {
	l, err := holdfast.Open(bg, "memory://", holdfast.Namespace("app"), holdfast.Defaults(holdfast.TTL(time.Second), holdfast.Limit(2)))
	must.Succeed(t, err)
	k := mustLock(t, l, "a")
	if k.Slot() != 0 || k.Remaining() > time.Second {
		t.Errorf("the defaults were not used: slot %d, %s", k.Slot(), k.Remaining())
	}
	g, err := l.Guarantees(bg)
	if err != nil || g.Kind != "memory" {
		t.Errorf("%+v, %v", g, err)
	}
	must.Succeed(t, l.Close(bg))
	if _, err := l.Inspect(bg, "a"); !errors.Is(err, holdfast.ErrClosed) {
		t.Errorf("Close has not closed the store of Open: %v", err)
	}
}

// bare is a store with only those methods that driver.Store requires.
type bare struct{ s driver.Store }

func (b bare) String() string { return "bare" }
func (b bare) Guarantees(ctx context.Context) (driver.Guarantees, error) {
	g, err := b.s.Guarantees(ctx)
	g.Kind, g.Shared, g.Semaphore, g.MinTTL, g.MaxTTL = "bare", false, false, time.Second, time.Minute
	return g, err
}
func (b bare) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	return b.s.Acquire(ctx, r)
}
func (b bare) Undo(ctx context.Context, r driver.Request) error { return b.s.Undo(ctx, r) }
func (b bare) Renew(ctx context.Context, g []driver.Grant) []driver.Renewal {
	return b.s.Renew(ctx, g)
}
func (b bare) Release(ctx context.Context, g driver.Grant, d time.Duration) error {
	return b.s.Release(ctx, g, d)
}
func (b bare) Classify(err error) driver.Code  { return b.s.Classify(err) }
func (b bare) Close(ctx context.Context) error { return b.s.Close(ctx) }

func TestUnsupportedCallsAreRefused(t *testing.T) {
	l := newLocker(t, bare{memstore.New()}, holdfast.WithHooks(&recorder{})) // a hook sees refused requests, too
	for what, err := range map[string]error{
		"Shared":  second(l.Lock(bg, "a", holdfast.Shared())),
		"Limit":   second(l.TryLock(bg, "a", holdfast.Limit(2))),
		"Inspect": second(l.Inspect(bg, "a")),
		"Break":   l.Break(bg, "a", 1),
		"List":    listError(l, ""),
		"Watch":   watchError(l, "a"),
	} {
		if !errors.Is(err, holdfast.ErrUnsupported) {
			t.Errorf("%s: %v", what, err)
		}
	}
	for _, ttl := range []time.Duration{500 * time.Millisecond, time.Hour} {
		if _, err := l.Lock(bg, "a", holdfast.TTL(ttl)); !errors.Is(err, holdfast.ErrInvalid) || !strings.Contains(err.Error(), "bare store allows 1s to 1m0s") {
			t.Error(err)
		}
	}
	unlock(t, mustLock(t, l, "a", holdfast.Limit(1)))
}

// TestDefaultTTLAdaptsToTheStore: a lock without the option TTL gets the TTL nearest to the
// default that the store allows. A TTL that the caller gives is never changed.
func TestDefaultTTLAdaptsToTheStore(t *testing.T) {
	for _, c := range []struct {
		name     string
		min, max time.Duration
		o        []holdfast.LockOption
		want     time.Duration // 0: refused
	}{
		{"the store allows the default", time.Second, time.Hour, nil, holdfast.DefaultTTL},
		{"the store allows less", time.Second, 12 * time.Second, nil, 12 * time.Second},
		{"the store demands more", time.Minute, time.Hour, nil, time.Minute},
		{"a shorter one is given", time.Second, 12 * time.Second, []holdfast.LockOption{holdfast.TTL(5 * time.Second)}, 5 * time.Second},
		{"a longer one is given", time.Second, 12 * time.Second, []holdfast.LockOption{holdfast.TTL(holdfast.DefaultTTL)}, 0},
		{"the margin is too long for it", time.Second, 12 * time.Second, []holdfast.LockOption{holdfast.Margin(7 * time.Second)}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLocker(t, altered(memstore.New(), func(g *driver.Guarantees) { g.MinTTL, g.MaxTTL = c.min, c.max }))
				for _, take := range []func(context.Context, string, ...holdfast.LockOption) (*holdfast.Lock, error){l.Lock, l.TryLock} {
					k, err := take(t.Context(), "n", c.o...)
					if c.want == 0 {
						if !errors.Is(err, holdfast.ErrInvalid) {
							t.Errorf("%v, want invalid", err)
						}
						continue
					}
					must.Succeed(t, err)
					if got := k.Remaining(); got != c.want-c.want/10 {
						t.Errorf("valid for %s, want the TTL of %s less the margin", got, c.want)
					}
					must.Report(t, k.Unlock())
				}
			})
		})
	}
}
