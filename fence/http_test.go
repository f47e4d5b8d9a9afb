package fence_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/fence"
	"github.com/holdfast-go/holdfast/internal/must"
)

func TestSetHeaderReplacesToken(t *testing.T) {
	req := httptest.NewRequest("PUT", "/", nil)
	req.Header.Add("fencing-token", "1")
	must.Succeed(t, fence.SetHeader(req, 42))
	if token, err := fence.FromRequest(req); token != 42 || err != nil {
		t.Errorf("got %d, %v", token, err)
	}
	for _, token := range badTokens {
		if err := fence.SetHeader(req, token); !errors.Is(err, fence.ErrInvalid) {
			t.Errorf("token %d: got %v, want ErrInvalid", token, err)
		}
	}
}

func TestFromRequestReadsOneToken(t *testing.T) {
	for _, test := range []struct {
		values []string
		want   error
	}{
		{nil, fence.ErrMissing},
		{[]string{""}, fence.ErrInvalid},
		{[]string{"0"}, fence.ErrInvalid},
		{[]string{"7, 8"}, fence.ErrInvalid},
		{[]string{"7", "7"}, fence.ErrInvalid},
		{[]string{"7"}, nil},
	} {
		req := httptest.NewRequest("PUT", "/", nil)
		req.Header[fence.Header] = test.values
		if _, err := fence.FromRequest(req); !errors.Is(err, test.want) {
			t.Errorf("%q: got %v, want %v", test.values, err, test.want)
		}
	}
}

// guardFunc is a guard with a scripted result.
type guardFunc func(ctx context.Context, resource string, token uint64, write func(context.Context) error) error

func (f guardFunc) Write(ctx context.Context, resource string, token uint64, write fence.Func) error {
	return f(ctx, resource, token, write)
}

func (f guardFunc) Raise(ctx context.Context, resource string, token uint64) error {
	return f(ctx, resource, token, nil)
}

func (f guardFunc) Newest(context.Context, string) (uint64, error) { return 0, nil }

func byPath(r *http.Request) string { return strings.TrimPrefix(r.URL.Path, "/") }

func TestHandlerRefusesStaleToken(t *testing.T) {
	var guard fence.Memory
	var bodies []string
	next := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		bodies = append(bodies, string(b))
		w.Header().Set("X-Answer", "yes")
		switch string(b) {
		case "conflict":
			w.WriteHeader(http.StatusConflict)
		case "silent":
			return
		}
		_, _ = io.WriteString(w, "saved "+string(b))
	})
	srv := httptest.NewServer(fence.Handler(&guard, byPath, next))
	defer srv.Close()
	for _, test := range []struct {
		what, path, token, body string
		status                  int
		answer                  string
	}{
		{"first", "/r", "5", "a", 200, "saved a"},
		{"again", "/r", "5", "b", 200, "saved b"},
		{"no token", "/r", "", "c", 428, "Fencing-Token"},
		{"no number", "/r", "x", "c", 400, "want a decimal number"},
		{"zero", "/r", "0", "c", 400, "no live lock"},
		{"no resource", "/", "9", "c", 400, "resource is empty"},
		{"stale", "/r", "4", "c", 412, `"token":4,"newest":5`},
		{"other resource", "/s", "1", "d", 200, "saved d"},
		{"the handler's own refusal", "/r", "6", "conflict", 409, "saved conflict"},
		{"no status written", "/r", "6", "silent", 200, ""},
	} {
		bodies = nil
		req, _ := http.NewRequestWithContext(t.Context(), "PUT", srv.URL+test.path, strings.NewReader(test.body))
		if test.token != "" {
			req.Header.Set(fence.Header, test.token)
		}
		resp, err := srv.Client().Do(req)
		must.Succeed(t, err)
		stale := fence.FromResponse(resp)
		answer, _ := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if resp.StatusCode != test.status || !strings.Contains(string(answer), test.answer) {
			t.Errorf("%s: got %d %s, want %d %s", test.what, resp.StatusCode, answer, test.status, test.answer)
		}
		reached := len(bodies) == 1
		if own := resp.Header.Get("X-Answer") == "yes"; own != reached {
			t.Errorf("%s: the handler ran: %v, its header was sent: %v", test.what, reached, own)
		}
		if test.status == 412 {
			wantStale(t, stale, 4, 5)
		} else if stale != nil {
			t.Errorf("%s: FromResponse: %v", test.what, stale)
		}
		if test.status == 412 || test.status == 428 || test.status == 400 {
			var body map[string]any
			if err := json.Unmarshal(answer, &body); err != nil || body["status"] != float64(test.status) {
				t.Errorf("%s: body %s: %v", test.what, answer, err)
			}
			if reached {
				t.Errorf("%s: the handler ran", test.what)
			}
		}
	}
}

