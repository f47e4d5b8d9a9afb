//go:build linux || darwin

package check

import (
	"context"
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/must"
)

// TestFaultMayEndWithItsRound requires that a fault may still wait for a silent server when
// the faults of its round end. The check does not fail then, and calls the fault's End.
func TestFaultMayEndWithItsRound(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	must.Succeed(t, err)
	defer silent.Close()
	log, err := newLog(filepath.Join(t.TempDir(), "log.jsonl"), "c")
	must.Succeed(t, err)
	defer log.Close()

	ended := false
	silence := StoreFault{
		Kind: "silence",
		Begin: func(ctx context.Context, _ Fault) error {
			c, err := net.Dial("tcp", silent.Addr().String())
			if err != nil {
				return err
			}
			defer c.Close()
			deadline, _ := ctx.Deadline()
			if err := c.SetReadDeadline(deadline); err != nil {
				return err
			}
			_, err = c.Read(make([]byte, 1))
			return err
		},
		End: func(context.Context, Fault) error { ended = true; return nil },
	}
	c := &crew{log: log, members: []*member{{}}, target: &Target{Faults: []StoreFault{silence}}}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := c.inject(ctx, Fault{Kind: "silence", For: time.Hour}); err != nil || !ended {
		t.Errorf("%v, ended: %v", err, ended)
	}
}
