package console_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/console"
)

// page is a stream of updates.
type page struct {
	t     *testing.T
	lines *bufio.Reader
}

type update struct {
	Stores []struct {
		Held, Waiters int
		Deadlocks     [][]any
		Error         string
	}
	Total  int
	Order  []string
	Rows   map[string]struct{ Holders, Waiters int }
	Lock   *struct{ Name string }
	Events []struct{ Event, Error string }
}

func (s *server) page(query string) *page {
	s.t.Helper()
	ctx, cancel := context.WithCancel(s.t.Context())
	s.t.Cleanup(cancel)
	resp, err := s.client.Do(s.request(ctx, "GET", "/v1/events?"+query, nil))
	must(s.t, err)
	s.t.Cleanup(func() { resp.Body.Close() })
	if got := resp.Header.Get("Content-Type"); got != "text/event-stream" {
		s.t.Fatal(got)
	}
	return &page{s.t, bufio.NewReader(resp.Body)}
}

func (p *page) next() (u update) {
	p.t.Helper()
	line, err := p.lines.ReadString('\n')
	must(p.t, err)
	end, err := p.lines.ReadString('\n')
	if data, ok := strings.CutPrefix(line, "data: "); !ok || end != "\n" || err != nil {
		p.t.Fatalf("%q %q %v", line, end, err)
	} else {
		must(p.t, json.Unmarshal([]byte(data), &u))
	}
	return u
}

// TestPageGetsDifferences: of many locks the page gets those that it shows, and of these only what has changed.
func TestPageGetsDifferences(t *testing.T) {
	n := 10_000
	if testing.Short() {
		n = 1000
	}
	s, _ := memory(t, console.Options{})
	locks := map[string]*holdfast.Lock{}
	for i := range n {
		name := fmt.Sprintf("n/%05d", i)
		k, err := s.locker.Lock(t.Context(), name)
		must(t, err)
		locks[name] = k
	}
	p := s.page("offset=100&prefix=n/")
	u := p.next()
	for u.Total < n {
		u = p.next()
	}
	if len(u.Order) != 100 || u.Order[0] != "n/00100" || u.Stores[0].Held != n {
		t.Errorf("%d rows from %v, %d held", len(u.Order), u.Order[:1], u.Stores[0].Held)
	}
	must(t, locks["n/00150"].Unlock())
	for u = p.next(); u.Total == n; u = p.next() {
		if len(u.Rows) > 0 {
			t.Errorf("%d rows have come again", len(u.Rows))
		}
	}
	if _, ok := u.Rows["n/00200"]; !ok || len(u.Rows) != 1 || u.Order[50] != "n/00151" {
		t.Errorf("%v", u.Rows)
	}
	// The waiters decide the order.
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _, _ = s.locker.Lock(ctx, "n/00777") }()
	p = s.page("sort=waiters")
	for u = p.next(); len(u.Order) == 0 || u.Order[0] != "n/00777"; u = p.next() {
	}
	if u.Rows["n/00777"].Waiters != 1 {
		t.Errorf("%+v", u.Rows["n/00777"])
	}
	cancel()
	<-done
}

// TestTimelineHasWhatWasSeen: the page of a lock has its grants, releases, losses and breaks.
func TestTimelineHasWhatWasSeen(t *testing.T) {
	s, _ := memory(t, console.Options{})
	p := s.page("name=x")
	await := func(event string) (text string) {
		t.Helper()
		for {
			for _, e := range p.next().Events {
				if e.Event == event {
					return e.Error
				}
			}
		}
	}
	held := s.lock("x", nil)
	granted := held.next("granted")
	await("granted")
	s.want(200, "", "POST", "/v1/break", object{"name": "x", "token": granted.Token, "reason": "stuck"})
	if text := await("taken"); text != "127.0.0.1: stuck" {
		t.Error(text)
	}
	if text := await("lost"); text != string(holdfast.CauseTaken) {
		t.Error(text)
	}
	await("released")
}

// TestPageShowsStoreThatDoesNotAnswer: the overview has the error, and the rows stay.
func TestPageShowsStoreThatDoesNotAnswer(t *testing.T) {
	s, store := memory(t, console.Options{})
	k, err := s.locker.Lock(t.Context(), "x")
	must(t, err)
	p := s.page("")
	for len(p.next().Rows) == 0 {
	}
	must(t, store.Close(t.Context()))
	u := p.next()
	for u.Stores[0].Error == "" {
		u = p.next()
	}
	if len(u.Order) != 1 {
		t.Errorf("%+v", u)
	}
	_ = k.Unlock()
}

// TestPageLoadsItsOwnFilesOnly: the page has no inline script, no style and no address of another host, all its words
// exist in both languages, and the policy allows nothing else.
func TestPageLoadsItsOwnFilesOnly(t *testing.T) {
	s, _ := memory(t, console.Options{})
	get := func(path string) string {
		resp, err := s.client.Do(s.request(t.Context(), "GET", path, nil))
		must(t, err)
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		must(t, err)
		policy := resp.Header.Get("Content-Security-Policy")
		if resp.StatusCode != http.StatusOK || !strings.HasPrefix(policy, "default-src 'none'; script-src 'self';") {
			t.Errorf("%s: %d, %v", path, resp.StatusCode, resp.Header)
		}
		return string(b)
	}
	html, script := get("/"), get("/page.js")
	get("/page.css")
	if m := regexp.MustCompile(`(?i)\son\w+=|style=|<script>|https?://`).FindString(html); m != "" {
		t.Errorf("the page has %q", m)
	}
	if m := regexp.MustCompile(`innerHTML|outerHTML|insertAdjacent|document\.write|\beval\(`).FindString(script); m != "" {
		t.Errorf("the script has %q", m)
	}
	english, chinese, ok := strings.Cut(script, "\n  zh: {")
	if !ok {
		t.Fatal("no Chinese")
	}
	chinese, _, _ = strings.Cut(chinese, "\n};")
	for _, m := range regexp.MustCompile(`data-t="(\w+)"`).FindAllStringSubmatch(html, -1) {
		for language, words := range map[string]string{"English": english, "Chinese": chinese} {
			if !regexp.MustCompile(`\b` + m[1] + `: "`).MatchString(words) {
				t.Errorf("%q is missing in %s", m[1], language)
			}
		}
	}
}

// TestSlowReaderIsCut: a page that does not read is cut, and the handler ends its stream.
func TestSlowReaderIsCut(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for the timeout of a write")
	}
	s, _ := memory(t, console.Options{Streams: 1})
	reason := holdfast.Reason(strings.Repeat("r", holdfast.MaxReason))
	for range 500 { // updates that fill the buffers of the connection soon
		_, err := s.locker.Lock(t.Context(), "x", holdfast.Shared(), reason)
		must(t, err)
	}
	s.page("name=x") // nothing reads it
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	// Changes make the handler write until the buffers are full.
	for ctx.Err() == nil {
		k, err := s.locker.Lock(ctx, "x", holdfast.Shared())
		must(t, err)
		must(t, k.Unlock())
		if status, m := s.do("POST", "/v1/grants/free", nil); status == http.StatusOK {
			s.want(200, "", "POST", "/v1/release/"+m.ID, nil)
			return
		}
	}
	t.Error("the stream still counts")
}
