package redis

import (
	"context"
	"errors"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/servers"
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
	eventually(t, "the client has a connection for a sole caller", func() bool {
		pairs(t, s, 50)
		return connected(t, []*servers.Redis{r})[0] >= shared+alone+ours
	})
	pairs(t, s, 50) // these pairs use the new connection
}

// pairs takes and releases a lock n times.
func pairs(t *testing.T, s driver.Store, n int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for range n {
		g, err := s.Acquire(ctx, request("alone", driver.Exclusive, 30*time.Second))
		check(t, err)
		check(t, s.Release(ctx, g, 0))
	}
}

// TestCancelEndsManyRequestsToSilentServer pauses the server, and sends more requests than one
// connection buffers. All of them return when their context ends. When the server continues, the client
// works again.
func TestCancelEndsManyRequestsToSilentServer(t *testing.T) {
	r := start(t)
	s := open(t, "redis://"+r.Address())
	settled(t, r, s)
	pairs(t, s, 1)
	check(t, r.Pause())
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
	check(t, r.Cont())
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
