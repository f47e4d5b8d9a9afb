package zk

import (
	"context"
	"errors"
	"net"
	"os"
	"testing"
	"time"
)

// TestReasonIsKept: an attempt to connect fails for a clear reason, and later attempts time out.
// Open and Limits still return the clear reason.
func TestReasonIsKept(t *testing.T) {
	refused := errors.New("first record does not look like a TLS handshake")
	timedOut := &net.OpError{Op: "dial", Net: "tcp", Err: os.ErrDeadlineExceeded}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	tries := 0
	c := Config{Servers: func() []string { return []string{"a:1"} }, Timeout: 6 * time.Second, Dial: func(context.Context, string, string) (net.Conn, error) {
		switch tries++; tries {
		case 1, 3:
			return nil, refused
		case 5:
			cancel()
		}
		return nil, timedOut
	}}
	if _, err := Open(ctx, c); !errors.Is(err, refused) {
		t.Errorf("a session, after %d tries: %v", tries, err)
	}
	ctx, cancel = context.WithCancel(t.Context())
	defer cancel()
	tries = 0
	if _, _, err := Limits(ctx, c); !errors.Is(err, refused) {
		t.Errorf("the limits, after %d tries: %v", tries, err)
	}
}

// TestAttemptTimeoutGrows: a server that does not answer costs a session one second at first. A slow
// server gets the whole limit.
func TestAttemptTimeoutGrows(t *testing.T) {
	const full = 5 * time.Second
	for n, want := range []time.Duration{time.Second, 2 * time.Second, 4 * time.Second, full, full} {
		if got := attemptTimeout(full, n); got != want {
			t.Errorf("after %d timeouts: %s, want %s", n, got, want)
		}
	}
	if got := attemptTimeout(full, 1000); got != full {
		t.Errorf("after many timeouts: %s, want %s", got, full)
	}
	if got := attemptTimeout(300*time.Millisecond, 0); got != 300*time.Millisecond {
		t.Errorf("of a short limit: %s", got)
	}
}
