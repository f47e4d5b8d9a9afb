package fence_test

import (
	"context"
	"errors"
	"math"
	"strconv"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/fence"
	"github.com/holdfast-go/holdfast/internal/must"
	"github.com/holdfast-go/holdfast/memstore"
)

var badTokens = []uint64{0, 1 << 63, math.MaxUint64}

var badResources = map[string]string{
	"empty":    "",
	"too long": strings.Repeat("x", 513),
	"not UTF8": "a\xff",
	"NUL":      "a\x00b",
}

// TestWriteAfterLossIsStale: after a loss the context has token 0. No newer holder has written yet, and the guard
// refuses the write all the same.
func TestWriteAfterLossIsStale(t *testing.T) {
	locker, err := holdfast.New(memstore.New())
	must.Succeed(t, err)
	defer locker.Close(context.Background())
	var guard fence.Memory
	_ = locker.Do(t.Context(), "a", func(ctx context.Context) error {
		token := holdfast.Token(ctx, "a")
		must.Succeed(t, locker.Break(t.Context(), "a", token))
		<-ctx.Done()
		err := guard.Write(t.Context(), "r", holdfast.Token(ctx, "a"), func(context.Context) error { return nil })
		if !errors.Is(err, fence.ErrStale) {
			t.Errorf("%v, want ErrStale", err)
		}
		return nil
	})
	if err := guard.Raise(t.Context(), "r", driver.MaxToken); errors.Is(err, fence.ErrStale) {
		t.Errorf("a token that is too large: %v", err)
	}
}

// TestDoGuardedWritesUnderItsToken: the write has the name and the token of the lock, a newer token refuses it, and a
// lost lock writes nothing.
func TestDoGuardedWritesUnderItsToken(t *testing.T) {
	locker, err := holdfast.New(memstore.New())
	must.Succeed(t, err)
	defer locker.Close(context.Background())
	var guard fence.Memory
	written := 0
	write := func(context.Context) error { written++; return nil }
	do := func(before func(token uint64), o ...holdfast.LockOption) error {
		return holdfast.DoGuarded(t.Context(), locker, "a", &guard, func(ctx context.Context, a holdfast.Guarded[fence.Func]) error {
			before(holdfast.Token(ctx, "a"))
			err := errors.Join(a.Raise(context.Background()), a.Write(context.Background(), write))
			if errors.Is(err, holdfast.ErrLost) {
				return nil // Do reports the loss
			}
			return err
		}, o...)
	}
	var token uint64
	if err := do(func(n uint64) { token = n }); err != nil || written != 1 {
		t.Errorf("%v, %d writes", err, written)
	}
	if newest, err := guard.Newest(t.Context(), "a"); newest != token || err != nil {
		t.Errorf("the guard has token %d, %v; want %d", newest, err, token)
	}
	err = do(func(token uint64) { _ = locker.Break(t.Context(), "a", token) })
	if !errors.Is(err, holdfast.ErrLost) || written != 1 {
		t.Errorf("after a loss: %v, %d writes", err, written)
	}
	err = do(func(token uint64) { _ = guard.Raise(t.Context(), "a", token+1) })
	if !errors.Is(err, fence.ErrStale) || written != 1 {
		t.Errorf("after a newer token: %v, %d writes", err, written)
	}
	for _, option := range []holdfast.LockOption{holdfast.Shared(), holdfast.Limit(2)} {
		if err := do(func(uint64) {}, option); !errors.Is(err, holdfast.ErrInvalid) {
			t.Errorf("a lock of several holders: %v", err)
		}
	}
}

// TestTokenErrorNamesTokenAndLimits: the error contains the token and the limits. It suggests
// a missing lock for token 0 only.
func TestTokenErrorNamesTokenAndLimits(t *testing.T) {
	for _, token := range badTokens {
		err := new(fence.Memory).Write(t.Context(), "r", token, func(context.Context) error {
			t.Errorf("token %d: the write ran", token)
			return nil
		})
		var te *fence.TokenError
		if !errors.Is(err, fence.ErrInvalid) || !errors.As(err, &te) || te.Token != token {
			t.Errorf("token %d: got %v, want a TokenError that wraps ErrInvalid", token, err)
			continue
		}
		if !strings.Contains(err.Error(), strconv.FormatUint(token, 10)) || !strings.Contains(err.Error(), "1 to 9223372036854775807") {
			t.Errorf("the message does not contain the token and the limits: %v", err)
		}
		if hint := strings.Contains(err.Error(), "no live lock"); hint != (token == 0) {
			t.Errorf("token %d: the message mentions a missing lock: %v: %v", token, hint, err)
		}
	}
}

