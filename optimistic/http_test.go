package optimistic_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/fence"
	"github.com/holdfast-go/holdfast/fence/fencetest"
	"github.com/holdfast-go/holdfast/internal/must"
	"github.com/holdfast-go/holdfast/optimistic"
)

// objects is an HTTP server of conditional requests. Module e2e repeats the tests on a
// server of S3.
type objects struct {
	mu   sync.Mutex
	data map[string][]byte
	tags map[string]int
	fail int // the status of every response, if it is not 0
	weak bool
	// writes is the metadata of each object; plain: the server keeps none.
	writes map[string]string
	plain  bool
	// ignores is a condition that the server does not check.
	ignores string
}

const writesHeader = "X-Amz-Meta-Holdfast-Writes"

func (o *objects) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.fail != 0 {
		http.Error(w, "scripted failure", o.fail)
		return
	}
	name := strings.TrimPrefix(r.URL.Path, "/bucket/")
	tag := func() string {
		if o.weak {
			return fmt.Sprintf(`W/"%d"`, o.tags[name])
		}
		return fmt.Sprintf(`"%d"`, o.tags[name])
	}
	data, exists := o.data[name]
	switch r.Method {
	case http.MethodGet:
		if !exists {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("ETag", tag())
		if ids := o.writes[name]; ids != "" {
			w.Header().Set(writesHeader, ids)
		}
		_, _ = w.Write(data)
	case http.MethodPut:
		r.Header.Del(o.ignores)
		if match := r.Header.Get("If-Match"); match != "" && (!exists || match != tag()) || r.Header.Get("If-None-Match") == "*" && exists {
			w.WriteHeader(http.StatusPreconditionFailed)
			return
		}
		o.data[name], _ = io.ReadAll(r.Body)
		o.tags[name]++
		if !o.plain {
			o.writes[name] = r.Header.Get(writesHeader)
		}
		w.Header().Set("ETag", tag())
	}
}

func serve(t *testing.T) (*objects, optimistic.HTTP) {
	o := &objects{data: map[string][]byte{}, tags: map[string]int{}, writes: map[string]string{}}
	srv := httptest.NewServer(o)
	t.Cleanup(srv.Close)
	return o, optimistic.HTTP{URL: srv.URL + "/bucket/", Client: srv.Client()}
}

func TestObjectsPassFencetest(t *testing.T) {
	_, values := serve(t)
	guard := fence.Objects{Values: values}
	fencetest.Run(t, fencetest.Harness[[]byte]{
		Guard: guard, NeedsContent: true,
		Write: func(_, content string) []byte { return []byte(content) },
		Read: func(t testing.TB, resource string) string {
			content, _, err := guard.Read(t.Context(), resource)
			must.Report(t, err)
			return string(content)
		},
	})
}

func TestHTTPMapsResponsesToErrors(t *testing.T) {
	o, values := serve(t)
	v1, err := optimistic.Put(t.Context(), values, "a/b c", []byte("one"), "")
	if err != nil || v1 == "" {
		t.Fatal(v1, err)
	}
	if data, version, err := optimistic.Get(t.Context(), values, "a/b c"); string(data) != "one" || version != v1 || err != nil {
		t.Errorf("%q, %q, %v", data, version, err)
	}
	if _, err := optimistic.Put(t.Context(), values, "a/b c", nil, `"7"`); !errors.Is(err, optimistic.ErrConflict) {
		t.Errorf("another version: %v", err)
	}
	for _, test := range []struct {
		status   int
		get, put error
	}{
		{403, holdfast.ErrRefused, holdfast.ErrRefused},
		{409, holdfast.ErrRefused, optimistic.ErrUnknown}, // the object cannot be read either
		{500, holdfast.ErrUnavailable, optimistic.ErrUnknown},
		{429, holdfast.ErrUnavailable, holdfast.ErrUnavailable},
		{503, holdfast.ErrUnavailable, optimistic.ErrUnknown},
	} {
		o.fail = test.status
		if _, _, err := optimistic.Get(t.Context(), values, "k"); !errors.Is(err, test.get) {
			t.Errorf("Get, %d: %v, want %v", test.status, err, test.get)
		}
		if _, err := optimistic.Put(t.Context(), values, "k", nil, v1); !errors.Is(err, test.put) {
			t.Errorf("Put, %d: %v, want %v", test.status, err, test.put)
		}
	}
	o.fail, o.weak = 0, true
	if _, _, err := optimistic.Get(t.Context(), values, "a/b c"); !errors.Is(err, holdfast.ErrUnsupported) {
		t.Errorf("a weak ETag: %v", err)
	}
	if _, err := optimistic.Put(t.Context(), values, "new", nil, ""); !errors.Is(err, optimistic.ErrUnknown) {
		t.Errorf("a weak ETag of a write: %v", err)
	}
	for _, url := range []string{"", "bucket", "ftp://host/bucket", "http://", "http://[::1"} {
		if _, _, err := optimistic.Get(t.Context(), optimistic.HTTP{URL: url}, "k"); !errors.Is(err, holdfast.ErrInvalid) {
			t.Errorf("URL %q: %v", url, err)
		}
	}
	closed := httptest.NewServer(o)
	closed.Close()
	if _, err := optimistic.Put(t.Context(), optimistic.HTTP{URL: closed.URL}, "k", nil, ""); !errors.Is(err, holdfast.ErrUnavailable) {
		t.Errorf("no server: %v, want ErrUnavailable, because nothing was sent", err)
	}
}

