// Package fencetest tests implementations of fence.Guard. Every guard of holdfast passes it.
// Use it also for a guard that you write for your own resource.
package fencetest

import (
	"cmp"
	"context"
	"errors"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/holdfast-go/holdfast/fence"
	"github.com/holdfast-go/holdfast/internal/must"
)

// Harness is a guard and a resource whose content the suite can read.
type Harness[W any] struct {
	// Guard is the guard under test. Its resources have no token yet.
	Guard fence.Guard[W]
	// Other is a second guard of the same resources, as in another process. Default: Guard.
	Other fence.Guard[W]
	// Resource returns the n-th resource; n is below 8. It creates what must exist before
	// the first write, such as a row. Default: "resource-n".
	Resource func(t testing.TB, n int) string
	// Write returns a write that replaces the resource's content.
	Write func(resource, content string) W
	// Read returns the content of a resource, or "" before its first write.
	Read func(t testing.TB, resource string) string
	// NeedsContent states that Raise returns fence.ErrNotExist before the first write.
	NeedsContent bool
	// Concurrent is how many writes the suite makes at once. Default: 8.
	Concurrent int
	// Retry reports that a write failed without effect and may be repeated, for example
	// after a serialization failure.
	Retry func(error) bool
}

// Run tests a guard.
func Run[W any](t *testing.T, h Harness[W]) {
	if h.Other == nil {
		h.Other = h.Guard
	}
	if h.Resource == nil {
		h.Resource = func(_ testing.TB, n int) string { return "resource-" + string(rune('0'+n)) }
	}
	h.Concurrent = cmp.Or(h.Concurrent, 8)
	if h.Retry == nil {
		h.Retry = func(error) bool { return false }
	}
	t.Run("PausedHolder", h.pausedHolder)
	t.Run("Sequence", h.sequence)
	t.Run("Raise", h.raise)
	t.Run("BadInput", h.badInput)
	t.Run("EndedContext", h.endedContext)
	t.Run("Concurrent", h.concurrent)
	t.Run("Overtaken", h.overtaken)
}

// Stale reports an error unless err refuses token because of newest.
func Stale(t testing.TB, err error, token, newest uint64) {
	t.Helper()
	var stale *fence.StaleError
	if !errors.Is(err, fence.ErrStale) || !errors.As(err, &stale) || stale.Token != token || stale.Newest != newest {
		t.Errorf("got %v, want the refusal of token %d by %d", err, token, newest)
	}
}

func (h Harness[W]) write(t testing.TB, g fence.Guard[W], resource string, token uint64, content string) error {
	t.Helper()
	return g.Write(t.Context(), resource, token, h.Write(resource, content))
}

// pausedHolder: the first holder is paused, and a second holder writes. The guard refuses the late write of
// the first holder.
func (h Harness[W]) pausedHolder(t *testing.T) {
	r := h.Resource(t, 0)
	must.Succeed(t, h.write(t, h.Guard, r, 33, "first"))
	must.Succeed(t, h.write(t, h.Other, r, 34, "second"))
	Stale(t, h.write(t, h.Guard, r, 33, "late"), 33, 34)
	if got := h.Read(t, r); got != "second" {
		t.Errorf("the content is %q, want that of the second holder", got)
	}
}

