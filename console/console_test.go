package console_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/console"
	"github.com/holdfast-go/holdfast/driver"
	_ "github.com/holdfast-go/holdfast/filestore"
	"github.com/holdfast-go/holdfast/memstore"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// audit is a log that a test reads.
type audit struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (a *audit) Write(p []byte) (int, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.b.Write(p)
}

func (a *audit) String() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.b.String()
}

// server is a handler on a real HTTP server.
type server struct {
	t      *testing.T
	locker *holdfast.Locker
	url    string
	log    audit
	end    context.CancelFunc
	client *http.Client
	token  string
}

func everything(*http.Request) (console.Client, bool) { return console.Everything(""), true }

func serve(t *testing.T, l *holdfast.Locker, o console.Options) *server {
	t.Helper()
	s := &server{t: t, locker: l, client: &http.Client{Transport: &http.Transport{}}}
	if o.Client == nil {
		o.Client = everything
	}
	o.Log = slog.New(slog.NewTextHandler(&s.log, nil))
	ctx, end := context.WithCancel(context.Background())
	s.end = end
	h, err := console.Handler(ctx, map[string]*holdfast.Locker{"store": l}, o)
	must(t, err)
	web := httptest.NewServer(h)
	s.url = web.URL
	t.Cleanup(func() {
		end()
		s.client.CloseIdleConnections()
		web.Close()
		must(t, l.Close(context.Background()))
	})
	return s
}

func memory(t *testing.T, o console.Options) (*server, *memstore.Store) {
	t.Helper()
	store := memstore.New()
	l, err := holdfast.New(store, holdfast.Process("h", "gateway"))
	must(t, err)
	return serve(t, l, o), store
}

// onStores runs a test on the memory and the file store.
func onStores(t *testing.T, test func(*testing.T, *server)) {
	t.Run("memory", func(t *testing.T) { s, _ := memory(t, console.Options{}); test(t, s) })
	t.Run("file", func(t *testing.T) {
		l, err := holdfast.Open(t.Context(), "file://"+t.TempDir())
		must(t, err)
		test(t, serve(t, l, console.Options{}))
	})
}

func (s *server) request(ctx context.Context, method, path string, body any) *http.Request {
	s.t.Helper()
	var r io.Reader
	if body != nil {
		b, err := json.Marshal(body)
		must(s.t, err)
		r = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, s.url+path, r)
	must(s.t, err)
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if s.token != "" {
		req.Header.Set("Authorization", "Bearer "+s.token)
	}
	return req
}

// message has the fields of all answers.
type message struct {
	Event, ID, Token, Version string
	Data                      []byte
	Holders                   []struct{ Token, Reason string }
	Waiters                   []struct{ Reason string }
	Valid                     *float64 `json:"valid_seconds"`
	Error                     *struct{ Code, Cause, Newest, Message string }
	Deadlocks                 [][]struct{ Name string }
	Locks                     []struct{ Name string }
}

type object map[string]any

// do sends a request and returns the status and the answer.
func (s *server) do(method, path string, body any) (status int, m message) {
	s.t.Helper()
	resp, err := s.client.Do(s.request(s.t.Context(), method, path, body))
	must(s.t, err)
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	must(s.t, err)
	if err := json.Unmarshal(b, &m); err != nil {
		s.t.Fatalf("%s %s: %d %q: %v", method, path, resp.StatusCode, b, err)
	}
	return resp.StatusCode, m
}

// want sends a request and fails the test if the status or the code of the error differs.
func (s *server) want(status int, code, method, path string, body any) message {
	s.t.Helper()
	got, m := s.do(method, path, body)
	is := ""
	if m.Error != nil {
		is = m.Error.Code
	}
	if got != status || is != code {
		s.t.Fatalf("%s %s: %d %q (%+v), want %d %q", method, path, got, is, m.Error, status, code)
	}
	return m
}

// stream is a lock that a client holds.
type stream struct {
	t     *testing.T
	close context.CancelFunc
	lines *bufio.Scanner
	resp  *http.Response
}

