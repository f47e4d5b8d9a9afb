package sqlkit

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/calls"
	"github.com/holdfast-go/holdfast/internal/contact"
)

// slowServer starts one connection after another, each for a time, and starts those whose clients have left, too.
type slowServer struct {
	mu          sync.Mutex
	dials, most int
	dialing     int
	started     time.Time // when the last connection is started
}

const startOfConnection = 100 * time.Millisecond

func (s *slowServer) dial(ctx context.Context) (Link, error) {
	s.mu.Lock()
	s.dials++
	s.dialing++
	s.most = max(s.most, s.dialing)
	if s.started.Before(time.Now()) {
		s.started = time.Now()
	}
	s.started = s.started.Add(startOfConnection)
	wait := time.Until(s.started)
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.dialing--
	}()
	select {
	case <-time.After(wait):
		return &countedLink{}, nil
	case <-ctx.Done():
		return nil, driver.Errorf(driver.CodeUnavailable, "%w", ctx.Err())
	}
}

// TestSlowServerServesImpatientCalls: each of many calls gives up before a slow server could serve them all at once, and
// tries again. All of them get a connection after the time that the server needs for as many.
func TestSlowServerServesImpatientCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &slowServer{}
		d := NewDialer(s.dial)
		defer d.Close()
		const calls = 50
		began := time.Now()
		var all sync.WaitGroup
		for range calls {
			all.Go(func() {
				for {
					ctx, cancel := context.WithTimeout(t.Context(), 2*startOfConnection+time.Millisecond)
					l, err := d.Dial(ctx)
					cancel()
					if err == nil {
						l.Close()
						return
					}
				}
			})
		}
		all.Wait()
		if took := time.Since(began); took > (calls+1)*startOfConnection || s.most > dialsAtOnce {
			t.Errorf("%d connections after %s and %d dials, up to %d at once", calls, took, s.dials, s.most)
		}
	})
}

// TestServerThatWaitsForItsClientIsSuspected: another kind of server accepts the connection, and waits for the client to
// speak first. The error says so, whether the time of the call or that of the dial is over.
func TestServerThatWaitsForItsClientIsSuspected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := NewDialer(func(ctx context.Context) (Link, error) {
			<-ctx.Done()
			return nil, &driver.Error{Code: driver.CodeUnavailable, Err: ctx.Err()}
		})
		defer d.Close()
		d.Contact = new(contact.Contact)
		accept := func(context.Context, string, string) (net.Conn, error) { return nil, nil }
		_, _ = d.Contact.Through(accept)(t.Context(), "tcp", "host:1")
		for _, timeout := range []time.Duration{dialWithin / 2, 2 * dialWithin} {
			ctx, cancel := context.WithTimeout(t.Context(), timeout)
			_, err := d.Dial(ctx)
			cancel()
			if driver.CodeOf(err) != driver.CodeUnavailable || !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "host:1 accepted the connection") {
				t.Errorf("after %s: %v", timeout, err)
			}
		}
	})
}

// TestDialServesTheNextCall: a dial outlives the call that began it, and serves the next one. Without one, the connection is
// closed.
func TestDialServesTheNextCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		link := &countedLink{}
		dials := 0
		d := NewDialer(func(context.Context) (Link, error) {
			dials++
			time.Sleep(time.Second)
			return link, nil
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second/2)
		defer cancel()
		if _, err := d.Dial(ctx); driver.CodeOf(err) != driver.CodeUnavailable || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a call without a connection returns %v", err)
		}
		if l, err := d.Dial(t.Context()); l != link || err != nil || dials != 1 {
			t.Errorf("%v, %v after %d dials", l, err, dials)
		}
		ctx, cancel = context.WithTimeout(t.Context(), time.Second/2)
		defer cancel()
		if _, err := d.Dial(ctx); err == nil {
			t.Error("a connection is there too early")
		}
		time.Sleep(time.Second)
		if !link.closed.Load() {
			t.Error("a connection that no call wants stays open")
		}
		d.Close()
		if _, err := d.Dial(t.Context()); err != calls.ErrClosed {
			t.Errorf("after Close: %v", err)
		}
	})
}

// TestCloseEndsDials: Close ends the dials under way, and the calls that wait for them.
func TestCloseEndsDials(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := NewDialer(func(ctx context.Context) (Link, error) { <-ctx.Done(); return nil, ctx.Err() })
		var all sync.WaitGroup
		for range 3 * dialsAtOnce {
			all.Go(func() {
				if _, err := d.Dial(t.Context()); err == nil {
					t.Error("a connection")
				}
			})
		}
		synctest.Wait()
		d.Close()
		all.Wait()
	})
}
