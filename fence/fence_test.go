package fence_test

import (
	"context"
	"errors"
	"math"
	"strconv"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/fence"
)

var badTokens = []uint64{0, 1 << 63, math.MaxUint64}

var badResources = map[string]string{
	"empty":    "",
	"too long": strings.Repeat("x", 513),
	"not UTF8": "a\xff",
	"NUL":      "a\x00b",
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
	if err := guard.Raise(ctx, "r", 5); err != nil {
		t.Fatal(err)
	}
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
