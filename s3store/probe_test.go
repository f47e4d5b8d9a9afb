package s3store

import (
	"context"
	"crypto/md5"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/must"
)

// faults are what a server of the tests does wrong.
type faults struct {
	ignores    string        // a condition that the server does not compare
	apart      bool          // compares a condition, and then writes
	creates    bool          // lets If-Match create an object
	stale      bool          // returns the version before the last one
	ahead      time.Duration // of every second answer's Date
	drops      string        // the last part of the path of PUTs that are applied and not answered
	redirects  bool          // of PUTs
	lacks      bool          // knows no conditions
	cached     bool          // answers reads from a cache
	unmodified bool          // sends no Last-Modified
}

// server is a server of S3 in memory, which checks no signature.
type server struct {
	faults
	*httptest.Server
	bucket string

	mu       sync.Mutex
	objects  map[string][][]byte // versions
	written  map[string]time.Time
	requests []string
}

var buckets atomic.Int64

// serve starts a server. Its bucket has a name of its own, because the process remembers what it has found of a bucket,
// and a later server may get the same port.
func serve(t *testing.T, f faults) *server {
	s := &server{faults: f, bucket: fmt.Sprint("bucket-", buckets.Add(1)), objects: map[string][][]byte{}, written: map[string]time.Time{}}
	s.Server = httptest.NewServer(s)
	t.Cleanup(s.Close)
	return s
}

func (s *server) open(t *testing.T) *Store {
	t.Helper()
	store, err := Open(t.Context(), "s3://key:secret@"+s.bucket+"/locks?skew=1s&endpoint="+url.QueryEscape(s.URL), "")
	must.Succeed(t, err)
	t.Cleanup(func() { _ = store.Close(context.Background()) })
	return store
}

func tagOf(data []byte) string { return fmt.Sprintf(`"%x"`, md5.Sum(data)) }

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	path := strings.TrimPrefix(r.URL.Path, "/"+s.bucket+"/locks/")
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests = append(s.requests, r.Method+" "+path)
	if s.ahead != 0 && len(s.requests)%2 == 0 {
		w.Header().Set("Date", time.Now().Add(s.ahead).UTC().Format(http.TimeFormat))
	}
	switch r.Method {
	case http.MethodGet:
		versions := s.objects[path]
		if s.stale && len(versions) > 1 {
			versions = versions[:len(versions)-1]
		}
		if len(versions) == 0 {
			http.NotFound(w, r)
			return
		}
		if s.cached && strings.HasPrefix(path, "lock") {
			w.Header().Set("Age", "1")
		}
		if !s.unmodified {
			w.Header().Set("Last-Modified", s.written[path].UTC().Format(http.TimeFormat))
		}
		w.Header().Set("ETag", tagOf(versions[len(versions)-1]))
		_, _ = w.Write(versions[len(versions)-1])
	case http.MethodPut:
		s.put(w, r, path, body)
	case http.MethodDelete:
		delete(s.objects, path)
		w.WriteHeader(http.StatusNoContent)
	}
}

// put writes an object. The caller holds s.mu.
func (s *server) put(w http.ResponseWriter, r *http.Request, path string, body []byte) {
	if s.redirects && strings.HasPrefix(path, "lock") {
		http.Redirect(w, r, "/elsewhere", http.StatusTemporaryRedirect)
		return
	}
	if s.lacks {
		http.Error(w, "A header you provided implies functionality that is not implemented", http.StatusNotImplemented)
		return
	}
	versions := s.objects[path]
	match, none := r.Header.Get("If-Match"), r.Header.Get("If-None-Match")
	switch {
	case match != "" && s.ignores != "If-Match" && len(versions) == 0 && !s.creates:
		http.NotFound(w, r)
		return
	case match != "" && s.ignores != "If-Match" && len(versions) > 0 && match != tagOf(versions[len(versions)-1]),
		none != "" && s.ignores != "If-None-Match" && len(versions) > 0:
		w.WriteHeader(http.StatusPreconditionFailed)
		return
	}
	if s.apart {
		s.mu.Unlock()
		time.Sleep(20 * time.Millisecond) // this is the fault
		s.mu.Lock()
	}
	s.objects[path], s.written[path] = append(s.objects[path], body), time.Now()
	if s.drops != "" && strings.HasSuffix(path, s.drops) {
		panic(http.ErrAbortHandler)
	}
	w.Header().Set("ETag", tagOf(body))
}

// count returns how many requests begin with a text.
func (s *server) count(begin string) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.requests {
		if strings.HasPrefix(r, begin) {
			n++
		}
	}
	return n
}

func request(name string) driver.Request {
	return driver.Request{ID: "id-" + name, Name: name, Limit: driver.Exclusive, TTL: time.Minute, From: requester{}}
}

// requester ignores every call.
type requester struct{}

func (requester) Owner() driver.Owner      { return driver.Owner{} }
func (requester) Queued([]driver.Holder)   {}
func (requester) Lost(driver.Cause, error) {}