func (h Harness[W]) sequence(t *testing.T) {
	r := h.Resource(t, 1)
	if n, err := h.Guard.Newest(t.Context(), r); n != 0 || err != nil && !errors.Is(err, fence.ErrNotExist) {
		t.Errorf("before the first write: newest %d, %v", n, err)
	}
	want := ""
	for _, s := range []struct {
		token, newest uint64 // newest is the token that the refusal names; 0: accepted
		content       string
	}{
		{5, 0, "first"},
		{5, 0, "equal"},
		{4, 5, "smaller"},
		{10, 0, "larger, and longer in decimal"},
		{9, 10, "smaller, and shorter in decimal"},
		{1<<53 + 1, 0, "beyond the exact numbers of a float64"},
		{1 << 53, 1<<53 + 1, "smaller by one"},
		{math.MaxInt64, 0, "the largest token"},
		{math.MaxInt64 - 1, math.MaxInt64, "any other"},
	} {
		err := h.write(t, h.Guard, r, s.token, s.content)
		if s.newest != 0 {
			Stale(t, err, s.token, s.newest)
		} else if err != nil {
			t.Fatalf("token %d: %v", s.token, err)
		} else {
			want = s.content
		}
		if got := h.Read(t, r); got != want {
			t.Errorf("token %d: the content is %q, want %q", s.token, got, want)
		}
		if n, err := h.Other.Newest(t.Context(), r); err != nil || n != max(s.token, s.newest) {
			t.Errorf("token %d: newest %d, %v", s.token, n, err)
		}
	}
	if n, err := h.Guard.Newest(t.Context(), h.Resource(t, 2)); n != 0 || err != nil && !errors.Is(err, fence.ErrNotExist) {
		t.Errorf("another resource: newest %d, %v", n, err)
	}
}

// raise requires that a holder that reads before it writes can raise the token before it reads.
func (h Harness[W]) raise(t *testing.T) {
	r := h.Resource(t, 3)
	if h.NeedsContent {
		if err := h.Guard.Raise(t.Context(), r, 6); !errors.Is(err, fence.ErrNotExist) {
			t.Errorf("before the first write: %v, want ErrNotExist", err)
		}
	}
	must.Succeed(t, h.write(t, h.Guard, r, 6, "six"))
	must.Succeed(t, h.Other.Raise(t.Context(), r, 7))
	if got := h.Read(t, r); got != "six" {
		t.Errorf("Raise changed the content to %q", got)
	}
	Stale(t, h.write(t, h.Guard, r, 6, "late"), 6, 7)
	Stale(t, h.Guard.Raise(t.Context(), r, 6), 6, 7)
	Stale(t, fence.Verify(t.Context(), h.Guard, r, 6), 6, 7)
	must.Report(t, fence.Verify(t.Context(), h.Guard, r, 9))
	if err := h.write(t, h.Other, r, 7, "seven"); err != nil {
		t.Errorf("after Verify with a larger token: %v", err)
	}
	if got := h.Read(t, r); got != "seven" {
		t.Errorf("the content is %q", got)
	}
}

func (h Harness[W]) badInput(t *testing.T) {
	r := h.Resource(t, 4)
	for _, token := range []uint64{0, 1 << 63, math.MaxUint64} {
		var te *fence.TokenError
		if err := h.write(t, h.Guard, r, token, "bad"); !errors.As(err, &te) || !errors.Is(err, fence.ErrInvalid) {
			t.Errorf("Write with token %d: %v, want a TokenError", token, err)
		}
		if err := h.Guard.Raise(t.Context(), r, token); !errors.As(err, &te) || !errors.Is(err, fence.ErrInvalid) {
			t.Errorf("Raise with token %d: %v, want a TokenError", token, err)
		}
	}
	for what, bad := range map[string]string{"empty": "", "long": strings.Repeat("x", 513), "not UTF-8": "a\xff", "NUL": "a\x00b"} {
		_, newest := h.Guard.Newest(t.Context(), bad)
		for how, err := range map[string]error{
			"Write": h.write(t, h.Guard, bad, 1, "bad"), "Raise": h.Guard.Raise(t.Context(), bad, 1), "Newest": newest,
		} {
			if !errors.Is(err, fence.ErrInvalid) {
				t.Errorf("%s: %s: %v, want ErrInvalid", what, how, err)
			}
		}
	}
	if got := h.Read(t, r); got != "" {
		t.Errorf("bad input wrote %q", got)
	}
}

func (h Harness[W]) endedContext(t *testing.T) {
	r := h.Resource(t, 5)
	lost := errors.New("the lock is lost")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(lost)
	for how, err := range map[string]error{
		"Write": h.Guard.Write(ctx, r, 1, h.Write(r, "bad")), "Raise": h.Guard.Raise(ctx, r, 1),
	} {
		if !errors.Is(err, fence.ErrUnavailable) || !errors.Is(err, context.Canceled) || !errors.Is(err, lost) {
			t.Errorf("%s: %v, want ErrUnavailable with the context's error and cause", how, err)
		}
	}
	if got := h.Read(t, r); got != "" {
		t.Errorf("after its context had ended: wrote %q", got)
	}
}