// TestHandlerReportsNoUnconfirmedSuccess: the handler reports no success before the guard has
// confirmed it. Only the server's log contains the reason of a failure.
func TestHandlerReportsNoUnconfirmedSuccess(t *testing.T) {
	secret := errors.New("dial postgres://app:hunter2@db: refused")
	for what, guard := range map[string]guardFunc{
		"before": func(context.Context, string, uint64, func(context.Context) error) error { return secret },
		"at commit": func(ctx context.Context, _ string, _ uint64, write func(context.Context) error) error {
			_ = write(ctx)
			return secret
		},
		"without an error": func(context.Context, string, uint64, func(context.Context) error) error { return nil },
	} {
		var logged bytes.Buffer
		next := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusCreated)
			_, _ = io.WriteString(w, "saved")
		})
		req := httptest.NewRequest("PUT", "/r", nil)
		req = req.WithContext(context.WithValue(req.Context(), http.ServerContextKey, &http.Server{ErrorLog: log.New(&logged, "", 0)}))
		must.Succeed(t, fence.SetHeader(req, 7))
		w := httptest.NewRecorder()
		fence.Handler(guard, byPath, next).ServeHTTP(w, req)
		if w.Code != http.StatusServiceUnavailable || strings.Contains(w.Body.String(), "saved") || strings.Contains(w.Body.String(), "hunter2") {
			t.Errorf("%s: got %d %s", what, w.Code, w.Body)
		}
		if what != "without an error" && !strings.Contains(logged.String(), "refused") {
			t.Errorf("%s: the log has no reason: %q", what, &logged)
		}
	}
}

func TestHandlerFailureFailsTheWrite(t *testing.T) {
	for status, fails := range map[int]bool{200: false, 204: false, 304: false, 400: true, 500: true} {
		var got error
		guard := guardFunc(func(ctx context.Context, _ string, _ uint64, write func(context.Context) error) error {
			got = write(ctx)
			return got
		})
		next := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusEarlyHints)
			w.WriteHeader(status)
			w.WriteHeader(http.StatusTeapot)
		})
		req := httptest.NewRequest("PUT", "/r", nil)
		req.Header.Set(fence.Header, "7")
		w := httptest.NewRecorder()
		fence.Handler(guard, byPath, next).ServeHTTP(w, req)
		if w.Code != status || (got != nil) != fails {
			t.Errorf("status %d: answered %d, the guard got %v", status, w.Code, got)
		}
	}
}

// TestHandlerLimitsTheResponse: a response in memory has a limit, and beyond it the write has failed.
func TestHandlerLimitsTheResponse(t *testing.T) {
	for size, want := range map[int]int{8 << 20: http.StatusOK, 8<<20 + 1: http.StatusInternalServerError} {
		var failed error
		guard := guardFunc(func(ctx context.Context, _ string, _ uint64, write func(context.Context) error) error {
			failed = write(ctx)
			return failed
		})
		next := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			for left := size; left > 0; left -= 1 << 20 {
				_, _ = w.Write(make([]byte, min(left, 1<<20))) // a handler that ignores the error
			}
		})
		w, r := httptest.NewRecorder(), httptest.NewRequest("PUT", "/x", nil)
		r.Header.Set(fence.Header, "7")
		fence.Handler(guard, byPath, next).ServeHTTP(w, r)
		if w.Code != want || (failed != nil) != (want != http.StatusOK) {
			t.Errorf("%d bytes: status %d, the write returned %v", size, w.Code, failed)
		}
	}
}

