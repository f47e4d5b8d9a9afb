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
	c := Config{Servers: []string{"a:1"}, Timeout: 6 * time.Second, Dial: func(context.Context, string, string) (net.Conn, error) {
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
