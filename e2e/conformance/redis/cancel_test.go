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

// cancelled reports whether a request ended by its cancellation. A timeout on the connection to a
// silent server would also end it.
func cancelled(err error) bool {
	timeout, ok := errors.AsType[net.Error](err)
	return errors.Is(err, context.Canceled) && !(ok && timeout.Timeout())
}

// settled uses a client of package redisstore until the client has its second connection. After several
// requests of a sole caller the client opens that connection in the background.
func settled(t *testing.T, r *servers.Redis, s driver.Store) {
	t.Helper()
	const shared, alone, ours = 1, 1, 1 // ours sends INFO
	for end := time.Now().Add(testTimeout); ; {
		pairs(t, s, 50)
		info, err := r.Info(t.Context(), "clients")
		if err != nil {
			t.Fatal(err)
		}
		if n, _ := strconv.Atoi(info["connected_clients"]); n >= shared+alone+ours {
			break
		}
		if time.Now().After(end) {
			t.Fatal("the client has no connection for a sole caller")
		}
	}
	pairs(t, s, 50) // these pairs use the new connection
}

// pairs takes and releases a lock n times.
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

// TestCancelEndsRequestToSilentServer: the server is silent, and the caller cancels a request with a
// distant deadline. The request returns. When the server continues, the next request succeeds.
func TestCancelEndsRequestToSilentServer(t *testing.T) {
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
			t.Errorf("%s: a paused server answered: %v", name, err)
		case <-time.After(50 * time.Millisecond): // the request is in flight
		}
		cancel()
		select {
		case err := <-done:
			if !cancelled(err) {
				t.Errorf("%s: %v", name, err)
			}
		case <-time.After(testTimeout):
			t.Errorf("%s: it did not return after its cancellation", name)
		}
	}
	if err := r.Cont(); err != nil {
		t.Fatal(err)
	}
	pairs(t, s, 1)
}

// TestCancelEndsManyRequestsToSilentServer pauses the server, and sends more requests than one
// connection buffers. All of them return when their context ends. When the server continues, the client
// works again.
func TestCancelEndsManyRequestsToSilentServer(t *testing.T) {
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
				t.Errorf("a cancelled request to a paused server: %v", err)
			}
		case <-late:
			_ = r.Cont()
			t.Fatalf("%d of %d did not return after their cancellation", n-i, n)
		}
	}
	if err := r.Cont(); err != nil {
		t.Fatal(err)
	}
	// The server may still grant earlier requests, and the client may reconnect. A request
	// without an answer may have taken its name, so each attempt has a new name.
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
