package contact

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"
)

// overdueContext is past its deadline, and its timer has not ended it yet.
type overdueContext struct{ context.Context }

func (overdueContext) Deadline() (time.Time, bool) { return time.Now(), true }

// TestExplainSuspectsAServerThatHasNotAnswered: the error names the address and what happened, until the first answer.
func TestExplainSuspectsAServerThatHasNotAnswered(t *testing.T) {
	var c Contact
	ended, end := context.WithCancel(t.Context())
	end()
	dial := func(ctx context.Context, address string, result error) {
		_, _ = c.Through(func(context.Context, string, string) (net.Conn, error) { return nil, result })(ctx, "tcp", address)
	}
	explained := func(err error, says string) {
		t.Helper()
		got := c.Explain(err)
		if !errors.Is(got, err) || (says == "") != (got == err) || !strings.Contains(got.Error(), says) {
			t.Errorf("%v is explained as %v, want %q", err, got, says)
		}
	}
	failed := &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
	timeout := fmt.Errorf("read: %w", context.DeadlineExceeded)
	explained(timeout, "")
	dial(t.Context(), "host:1", nil)
	explained(timeout, "host:1 accepted the connection and has not answered in time")
	explained(io.EOF, "host:1 ended the connection without an answer")
	explained(errors.New("ERR unknown command"), "")
	dial(ended, "host:2", failed) // the caller has given up: that says nothing about the server
	dial(overdueContext{t.Context()}, "host:2", failed)
	explained(syscall.ECONNRESET, "host:1 ended")
	dial(t.Context(), "host:2", failed)
	explained(timeout, "")
	dial(t.Context(), "host:2", context.DeadlineExceeded) // in the handshake of TLS
	explained(timeout, "host:2 accepted")
	if err := c.Explain(nil); err != nil {
		t.Error(err)
	}
	explained(timeout, "")
	explained(io.EOF, "")
	if err := (*Contact)(nil).Explain(io.EOF); err != io.EOF {
		t.Error(err)
	}
}