func (s *server) lock(name string, body any) *stream {
	s.t.Helper()
	ctx, cancel := context.WithCancel(s.t.Context())
	s.t.Cleanup(cancel)
	resp, err := s.client.Do(s.request(ctx, "POST", "/v1/locks/"+url.PathEscape(name), body))
	must(s.t, err)
	s.t.Cleanup(func() { resp.Body.Close() })
	return &stream{s.t, cancel, bufio.NewScanner(resp.Body), resp}
}

// next returns the next line with an event other than valid.
func (s *stream) next(event string) (m message) {
	s.t.Helper()
	for s.lines.Scan() {
		m = message{}
		must(s.t, json.Unmarshal(s.lines.Bytes(), &m))
		repeated := m.Event == "valid" || m.Event == "queued" && m.Holders == nil
		if repeated && m.Event != event {
			continue
		}
		if m.Event != event {
			s.t.Fatalf("%s, want %s: %s", m.Event, event, s.lines.Bytes())
		}
		return m
	}
	s.t.Fatalf("the stream has ended before %s: %v", event, s.lines.Err())
	return m
}

// TestQueuedIsRepeated: a client that waits gets lines, so that it can notice a dead server.
func TestQueuedIsRepeated(t *testing.T) {
	t.Parallel()
	s, _ := memory(t, console.Options{})
	held := s.lock("x", nil)
	id := held.next("granted").ID
	waiting := s.lock("x", nil)
	if m := waiting.next("queued"); len(m.Holders) != 1 {
		t.Errorf("%+v", m)
	}
	waiting.next("queued")
	s.want(200, "", "POST", "/v1/release/"+id, nil)
	waiting.next("granted")
}

// awaitFree waits until no lock is held or awaited.
func (s *server) awaitFree() {
	s.t.Helper()
	for states, err := range s.locker.WatchAll(s.t.Context()) {
		must(s.t, err)
		if len(states) == 0 {
			return
		}
	}
}

// TestStreamHoldsLockUntilItEnds: the lock is held as long as its stream, and the next client gets it then.
func TestStreamHoldsLockUntilItEnds(t *testing.T) {
	onStores(t, func(t *testing.T, s *server) {
		first := s.lock("a/ö b", object{"reason": "one"})
		one := first.next("granted")
		second := s.lock("a/ö b", object{"reason": "two", "wait_seconds": 60})
		if m := second.next("queued"); len(m.Holders) != 1 || m.Holders[0].Reason != "one for 127.0.0.1" {
			t.Errorf("%+v", m)
		}
		s.want(409, "busy", "POST", "/v1/locks/a%2F%C3%B6%20b", object{"wait_seconds": 0})
		first.close() // as a client that is killed
		two := second.next("granted")
		if one.ID == two.ID || one.Token == two.Token {
			t.Errorf("%+v after %+v", two, one)
		}
		s.want(200, "", "POST", "/v1/release/"+two.ID, nil)
		second.next("released")
		if second.lines.Scan() {
			t.Error("a line after the end")
		}
		s.want(404, "not_held", "POST", "/v1/release/"+two.ID, nil)
		s.awaitFree()
	})
}

// TestWaiterThatLeavesIsWithdrawn: a client that is killed while it waits leaves no queue entry.
func TestWaiterThatLeavesIsWithdrawn(t *testing.T) {
	onStores(t, func(t *testing.T, s *server) {
		first := s.lock("x", nil)
		granted := first.next("granted")
		second := s.lock("x", nil)
		second.next("queued")
		for m := (message{}); len(m.Waiters) == 0; m = s.want(200, "", "GET", "/v1/locks/x", nil) {
		}
		second.close()
		// The lock is held on, so only the end of the client ends its wait.
		for st, err := range s.locker.Watch(t.Context(), "x") {
			must(t, err)
			if len(st.Waiters) == 0 {
				break
			}
		}
		third := s.lock("x", object{"wait_seconds": 0.05})
		third.next("queued")
		if m := third.next("failed"); m.Error.Code != "busy" {
			t.Errorf("%+v", m.Error)
		}
		s.want(200, "", "POST", "/v1/release/"+granted.ID, nil)
		s.awaitFree()
	})
}