// TestUnfitServerIsRefused: a server that lacks what locks need grants none, and the error says what it has done. It is
// refused for the life of the process.
func TestUnfitServerIsRefused(t *testing.T) {
	for says, f := range map[string]faults{
		"could create an object at the same time":       {ignores: "If-None-Match"},
		"it creates an object that does not exist":      {ignores: "If-Match"},
		"16 of 16 writers could create":                 {apart: true},
		"ignores If-Match: it creates":                  {creates: true},
		"after a write with the ETag":                   {stale: true},
		"the clocks of two servers at this address":     {ahead: time.Minute},
		"a cache has answered":                          {cached: true},
		"the answer has no Last-Modified":               {unmodified: true},
		"functionality that is not implemented":         {lacks: true},
		"redirects are not followed, here to http://12": {redirects: true},
	} {
		t.Run(says, func(t *testing.T) {
			s := serve(t, f)
			store := s.open(t)
			_, err := store.Acquire(t.Context(), request("a"))
			if err == nil { // what only a later read shows
				_, err = store.Inspect(t.Context(), "a")
			}
			want := driver.CodeRefused
			if f.redirects {
				want = driver.CodeUnknown // a PUT may have been applied before its answer
			}
			if driver.CodeOf(err) != want || !strings.Contains(fmt.Sprint(err), says) {
				t.Errorf("Acquire: %v (%s)", err, driver.CodeOf(err))
			}
			if s.count("PUT probe") == 0 {
				t.Error("there was no probe")
			}
			for path := range s.objects {
				if strings.HasPrefix(path, "probe") {
					t.Errorf("the probe has left %s", path)
				}
			}
		})
	}
}

// TestConvictedServerStaysRefused: a second probe might not see what the first has seen.
func TestConvictedServerStaysRefused(t *testing.T) {
	s := serve(t, faults{apart: true})
	for range 2 {
		if _, err := s.open(t).Acquire(t.Context(), request("a")); driver.CodeOf(err) != driver.CodeRefused {
			t.Errorf("Acquire: %v", err)
		}
		s.mu.Lock()
		s.apart = false
		s.mu.Unlock()
	}
}

// TestBucketIsProbedOnce: the stores of a process share one probe, and a lock and its release are three requests.
func TestBucketIsProbedOnce(t *testing.T) {
	s := serve(t, faults{})
	for i := range 3 {
		store := s.open(t)
		g, err := store.Acquire(t.Context(), request(fmt.Sprint(i)))
		must.Succeed(t, err)
		must.Report(t, store.Release(t.Context(), g, 0))
	}
	reads, writes, deletes := s.count("GET probe"), s.count("PUT probe"), s.count("DELETE")
	if reads != 35 || writes != 35 || deletes != 1 {
		t.Errorf("the probe made %d reads, %d writes and %d deletes, want 35, 35 and 1", reads, writes, deletes)
	}
	if reads, writes := s.count("GET lock"), s.count("PUT lock"); reads != 3 || writes != 6 {
		t.Errorf("three pairs made %d reads and %d writes, want 3 and 6", reads, writes)
	}
}

// TestWriteIsSentOnce: after a write without an answer, the outcome is unknown, and the client does not send it again.
// A write that finds no server is unavailable.
func TestWriteIsSentOnce(t *testing.T) {
	s := serve(t, faults{drops: "value_00_00lost"})
	store := s.open(t)
	if _, err := store.Put(t.Context(), "kept", nil, ""); err != nil { // its connection is used again
		t.Fatal(err)
	}
	if _, err := store.Put(t.Context(), "lost", nil, ""); driver.CodeOf(err) != driver.CodeUnknown {
		t.Errorf("Put: %v", err)
	}
	if n := s.count("PUT value_00_00lost"); n != 1 {
		t.Errorf("the write was sent %d times", n)
	}
	s.Close()
	for { // a connection may end while a write uses it
		_, err := store.Put(t.Context(), "other", nil, "")
		if driver.CodeOf(err) == driver.CodeUnavailable {
			break
		} else if driver.CodeOf(err) != driver.CodeUnknown {
			t.Fatalf("Put without a server: %v", err)
		}
	}
}

// TestVersionOfAnotherKindIsConflict: a version that no server has made is not sent, above all not *, which every
// version matches.
func TestVersionOfAnotherKindIsConflict(t *testing.T) {
	s := serve(t, faults{})
	store := s.open(t)
	if _, err := store.Put(t.Context(), "key", nil, ""); err != nil {
		t.Fatal(err)
	}
	for _, version := range []string{"*", `W/"a"`, "\"a\r\nb\"", `"a", "b"`, "a"} {
		if _, err := store.Put(t.Context(), "key", nil, version); driver.CodeOf(err) != driver.CodeConflict {
			t.Errorf("version %q: %v", version, err)
		}
	}
	if n := s.count("PUT value"); n != 1 {
		t.Errorf("%d writes", n)
	}
}
