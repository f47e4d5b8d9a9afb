package redis

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/holdfast-go/holdfast/check/servers"
	"github.com/holdfast-go/holdfast/driver"
)

// cancelled tells whether a request ended because it was cancelled. It would also end
// when the connection to a server that is silent is given up, by a timeout.
func cancelled(err error) bool {
	timeout, ok := errors.AsType[net.Error](err)
	return errors.Is(err, context.Canceled) && !(ok && timeout.Timeout())
}

// settled uses a client of redisstore's own until it has its second connection, for
// whoever asks alone, which it makes when it has been at rest for a while.
func settled(t *testing.T, r *servers.Redis, s driver.Store) {
	t.Helper()
	const shared, alone, asking = 1, 1, 1
	for end := time.Now().Add(testTimeout); ; {
		pairs(t, s, 50)
		info, err := r.Info(t.Context(), "clients")
		if err != nil {
			t.Fatal(err)
		}
		if n, _ := strconv.Atoi(info["connected_clients"]); n >= shared+alone+asking {
			break
		}
		if time.Now().After(end) {
			t.Fatal("there is no connection for whoever asks alone")
		}
	}
	pairs(t, s, 50) // it is greeted by now
}

// pairs takes and releases a lock, one after the other.
func pairs(t *testing.T, s driver.Store, n int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for range n {
		g, err := s.Acquire(ctx, request("alone", driver.Exclusive, 30*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Release(ctx, g, 0); err != nil {
			t.Fatal(err)
		}
	}
}

// A request has a deadline far away and is cancelled while the server is silent: it
// returns, and the next one is served as soon as the server is.
func TestCancelledAlone(t *testing.T) {
	r := start(t)
	s := open(t, "redis://"+r.Address())
	settled(t, r, s)
	if err := r.Pause(); err != nil {
		t.Fatal(err)
	}
	for name, act := range map[string]func(context.Context) error{
		"acquire": func(ctx context.Context) error {
			_, err := s.Acquire(ctx, request("silent", driver.Exclusive, time.Minute))
			return err
		},
		"undo": func(ctx context.Context) error {
			return s.Undo(ctx, request("silent", driver.Exclusive, time.Minute))
		},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		done := make(chan error, 1)
		go func() { done <- act(ctx) }()
		select {
		case err := <-done:
			t.Errorf("%s: a server that is stopped answered: %v", name, err)
		case <-time.After(50 * time.Millisecond): // it is under way
		}
		cancel()
		select {
		case err := <-done:
			if !cancelled(err) {
				t.Errorf("%s: %v", name, err)
			}
		case <-time.After(testTimeout):
			t.Errorf("%s: it did not return when it was cancelled", name)
		}
	}
	if err := r.Cont(); err != nil {
		t.Fatal(err)
	}
	pairs(t, s, 1)
}

// More requests than a connection has room for are under way when the server falls
// silent: all return when their context ends, and the client goes on when the server
// does.
func TestManyCancelled(t *testing.T) {
	t.Run("rueidis", func(t *testing.T) {
		r := start(t)
		s := kept(t, overRueidis("redis://"+r.Address()))()
		settled(t, r, s)
		manyCancelled(t, r, s)
	})
	t.Run("goredis", func(t *testing.T) {
		r := start(t)
		manyCancelled(t, r, kept(t, overGoredis(func() goredis.UniversalClient {
			return goredis.NewClient(&goredis.Options{Addr: r.Address()})
		}))())
	})
}

func manyCancelled(t *testing.T, r *servers.Redis, s driver.Store) {
	pairs(t, s, 1)
	if err := r.Pause(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	const n = 2000
	done := make(chan error, n)
	for i := range n {
		go func() {
			_, err := s.Acquire(ctx, request(fmt.Sprint("many", i), driver.Exclusive, time.Minute))
			done <- err
		}()
	}
	time.AfterFunc(100*time.Millisecond, cancel)
	late := time.After(testTimeout)
	for i := range n {
		select {
		case err := <-done:
			if !cancelled(err) {
				t.Errorf("a request to a server that is stopped, cancelled: %v", err)
			}
		case <-late:
			_ = r.Cont()
			t.Fatalf("%d of %d did not return when they were cancelled", n-i, n)
		}
	}
	if err := r.Cont(); err != nil {
		t.Fatal(err)
	}
	// What was sent before may still be granted, and connections may be made anew: what
	// gets no answer may have taken its name.
	for end, try := time.Now().Add(testTimeout), 0; ; try++ {
		g, err := s.Acquire(t.Context(), request(fmt.Sprintf("after-%d", try), driver.Exclusive, long))
		if err == nil {
			release(t, s, g)
			return
		}
		if c := s.Classify(err); c != driver.CodeUnknown && c != driver.CodeUnavailable || time.Now().After(end) {
			t.Fatal(err)
		}
	}
}