// TestBreakEndsStream: the holder gets the loss with its cause, and the log has the break.
func TestBreakEndsStream(t *testing.T) {
	onStores(t, func(t *testing.T, s *server) {
		held := s.lock("x", nil)
		granted := held.next("granted")
		s.want(400, "invalid", "POST", "/v1/break", object{"name": "x", "token": granted.Token, "reason": " "})
		s.want(404, "not_held", "POST", "/v1/break", object{"name": "x", "token": "9007199254740993", "reason": "stuck"})
		s.want(200, "", "POST", "/v1/break", object{"name": "x", "token": granted.Token, "reason": "stuck since noon"})
		if m := held.next("lost"); m.Error.Cause != string(holdfast.CauseTaken) {
			t.Errorf("%+v", m.Error)
		}
		if log := s.log.String(); !strings.Contains(log, `reason="stuck since noon" outcome=broken`) {
			t.Errorf("log: %s", log)
		}
		s.awaitFree()
	})
}

// TestLossEndsStream: a loss at the store reaches the client with its cause.
func TestLossEndsStream(t *testing.T) {
	s, store := memory(t, console.Options{})
	held := s.lock("x", nil)
	held.next("granted")
	must(t, store.Script().Lose("x", driver.CauseGone))
	if m := held.next("lost"); m.Error.Code != "lost" || m.Error.Cause != string(holdfast.CauseGone) {
		t.Errorf("%+v", m.Error)
	}
}

// TestEndOfServerEndsStreams: the streams end as lost, and all locks are released. That of a client without a stream,
// which does not notice, is kept until the client does not rely on it any more.
func TestEndOfServerEndsStreams(t *testing.T) {
	s, store := memory(t, console.Options{})
	held, waiting := s.lock("x", nil), s.lock("y", nil)
	held.next("granted")
	waiting.next("granted")
	late := s.lock("x", nil)
	late.next("queued")
	sent := time.Now()
	promised := s.want(200, "", "POST", "/v1/grants/z", object{"ttl_seconds": 0.5})
	s.want(200, "", "POST", "/v1/release/"+s.want(200, "", "POST", "/v1/grants/free", object{"ttl_seconds": 3600}).ID, nil)
	s.end()
	if m := held.next("lost"); m.Error.Cause != string(holdfast.CauseClosed) {
		t.Errorf("%+v", m.Error)
	}
	waiting.next("lost")
	late.next("failed")
	other, err := holdfast.New(store)
	must(t, err)
	for _, name := range []string{"free", "x", "y", "z"} {
		k, err := other.Lock(t.Context(), name, holdfast.Wait(time.Minute))
		must(t, err)
		if name == "z" && time.Since(sent).Seconds() < *promised.Valid {
			t.Error("another client has the lock while the client of a grant may rely on it")
		}
		must(t, k.Unlock())
	}
	must(t, other.Close(t.Context()))
}

// TestReleaseBesideARenewalKeepsNothing: a client renews its grant again and again, and releases it meanwhile. The name
// is free after the answer to the release.
func TestReleaseBesideARenewalKeepsNothing(t *testing.T) {
	s, store := memory(t, console.Options{})
	other, err := holdfast.New(store)
	must(t, err)
	for range 1000 {
		id := s.want(200, "", "POST", "/v1/grants/x", object{"ttl_seconds": 3600}).ID
		var renewing sync.WaitGroup
		for range 6 {
			renewing.Go(func() {
				for status := 200; status == 200; {
					status, _ = s.do("POST", "/v1/renew/"+id, nil)
				}
			})
		}
		s.want(200, "", "POST", "/v1/release/"+id, nil)
		k, err := other.TryLock(t.Context(), "x")
		must(t, err)
		must(t, k.Unlock())
		renewing.Wait()
	}
	must(t, other.Close(t.Context()))
}

