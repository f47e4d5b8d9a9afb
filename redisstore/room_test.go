package redisstore

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// line is a connection whose server may be silent: it counts what is in its ring. A
// request that is given up keeps its place there.
type line struct {
	ring, most atomic.Int32
	answers    chan struct{} // closed when the server goes on
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

// TestRoom: however many ask while a server is silent and give up, the ring never
// fills, all return at once, and those who ask when the server goes on are served.
func TestRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &rueidisClient{room: newRoom()}
		l := &line{answers: make(chan struct{})}
		time.Sleep(2 * shakyFor)
		began := time.Now()
		for wave := range 6 {
			ctx, cancel := context.WithCancel(t.Context())
			const n = 1000
			done := make(chan error, n)
			for range n {
				go func() {
					_, err := promptly(ctx, c, l.request)
					done <- err
				}()
			}
			synctest.Wait()
			if len(done) > 0 {
				t.Errorf("wave %d: %d had an answer: %v", wave, len(done), <-done)
			}
			cancel()
			synctest.Wait()
			if len(done) != n {
				t.Fatalf("wave %d: %d of %d returned when they were cancelled", wave, len(done), n)
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
			if wave == 0 && unsent != n-directMost-apartMost {
				t.Errorf("%d of %d were not sent", unsent, n)
			}
			if wave > 0 && unsent != n {
				t.Errorf("wave %d: %d were sent into a full room", wave, n-unsent)
			}
			time.Sleep(2 * shakyFor) // the next meet no shaky connection
		}
		if took := time.Since(began); took >= forgottenFor {
			t.Fatalf("the waves took %s: what they left may be forgotten", took)
		}
		if most := l.most.Load(); most != directMost+apartMost || most >= 1<<ringScale {
			t.Errorf("%d requests in a ring of %d", most, 1<<ringScale)
		}
		close(l.answers)
		synctest.Wait()
		for range 3 {
			if _, err := promptly(t.Context(), c, l.request); err != nil {
				t.Fatal(err)
			}
			time.Sleep(forgottenFor) // and on its own goroutine again
		}
		if n, gone := c.room.direct.Load(), c.room.gone.Load(); n != 0 || gone != 0 || len(c.room.apart) != 0 {
			t.Errorf("room is taken still: %d, %d, %d", n, gone, len(c.room.apart))
		}
		if first, ok := c.room.enter(); !first || !ok {
			t.Error("no room for the first")
		}
	})
}

// TestRoomAfterClose: who asks after Close is told so, and takes no room.
func TestRoomAfterClose(t *testing.T) {
	c := &rueidisClient{room: newRoom(), closed: true} // and shaky
	for range 2 * apartMost {
		if _, err := promptly(t.Context(), c, (&line{}).request); err != errClientClosed {
			t.Fatal(err)
		}
	}
}