// concurrent requires that writes with old and new tokens at once leave the content of the
// largest accepted token.
func (h Harness[W]) concurrent(t *testing.T) {
	r := h.Resource(t, 6)
	must.Succeed(t, h.write(t, h.Guard, r, 1, content(1)))
	var wg sync.WaitGroup
	var largest, refused atomic.Uint64
	for i := range h.Concurrent {
		g := h.Guard
		if i%2 == 1 {
			g = h.Other
		}
		wg.Go(func() {
			for n := range 4 {
				token := uint64(2 + (n*h.Concurrent+i*5)%(4*h.Concurrent))
				err := h.write(t, g, r, token, content(token))
				for err != nil && h.Retry(err) {
					err = h.write(t, g, r, token, content(token))
				}
				switch {
				case err == nil:
					for old := largest.Load(); old < token && !largest.CompareAndSwap(old, token); old = largest.Load() {
					}
				case errors.Is(err, fence.ErrStale):
					refused.Add(1)
				default:
					t.Errorf("token %d: %v", token, err)
				}
			}
		})
	}
	wg.Wait()
	if got, want := h.Read(t, r), content(largest.Load()); got != want {
		t.Errorf("the content is %q, want %q, after %d refusals", got, want, refused.Load())
	}
	if n, err := h.Guard.Newest(t.Context(), r); n != largest.Load() || err != nil {
		t.Errorf("newest %d, %v; want %d", n, err, largest.Load())
	}
}

// overtaken: holders of one token after the other write again and again, also after the next holder has
// begun. A write whose token was overtaken before it began is refused. One that a larger token overtakes between
// its read and its write leaves the content of the larger token.
func (h Harness[W]) overtaken(t *testing.T) {
	r := h.Resource(t, 7)
	const tokens, writers, each = 16, 3, 3
	var confirmed atomic.Uint64 // the largest token of a write that was confirmed
	raise := func(token uint64) {
		for old := confirmed.Load(); old < token && !confirmed.CompareAndSwap(old, token); old = confirmed.Load() {
		}
	}
	var reading sync.Mutex
	// hold writes with a token until it is refused, and closes next after a few writes. The first writer of a token
	// reads after each write. The other ones write without a pause, so that a write is always under way.
	hold := func(g fence.Guard[W], token uint64, reads bool, next func()) {
		defer next() // also after a failure
		for n := 0; ; n++ {
			before := confirmed.Load()
			err := h.write(t, g, r, token, content(token))
			switch {
			case err == nil && before > token:
				t.Errorf("a write with token %d was accepted, and token %d had been accepted before it began", token, before)
				return
			case err == nil:
				raise(token)
			case errors.Is(err, fence.ErrStale):
				return
			case !h.Retry(err):
				t.Errorf("token %d: %v", token, err)
				return
			}
			if reads {
				newest := confirmed.Load()
				reading.Lock()
				got := h.Read(t, r)
				reading.Unlock()
				if len(got) < len(content(newest)) {
					t.Errorf("after a write with token %d was confirmed, the content is %q", newest, got)
					return
				}
			}
			if n == each {
				next()
			}
			if token == tokens && n >= each {
				return
			}
		}
	}
	var all sync.WaitGroup
	for token := uint64(1); token <= tokens; token++ {
		begun := make(chan struct{})
		var once sync.Once
		for i := range writers {
			g := h.Guard
			if (uint64(i)+token)%2 == 0 {
				g = h.Other
			}
			all.Go(func() { hold(g, token, i == 0, func() { once.Do(func() { close(begun) }) }) })
		}
		<-begun
	}
	all.Wait()
	if got := h.Read(t, r); got != content(tokens) {
		t.Errorf("the content is %q, want that of token %d", got, tokens)
	}
}

func content(token uint64) string { return "content of " + strings.Repeat("x", int(token)) }
