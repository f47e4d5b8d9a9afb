package redis

import (
	"bufio"
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/console"
)

// gateway is a server of package console over Redis.
type gateway struct {
	url    string
	client *http.Client
}

func newGateway(t *testing.T, url string) *gateway {
	t.Helper()
	l, err := holdfast.New(open(t, url))
	check(t, err)
	ctx, end := context.WithCancel(context.Background())
	h, err := console.Handler(ctx, map[string]*holdfast.Locker{"redis": l}, console.Options{
		Log: slog.New(slog.DiscardHandler), Client: func(*http.Request) (console.Client, bool) { return console.Everything("test"), true }})
	check(t, err)
	web := httptest.NewServer(h)
	g := &gateway{web.URL, &http.Client{Transport: &http.Transport{}}}
	t.Cleanup(func() {
		end()
		g.client.CloseIdleConnections()
		web.Close()
		closing, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_ = l.Close(closing)
	})
	return g
}

// lent is a line of a stream, and when the client has sent the request.
type lent struct {
	Event, Token string
	Valid        float64 `json:"valid_seconds"`
	Error        struct{ Cause string }
	sent         time.Time
}

// lock locks a name and calls use for each line of the stream until use returns false.
func (g *gateway) lock(ctx context.Context, name, body string, use func(lent) bool) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, "POST", g.url+"/v1/locks/"+name, strings.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	sent := time.Now()
	resp, err := g.client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		m := lent{sent: sent}
		if err := json.Unmarshal(lines.Bytes(), &m); err != nil {
			return err
		}
		if !use(m) {
			return nil
		}
	}
	return lines.Err()
}

// TestServeExcludesClientsOfTwoGateways: clients of two servers, which end their streams without a release, never hold
// the lock together, and all get it.
func TestServeExcludesClientsOfTwoGateways(t *testing.T) {
	url := "redis://" + common(t).Address()
	gateways := []*gateway{newGateway(t, url), newGateway(t, url)}
	var mu sync.Mutex
	var counter int
	var last uint64
	var clients sync.WaitGroup
	const each, n = 10, 6
	for i := range n {
		clients.Go(func() {
			for range each {
				err := gateways[i%2].lock(t.Context(), "serve-counter", `{"ttl_seconds": 10}`, func(m lent) bool {
					if m.Event != "granted" {
						return m.Event == "queued"
					}
					if !mu.TryLock() {
						t.Error("two clients hold the lock")
						return false
					}
					counter++
					token, err := strconv.ParseUint(m.Token, 10, 64)
					if err != nil || token <= last {
						t.Errorf("token %s after %d: %v", m.Token, last, err)
					}
					last = token
					mu.Unlock()
					return false // the stream ends, as of a client that is killed
				})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	clients.Wait()
	if counter != n*each {
		t.Errorf("%d of %d clients have held the lock", counter, n*each)
	}
}

// TestServeReportsLoss: a deleted key ends the stream with the cause, and so does a Redis that does not answer, not
// before the end of the validity that the client has.
func TestServeReportsLoss(t *testing.T) {
	r := start(t)
	g := newGateway(t, "redis://"+r.Address())
	for _, c := range []struct {
		name  string
		lose  func()
		cause holdfast.Cause
	}{
		{"deleted", func() { _, err := r.Do(t.Context(), "FLUSHALL"); check(t, err) }, holdfast.CauseGone},
		{"paused", func() { check(t, r.Pause()) }, holdfast.CauseExpired},
	} {
		t.Run(c.name, func(t *testing.T) {
			var valid time.Time // until when the client relies on the lock
			lost := lent{}
			check(t, g.lock(t.Context(), "lost", `{"ttl_seconds": 3}`, func(m lent) bool {
				switch m.Event {
				case "granted":
					c.lose()
					fallthrough
				case "valid":
					valid = m.sent.Add(time.Duration(m.Valid * float64(time.Second)))
					return true
				}
				lost = m
				return false
			}))
			if lost.Event != "lost" || lost.Error.Cause != string(c.cause) {
				t.Errorf("%+v", lost)
			}
			// The gateway renews in the background, so its own validity may end later than the one that it has sent last,
			// and never earlier.
			if c.cause == holdfast.CauseExpired && time.Now().Before(valid) {
				t.Errorf("lost %s before the client's validity ends", time.Until(valid))
			}
		})
	}
}
