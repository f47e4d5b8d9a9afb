//go:build linux || darwin

package check_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/check"
	"github.com/holdfast-go/holdfast/check/checktest"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/memstore"
	"github.com/holdfast-go/holdfast/optimistic"
)

// objects is an object server with conditional requests.
type objects struct {
	mu     sync.Mutex
	data   map[string][]byte
	etags  map[string]string
	writes int
}

func (o *objects) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	etag, exists := o.etags[r.URL.Path]
	switch {
	case r.Method == http.MethodPut:
		match, none := r.Header.Get("If-Match"), r.Header.Get("If-None-Match")
		if match != "" && match != etag || none != "" && exists {
			w.WriteHeader(http.StatusPreconditionFailed)
			return
		}
		o.writes++
		etag = fmt.Sprintf(`"%d"`, o.writes)
		o.data[r.URL.Path], o.etags[r.URL.Path] = body, etag
		w.Header().Set("ETag", etag)
	case !exists:
		w.WriteHeader(http.StatusNotFound)
	default:
		w.Header().Set("ETag", etag)
		_, _ = w.Write(o.data[r.URL.Path])
	}
}

// gateway passes requests on to a server. It may answer with a redirect, pass a request on
// twice, or lose an answer.
type gateway struct {
	http.Handler
	redirects, repeats, loses atomic.Bool
}

func (g *gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if g.redirects.Load() && r.URL.Query().Get("moved") == "" {
		http.Redirect(w, r, r.URL.Path+"?moved=yes", http.StatusFound)
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	pass := func(w http.ResponseWriter) {
		r.Body = io.NopCloser(bytes.NewReader(body))
		g.Handler.ServeHTTP(w, r)
	}
	if g.repeats.Load() {
		pass(httptest.NewRecorder())
	}
	if g.loses.Load() {
		pass(httptest.NewRecorder())
		panic(http.ErrAbortHandler)
	}
	pass(w)
}

// objectStore has the locks of a memory store, and values at an object server.
type objectStore struct {
	*memstore.Store
	values optimistic.HTTP
}

func (s objectStore) Get(ctx context.Context, key string) ([]byte, string, error) {
	return s.values.Get(ctx, key)
}

func (s objectStore) Put(ctx context.Context, key string, data []byte, version string) (string, error) {
	return s.values.Put(ctx, key, data, version)
}

// TestObjectServerBehindAGatewayKeepsTheRules requires that no value is lost and no id is drawn twice
// at an object server whose gateway redirects requests, repeats them, and loses answers.
// The compilers of the planted mistakes, which run in parallel, would leave it few requests.
func TestObjectServerBehindAGatewayKeepsTheRules(t *testing.T) {
	g := &gateway{Handler: &objects{data: map[string][]byte{}, etags: map[string]string{}}}
	server := httptest.NewServer(g)
	defer server.Close()
	transport := &http.Transport{DisableKeepAlives: true}
	store := memstore.New()
	fault := func(kind string, mode *atomic.Bool) check.StoreFault {
		set := func(to bool) func(context.Context, check.Fault) error {
			return func(context.Context, check.Fault) error { mode.Store(to); return nil }
		}
		return check.StoreFault{Kind: kind, Begin: set(true), End: set(false)}
	}
	r := checktest.Run(t, check.Config{Duration: 5 * time.Second, Target: &check.Target{
		Open: func(context.Context) (driver.Store, error) {
			return objectStore{store.Client(), optimistic.HTTP{URL: server.URL, Client: &http.Client{Transport: transport}}}, nil
		},
		Faults: []check.StoreFault{fault("redirect", &g.redirects), fault("repeat", &g.repeats), fault("lose-answers", &g.loses)},
	}, Faults: []string{"redirect", "repeat", "lose-answers"}})
	if s := r.Stats; s.Values < 100 || s.IDs < 50 || s.Once == 0 {
		t.Errorf("%+v: the test tests little", s)
	}
}