func TestParseAcceptsOneFormOfEachToken(t *testing.T) {
	for s, want := range map[string]uint64{
		"1":                   1,
		"42":                  42,
		"9223372036854775807": 1<<63 - 1,
	} {
		if got, err := fence.Parse(s); got != want || err != nil {
			t.Errorf("Parse(%q) = %d, %v", s, got, err)
		}
	}
	for _, s := range []string{
		"", "0", "00", "01", "-1", "+1", " 1", "1 ", "1\n", "0x1", "1_000", "1e3", "1,2", "١",
		"9223372036854775808", "18446744073709551616", strings.Repeat("1", 10000),
	} {
		got, err := fence.Parse(s)
		if got != 0 || !errors.Is(err, fence.ErrInvalid) {
			t.Errorf("Parse(%.20q) = %d, %v; want ErrInvalid", s, got, err)
		}
		if err != nil && len(err.Error()) > 200 {
			t.Errorf("Parse of %d bytes returns an error of %d bytes", len(s), len(err.Error()))
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"1", "0", "01", "9223372036854775807", "9223372036854775808", "+1", "1 ", ""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		n, err := fence.Parse(s)
		if err != nil {
			if n != 0 || !errors.Is(err, fence.ErrInvalid) {
				t.Fatalf("Parse(%q) = %d, %v", s, n, err)
			}
			return
		}
		if n == 0 || n >= 1<<63 {
			t.Fatalf("Parse(%q) = %d is no token", s, n)
		}
		if want := strconv.FormatUint(n, 10); want != s {
			t.Fatalf("Parse accepts %q for %s: each token has one form only", s, want)
		}
	})
}

// wantStale requires a StaleError with both tokens, which its message contains.
func wantStale(t *testing.T, err error, token, newest uint64) {
	t.Helper()
	var stale *fence.StaleError
	if !errors.Is(err, fence.ErrStale) || !errors.As(err, &stale) {
		t.Fatalf("got error %v, want ErrStale", err)
	}
	if stale.Token != token || stale.Newest != newest {
		t.Fatalf("got token %d, newest %d; want %d, %d", stale.Token, stale.Newest, token, newest)
	}
	for _, n := range []uint64{token, newest} {
		if !strings.Contains(err.Error(), strconv.FormatUint(n, 10)) {
			t.Errorf("the message lacks %d: %v", n, err)
		}
	}
}

func TestVerifyRaisesNothing(t *testing.T) {
	var guard fence.Memory
	ctx := t.Context()
	must.Succeed(t, guard.Raise(ctx, "r", 5))
	// Three readers share the lock: a larger token must not exclude a smaller one.
	for _, token := range []uint64{7, 6, 5} {
		if err := fence.Verify(ctx, &guard, "r", token); err != nil {
			t.Errorf("token %d: %v", token, err)
		}
	}
	wantStale(t, fence.Verify(ctx, &guard, "r", 4), 4, 5)
	for _, token := range badTokens {
		if err := fence.Verify(ctx, &guard, "r", token); !errors.Is(err, fence.ErrInvalid) {
			t.Errorf("token %d: %v", token, err)
		}
	}
}

func TestSlotsAreResourcesOfTheirOwn(t *testing.T) {
	var guard fence.Memory
	ctx := t.Context()
	for _, step := range []struct {
		slot  int
		token uint64
	}{{0, 9}, {1, 3}, {0, 9}, {1, 4}} {
		if err := guard.Raise(ctx, fence.Slot("gpu", step.slot), step.token); err != nil {
			t.Errorf("slot %d, token %d: %v", step.slot, step.token, err)
		}
	}
	wantStale(t, guard.Raise(ctx, fence.Slot("gpu", 1), 3), 3, 4)
	if err := guard.Raise(ctx, fence.Slot("gpu", -1), 5); !errors.Is(err, fence.ErrInvalid) {
		t.Errorf("a lock without a slot: %v, want ErrInvalid", err)
	}
}
