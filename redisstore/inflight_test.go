package redisstore

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// line is a connection whose server may be silent. It counts the requests in its ring. An
// abandoned request stays in the ring.
type line struct {
	ring, most atomic.Int32
	answers    chan struct{} // closed when the server answers again
}

func (l *line) request(ctx context.Context) (int, error) {
	n := l.ring.Add(1)
	for m := l.most.Load(); n > m && !l.most.CompareAndSwap(m, n); m = l.most.Load() {
	}
	answered := make(chan struct{})
	go func() {
		<-l.answers
		l.ring.Add(-1)
		close(answered)
	}()
	select {
	case <-answered:
		return 1, nil
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

// TestAbandonedRequestsDoNotFillRing cancels thousands of requests while the server is silent. It
// requires that the ring never fills, that each request returns at once, and that later requests
// get an answer.
func TestAbandonedRequestsDoNotFillRing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &rueidisClient{inflight: newInflight()}
		l := &line{answers: make(chan struct{})}
		time.Sleep(2 * unstableFor)
		began := time.Now()
		for wave := range 6 {
			ctx, cancel := context.WithCancel(t.Context())
			const n = 1000
			done := make(chan error, n)
			for range n {
				go func() {
					_, err := runDirect(ctx, c, l.request)
					done <- err
				}()
			}
			synctest.Wait()
			if len(done) > 0 {
				t.Errorf("wave %d: %d requests returned early: %v", wave, len(done), <-done)
			}
			cancel()
			synctest.Wait()
			if len(done) != n {
				t.Fatalf("wave %d: %d of %d requests returned after their cancellation", wave, len(done), n)
			}
			unsent := 0
			for range n {
				err := <-done
				if !errors.Is(err, context.Canceled) {
					t.Fatal(err)
				}
				if _, ok := errors.AsType[*NotSentError](err); ok {
					unsent++
				}
			}
			if wave == 0 && unsent != n-maxDirect-maxDetached {
				t.Errorf("%d of %d requests were not sent, want %d", unsent, n, n-maxDirect-maxDetached)
			}
			if wave > 0 && unsent != n {
				t.Errorf("wave %d: %d requests were sent although there was no space", wave, n-unsent)
			}
			time.Sleep(2 * unstableFor) // so that the connections are stable again
		}
		if took := time.Since(began); took >= abandonedFor {
			t.Fatalf("the waves took %s: abandoned requests may not count any more", took)
		}
		if most := l.most.Load(); most != maxDirect+maxDetached || most >= 1<<ringScale {
			t.Errorf("%d requests in a ring of %d", most, 1<<ringScale)
		}
		close(l.answers)
		synctest.Wait()
		for range 3 {
			if _, err := runDirect(t.Context(), c, l.request); err != nil {
				t.Fatal(err)
			}
			time.Sleep(abandonedFor) // the next request is direct again
		}
		if n, abandoned := c.inflight.direct.Load(), c.inflight.abandoned.Load(); n != 0 || abandoned != 0 || len(c.inflight.detached) != 0 {
			t.Errorf("requests still count: %d, %d, %d", n, abandoned, len(c.inflight.detached))
		}
		if first, ok := c.inflight.enter(); !first || !ok {
			t.Error("no space for the first request")
		}
	})
}

// TestClosedClientRefusesRequests requires an error for a request after Close. Such a request
// must not count as detached.
func TestClosedClientRefusesRequests(t *testing.T) {
	c := &rueidisClient{inflight: newInflight(), closed: true} // so each request is detached
	for range 2 * maxDetached {
		if _, err := runDirect(t.Context(), c, (&line{}).request); err != errClientClosed {
			t.Fatal(err)
		}
	}
}