// TestGrantEndsWithoutRenewal: a grant without a stream is held while it is renewed, and ends one TTL after that. A
// renewal that was answered within the validity of the last one succeeds.
func TestGrantEndsWithoutRenewal(t *testing.T) {
	s, _ := memory(t, console.Options{})
	ttl, m := 0.2, message{}
	for late := true; late; ttl *= 2 { // a busy machine may renew too late
		sent := time.Now()
		m = s.want(200, "", "POST", "/v1/grants/x", object{"ttl_seconds": ttl})
		late = false
		for began, valid := sent, *m.Valid; time.Since(began).Seconds() < 2*ttl && !late; {
			again := time.Now()
			status, renewed := s.do("POST", "/v1/renew/"+m.ID, nil)
			if late = time.Since(sent).Seconds() >= valid; late {
				break
			}
			if status != 200 || renewed.Token != m.Token || *renewed.Valid > ttl {
				t.Fatalf("%d %+v", status, renewed)
			}
			sent, valid = again, *renewed.Valid
		}
		if late {
			s.do("POST", "/v1/release/"+m.ID, nil)
		}
	}
	s.want(409, "busy", "POST", "/v1/grants/x", nil)
	// The next client is granted the lock when the grant has expired.
	s.want(200, "", "POST", "/v1/grants/x", object{"wait_seconds": 60})
	// On a busy machine the lock may have been lost at the store first.
	if status, got := s.do("POST", "/v1/renew/"+m.ID, nil); status != 404 && status != 410 {
		t.Errorf("%d %+v", status, got)
	}
}

// TestLostGrantIsReported: the renewal of a lost grant reports the cause, once.
func TestLostGrantIsReported(t *testing.T) {
	s, store := memory(t, console.Options{})
	m := s.want(200, "", "POST", "/v1/grants/x", nil)
	must(t, store.Script().Lose("x", driver.CauseGone))
	for status := 200; status == 200; { // until the loss has been noticed
		var got message
		status, got = s.do("POST", "/v1/renew/"+m.ID, nil)
		if status != 200 && (status != 410 || got.Error.Cause != string(holdfast.CauseGone)) {
			t.Errorf("%d %+v", status, got.Error)
		}
	}
	s.want(404, "not_held", "POST", "/v1/renew/"+m.ID, nil)
}

// TestStreamsLeaveNothing: thousands of streams end in all ways and leave neither locks nor goroutines.
func TestStreamsLeaveNothing(t *testing.T) {
	n := 2000
	if testing.Short() {
		n = 200
	}
	s, _ := memory(t, console.Options{Streams: n + 1})
	var streams []*stream
	var ids []string
	for i := range n {
		k := s.lock(fmt.Sprint("name ", i), nil)
		ids = append(ids, k.next("granted").ID)
		streams = append(streams, k)
	}
	s.want(200, "", "GET", "/v1/locks?prefix=none", nil)
	for i, k := range streams {
		if i%2 == 0 {
			k.close()
		} else {
			s.want(200, "", "POST", "/v1/release/"+ids[i], nil)
			k.next("released")
		}
	}
	s.awaitFree()
}

// TestStreamsOfClientAreLimited: the limit counts streams and grants, and a stream that ends makes room.
func TestStreamsOfClientAreLimited(t *testing.T) {
	s, _ := memory(t, console.Options{Streams: 2})
	first := s.lock("a", nil)
	id := first.next("granted").ID
	grant := s.want(200, "", "POST", "/v1/grants/b", nil)
	s.want(429, "limit", "POST", "/v1/grants/c", nil)
	s.want(429, "limit", "POST", "/v1/locks/c", nil)
	s.want(429, "limit", "GET", "/v1/events", nil)
	s.want(200, "", "POST", "/v1/release/"+grant.ID, nil)
	for status := 429; status == 429; { // the end of the grant's context makes the room
		status, grant = s.do("POST", "/v1/grants/c", nil)
	}
	s.want(200, "", "POST", "/v1/release/"+grant.ID, nil)
	s.want(200, "", "POST", "/v1/release/"+id, nil)
}