func TestFromResponseIgnoresOtherResponses(t *testing.T) {
	for what, body := range map[string]string{
		"another 412": `{"title":"etag","token":1,"newest":2}`,
		"no numbers":  `{"title":"stale fencing token"}`,
		"not stale":   `{"title":"stale fencing token","token":2,"newest":2}`,
		"no JSON":     `<html>`,
		"too large":   `{"title":"stale fencing token","token":1,"newest":2,"resource":"` + strings.Repeat("x", 70<<10) + `"}`,
	} {
		resp := &http.Response{StatusCode: 412, Header: http.Header{"Content-Type": {"application/problem+json; charset=utf-8"}}, Body: io.NopCloser(strings.NewReader(body))}
		if err := fence.FromResponse(resp); err != nil {
			t.Errorf("%s: got %v", what, err)
		}
		if rest, _ := io.ReadAll(resp.Body); string(rest) != body {
			t.Errorf("%s: the body has %d bytes afterwards, want %d", what, len(rest), len(body))
		}
	}
}

func FuzzFromRequest(f *testing.F) {
	f.Add("1", "", false)
	f.Add("1", "1", true)
	f.Add("007", "", false)
	f.Fuzz(func(t *testing.T, a, b string, twice bool) {
		req := &http.Request{Header: http.Header{fence.Header: {a}}}
		if twice {
			req.Header[fence.Header] = []string{a, b}
		}
		token, err := fence.FromRequest(req)
		if err != nil && token != 0 || twice && err == nil {
			t.Fatalf("%q %q: %d, %v", a, b, token, err)
		}
		if err == nil {
			again := &http.Request{Header: http.Header{}}
			if err := fence.SetHeader(again, token); err != nil || again.Header.Get(fence.Header) != a {
				t.Fatalf("%q is not sent as it was received: %v", a, err)
			}
		}
	})
}

func FuzzFromResponse(f *testing.F) {
	f.Add([]byte(`{"title":"stale fencing token","status":412,"resource":"r","token":1,"newest":2}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		resp := &http.Response{StatusCode: 412, Header: http.Header{"Content-Type": {"application/problem+json"}}, Body: io.NopCloser(bytes.NewReader(body))}
		var stale *fence.StaleError
		if err := fence.FromResponse(resp); errors.As(err, &stale) && (stale.Token == 0 || stale.Token >= stale.Newest || stale.Newest >= 1<<63) {
			t.Fatalf("%q: %+v", body, stale)
		}
		if rest, err := io.ReadAll(resp.Body); err != nil || !bytes.Equal(rest, body) {
			t.Fatalf("body changed: %v", err)
		}
	})
}

func TestTransportSendsToken(t *testing.T) {
	var guard fence.Memory
	srv := httptest.NewServer(fence.Handler(&guard, byPath, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})))
	defer srv.Close()
	type key struct{}
	client := &http.Client{Transport: fence.Transport{Base: srv.Client().Transport, Token: func(ctx context.Context) uint64 {
		token, _ := ctx.Value(key{}).(uint64)
		return token
	}}}
	put := func(token uint64) error {
		t.Helper()
		req, err := http.NewRequestWithContext(context.WithValue(t.Context(), key{}, token), "PUT", srv.URL+"/r", strings.NewReader("x"))
		must.Succeed(t, err)
		resp, err := client.Do(req)
		if len(req.Header) != 0 {
			t.Errorf("the transport changed the request: %v", req.Header)
		}
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		return fence.FromResponse(resp)
	}
	must.Report(t, put(34))
	wantStale(t, put(33), 33, 34)
	for _, token := range badTokens {
		var te *fence.TokenError
		if err := put(token); !errors.As(err, &te) {
			t.Errorf("token %d: %v, want a TokenError", token, err)
		}
	}
	client.Transport = fence.Transport{}
	if err := put(35); !errors.Is(err, fence.ErrInvalid) {
		t.Errorf("without Token: %v", err)
	}
}