// TestHTTPPutBehindProxyIsUnknown puts a proxy in front of the objects that loses the connection after it has
// forwarded a request. Such a proxy, for example Envoy, responds with 503. The object is written.
func TestHTTPPutBehindProxyIsUnknown(t *testing.T) {
	_, values := serve(t)
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		data, _ := io.ReadAll(r.Body)
		if r.Method == http.MethodPut {
			if _, err := values.Put(r.Context(), strings.TrimPrefix(r.URL.Path, "/"), data, ""); err != nil {
				t.Error(err)
			}
		}
		w.WriteHeader(http.StatusServiceUnavailable)
	}))
	defer proxy.Close()
	if _, err := optimistic.Put(t.Context(), optimistic.HTTP{URL: proxy.URL}, "k", []byte("one"), ""); !errors.Is(err, optimistic.ErrUnknown) {
		t.Errorf("%v, want ErrUnknown", err)
	}
	if data, _, err := values.Get(t.Context(), "k"); string(data) != "one" || err != nil {
		t.Errorf("the object: %q, %v", data, err)
	}
}

// TestHTTPFollowsNoRedirect: the response to a GET that net/http makes of a redirected PUT confirms no write, and
// no other page is a value.
func TestHTTPFollowsNoRedirect(t *testing.T) {
	for _, status := range []int{301, 302, 303, 307, 308} {
		o, values := serve(t)
		o.data["page"], o.tags["page"] = []byte("a page"), 1
		redirect := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, values.URL+"page", status)
		}))
		defer redirect.Close()
		redirected := optimistic.HTTP{URL: redirect.URL}
		if v, err := optimistic.Put(t.Context(), redirected, "k", []byte("one"), `"1"`); !errors.Is(err, optimistic.ErrUnknown) {
			t.Errorf("Put, %d: %q, %v", status, v, err)
		}
		if data, _, err := optimistic.Get(t.Context(), redirected, "k"); !errors.Is(err, holdfast.ErrRefused) || !strings.Contains(err.Error(), values.URL[:20]) {
			t.Errorf("Get, %d: %q, %v", status, data, err)
		}
	}
}