// TestShowFindsDeadlock: a cycle between two processes is in the form of a lock and in the overview.
func TestShowFindsDeadlock(t *testing.T) {
	s, store := memory(t, console.Options{})
	other, err := holdfast.New(store, holdfast.Process("h", "other"))
	must(t, err)
	_, err = s.locker.Lock(t.Context(), "a")
	must(t, err)
	_, err = other.Lock(t.Context(), "b")
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	var waiters sync.WaitGroup
	waiters.Go(func() { _, _ = s.locker.Lock(ctx, "b") })
	waiters.Go(func() { _, _ = other.Lock(ctx, "a") })
	p := s.page("")
	for len(p.next().Stores[0].Deadlocks) == 0 {
	}
	if m := s.want(200, "", "GET", "/v1/locks/a", nil); len(m.Deadlocks) != 1 || len(m.Deadlocks[0]) != 2 {
		t.Errorf("%+v", m)
	}
	cancel()
	waiters.Wait()
	must(t, other.Close(t.Context()))
}

// TestValuesGuardsAndSequences: the versioned values of the store, and what stands on them.
func TestValuesGuardsAndSequences(t *testing.T) {
	onStores(t, func(t *testing.T, s *server) {
		v := s.want(200, "", "GET", "/v1/values/k%2F1", nil)
		v = s.want(200, "", "PUT", "/v1/values/k%2F1", object{"data": "aGk=", "version": v.Version})
		if got := s.want(200, "", "GET", "/v1/values/k%2F1", nil); string(got.Data) != "hi" || got.Version != v.Version {
			t.Errorf("%+v", got)
		}
		s.want(409, "conflict", "PUT", "/v1/values/k%2F1", object{"data": "aGk=", "version": ""})
		s.want(200, "", "POST", "/v1/guards/r", object{"token": "5"})
		s.want(200, "", "POST", "/v1/guards/r", object{"token": "6"})
		if m := s.want(409, "stale", "POST", "/v1/guards/r", object{"token": "5"}); m.Error.Newest != "6" {
			t.Errorf("%+v", m.Error)
		}
		s.want(409, "stale", "POST", "/v1/guards/r", object{"token": "0"})
		s.want(502, "refused", "POST", "/v1/guards/k%2F1", object{"token": "5"})
		seen := map[string]bool{}
		for range 50 {
			id := s.want(200, "", "POST", "/v1/sequences/orders", nil).ID
			if id == "" || seen[id] {
				t.Fatalf("id %q twice", id)
			}
			seen[id] = true
		}
	})
}

// TestHandlerWorksBelowAPath: a service mounts the handler where it likes, and names keep their slashes.
func TestHandlerWorksBelowAPath(t *testing.T) {
	l, err := holdfast.New(memstore.New())
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	h, err := console.Handler(ctx, map[string]*holdfast.Locker{"m": l}, console.Options{Client: everything})
	must(t, err)
	mux := http.NewServeMux()
	mux.Handle("/admin/locks/", http.StripPrefix("/admin/locks", h))
	for _, c := range [][3]string{
		{"GET", "/admin/locks/", `src="page.js"`},
		{"GET", "/admin/locks/page.js", `"v1/events?"`},
		{"POST", "/admin/locks/v1/grants/a%2F%2Fb", `"token"`},
		{"GET", "/admin/locks/v1/locks/a%2F%2Fb", `"name":"a//b","held":true`},
	} {
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, httptest.NewRequest(c[0], c[1], nil))
		if w.Code != http.StatusOK || !strings.Contains(w.Body.String(), c[2]) {
			t.Errorf("%s %s: %d %.300s", c[0], c[1], w.Code, w.Body)
		}
	}
	cancel()
	must(t, l.Close(t.Context()))
}
