package drivertest

import (
	"bytes"
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/must"
)

// RunValues tests the values of a store whose type is S. Client returns a client of a store
// that has no values yet, in a namespace. The suite closes the clients.
func RunValues[S interface {
	driver.Store
	driver.Values
}](t *testing.T, client func(t testing.TB, namespace string) S) {
	open := func(t testing.TB, namespace string) S {
		t.Helper()
		s := client(t, namespace)
		t.Cleanup(func() { _ = s.Close(context.Background()) })
		return s
	}
	a, b := open(t, ""), open(t, "")
	ctx := t.Context()
	code := func(err error, want driver.Code, what string) {
		t.Helper()
		if got := a.Classify(err); err == nil || got != want {
			t.Errorf("%s: %v (%v), want code %v", what, err, got, want)
		}
	}
	get := func(v driver.Values, key, want string) string {
		t.Helper()
		data, version, err := v.Get(ctx, key)
		if err != nil || string(data) != want {
			t.Errorf("Get(%.20q) = %.40q, %v; want %.40q", key, data, err, want)
		}
		return version
	}
	put := func(v driver.Values, key, data, version string) string {
		t.Helper()
		next, err := v.Put(ctx, key, []byte(data), version)
		if err != nil || next == "" || next == version {
			t.Errorf("Put(%.20q, %.20q, %q) = %q, %v", key, data, version, next, err)
		}
		return next
	}

	t.Run("Versions", func(t *testing.T) {
		if v := get(a, "k", ""); v != "" {
			t.Errorf("a key that was never written has version %q", v)
		}
		first := put(a, "k", "one", "")
		if v := get(b, "k", "one"); v != first {
			t.Errorf("another client reads version %q, want %q", v, first)
		}
		_, err := b.Put(ctx, "k", []byte("bad"), "")
		code(err, driver.CodeConflict, "Put of a new key that exists")
		second := put(b, "k", "", first) // no data is a value, too
		if v := get(a, "k", ""); v != second {
			t.Errorf("version %q, want %q", v, second)
		}
		third := put(a, "k", "one", second) // the same data is another version
		for _, old := range []string{"", first, second, "nonsense", "-1", "0", "'; DROP TABLE x"} {
			_, err := a.Put(ctx, "k", []byte("bad"), old)
			code(err, driver.CodeConflict, "Put at version "+strconv.Quote(old))
		}
		_, err = a.Put(ctx, "never written", []byte("bad"), third)
		code(err, driver.CodeConflict, "Put at a version of a key that does not exist")
		if v := get(a, "k", "one"); v != third {
			t.Errorf("a refused Put changed the version to %q", v)
		}
	})

	t.Run("KeysAndData", func(t *testing.T) {
		data := map[string]string{}
		for i, key := range []string{"A", "a", "a ", "a/b", "a/", "ä", "a\u0308", "%", "{x}:y", "日本", "line\nbreak", "'quote\\", ".", strings.Repeat("x", driver.MaxName)} {
			data[key] = strings.Repeat("\x00\xff\n'\\ "+key, i)
		}
		data["large"] = strings.Repeat("x", driver.MaxValue)
		for key, value := range data {
			put(a, key, value, "")
		}
		for key, value := range data {
			get(b, key, value)
		}
		other := open(t, "other")
		get(other, "A", "")
		put(other, "A", "another namespace", "")
		get(a, "A", data["A"])
	})

	t.Run("BadInput", func(t *testing.T) {
		for what, key := range map[string]string{"empty": "", "long": strings.Repeat("x", driver.MaxName+1), "not UTF-8": "\xff", "NUL": "a\x00"} {
			_, _, err := a.Get(ctx, key)
			code(err, driver.CodeInvalid, what+": Get")
			_, err = a.Put(ctx, key, nil, "")
			code(err, driver.CodeInvalid, what+": Put")
		}
		_, err := a.Put(ctx, "too large", make([]byte, driver.MaxValue+1), "")
		code(err, driver.CodeInvalid, "too large")
		ended, cancel := context.WithCancelCause(ctx)
		cancel(causes{"the caller has left"})
		if _, err := a.Put(ended, "late", nil, ""); !errors.Is(err, context.Canceled) {
			t.Errorf("Put after the context ended: %v", err)
		}
		if _, _, err := a.Get(ended, "late"); !errors.Is(err, context.Canceled) {
			t.Errorf("Get after the context ended: %v", err)
		}
		get(a, "late", "")
	})

	t.Run("NoUpdateIsLost", func(t *testing.T) {
		const workers, each = 4, 8
		var wg sync.WaitGroup
		var conflicts atomic.Int64
		for i := range workers {
			client := driver.Values(a)
			if i%2 == 1 {
				client = b
			}
			wg.Go(func() {
				for done := 0; done < each; {
					data, version, err := client.Get(ctx, "counter")
					if err != nil {
						t.Error(err)
						return
					}
					_, err = client.Put(ctx, "counter", append(bytes.Clone(data), 'x'), version)
					switch {
					case err == nil:
						done++
					case a.Classify(err) == driver.CodeConflict:
						conflicts.Add(1)
					case a.Classify(err) == driver.CodeUnavailable: // for example a serialization failure
					default:
						t.Error(err)
						return
					}
				}
			})
		}
		wg.Wait()
		get(a, "counter", strings.Repeat("x", workers*each))
		t.Logf("%d conflicts", conflicts.Load())
	})

	t.Run("Closed", func(t *testing.T) {
		closed := open(t, "")
		must.Succeed(t, closed.Close(context.Background()))
		_, _, err := closed.Get(ctx, "k")
		code(err, driver.CodeClosed, "Get after Close")
		_, err = closed.Put(ctx, "k", nil, "")
		code(err, driver.CodeClosed, "Put after Close")
	})
}