// TestHTTPUpdateBehindRepeatingProxyAppliesOnce: a proxy repeats each PUT, and returns the second response, which is
// 412. On a server without metadata the outcome is unknown.
func TestHTTPUpdateBehindRepeatingProxyAppliesOnce(t *testing.T) {
	for _, plain := range []bool{false, true} {
		for _, followed := range []bool{false, true} {
			if plain && followed {
				continue // the documentation of HTTP names this case
			}
			t.Run(fmt.Sprintf("plain=%t,followed=%t", plain, followed), func(t *testing.T) {
				o, values := serve(t)
				o.plain = plain
				add := func(text string) func(context.Context, []byte) ([]byte, error) {
					return func(_ context.Context, old []byte) ([]byte, error) { return append(old, text...), nil }
				}
				must.Succeed(t, optimistic.Update(t.Context(), values, "k", add("a")))
				proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if r.Method == http.MethodPut {
						body, _ := io.ReadAll(r.Body)
						first := r.Clone(r.Context())
						first.Body = io.NopCloser(bytes.NewReader(body))
						o.ServeHTTP(httptest.NewRecorder(), first)
						if followed { // another client writes before the repetition
							must.Report(t, optimistic.Update(r.Context(), values, "k", add("c")))
						}
						r.Body = io.NopCloser(bytes.NewReader(body))
					}
					o.ServeHTTP(w, r)
				}))
				defer proxy.Close()
				behind := optimistic.HTTP{URL: proxy.URL + "/bucket"}
				err := optimistic.Update(t.Context(), behind, "k", add("b"))
				if plain != errors.Is(err, optimistic.ErrUnknown) || !plain && err != nil {
					t.Errorf("Update: %v", err)
				}
				if data := string(o.data["k"]); strings.Count(data, "b") != 1 {
					t.Errorf("the value is %q, want one b", data)
				}
				if !followed {
					return
				}
				_, version, err := optimistic.Get(t.Context(), behind, "k")
				must.Succeed(t, err)
				if version, err = optimistic.Put(t.Context(), behind, "k", []byte("d"), version); err != nil {
					t.Fatal(err)
				}
				if _, err := optimistic.Put(t.Context(), values, "k", []byte("e"), version); !errors.Is(err, optimistic.ErrConflict) {
					t.Errorf("a Put at the version of a write that another one has followed: %v", err)
				}
			})
		}
	}
}

// TestHTTPRefusesServerWithoutConditions: such a server overwrites the values of other clients.
func TestHTTPRefusesServerWithoutConditions(t *testing.T) {
	for _, ignored := range []string{"If-Match", "If-None-Match"} {
		o, values := serve(t)
		o.ignores = ignored
		_, err := optimistic.Put(t.Context(), values, "k", []byte("one"), "")
		if !errors.Is(err, holdfast.ErrUnsupported) || !strings.Contains(err.Error(), ignored) {
			t.Errorf("%s: %v", ignored, err)
		}
	}
}

func TestHTTPRefusesKeysThatLeaveTheParent(t *testing.T) {
	_, values := serve(t)
	for _, key := range []string{".", "..", "a/../../b", "a/./b", "../x", "x/.."} {
		if _, _, err := optimistic.Get(t.Context(), values, key); !errors.Is(err, holdfast.ErrInvalid) {
			t.Errorf("Get of %q: %v", key, err)
		}
		if _, err := optimistic.Put(t.Context(), values, key, nil, ""); !errors.Is(err, holdfast.ErrInvalid) {
			t.Errorf("Put of %q: %v", key, err)
		}
	}
	for _, key := range []string{"...", "a..b", ".a", "a."} {
		if _, err := optimistic.Put(t.Context(), values, key, nil, ""); err != nil {
			t.Errorf("Put of %q: %v", key, err)
		}
	}
}

func TestObjectsRefuseForeignContent(t *testing.T) {
	_, values := serve(t)
	guard := fence.Objects{Values: values}
	for key, data := range map[string]string{"empty": "", "another": "hello\nworld", "no token": "holdfast-fence 1 x\n", "no line": "holdfast-fence 1 5", "zero": "holdfast-fence 1 0\n"} {
		if _, err := optimistic.Put(t.Context(), values, key, []byte(data), ""); err != nil {
			t.Fatal(err)
		}
		if err := guard.Write(t.Context(), key, 9, nil); !errors.Is(err, fence.ErrCorrupt) {
			t.Errorf("%s: %v, want ErrCorrupt", key, err)
		}
	}
	if err := guard.Write(t.Context(), "k", 9, make([]byte, driver.MaxValue)); !errors.Is(err, fence.ErrInvalid) {
		t.Errorf("too large: %v", err)
	}
	if err := (fence.Objects{}).Raise(t.Context(), "k", 9); !errors.Is(err, fence.ErrInvalid) {
		t.Errorf("no Values: %v", err)
	}
}
