//go:build linux || darwin

package run

import (
	"context"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/console"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/proc"
	"github.com/holdfast-go/holdfast/memstore"
)

// TestSignalDuringGrantIsReportedAsWait: a signal arrives at the moment of the grant. The run
// reports that the signal ended the wait, and reports no loss.
func TestSignalDuringGrantIsReportedAsWait(t *testing.T) {
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	p := console.New(null)
	defer p.Flush()
	l, err := holdfast.New(memstore.New())
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close(t.Context())
	ctx, cancel := context.WithCancelCause(t.Context())
	lock, err := l.Lock(ctx, "x")
	if err != nil {
		t.Fatal(err)
	}
	r := &runner{Options: Options{Name: "x"}, printer: p, sigs: &signals{ch: make(chan os.Signal)}, front: &remoteFront{gone: make(chan struct{})}}
	r.sigs.ended.Store(int32(syscall.SIGTERM))
	cancel(proc.Interrupted(syscall.SIGTERM))
	if lock.Context().Err() == nil {
		t.Fatal("the lock's context has not ended")
	}
	if status, err := r.command(lock); status != 143 || err == nil || !strings.Contains(err.Error(), `waiting for "x": ended by SIGTERM`) {
		t.Errorf("status %d, %v; want 143", status, err)
	}
	if err := lock.Unlock(); err != nil {
		t.Error(err)
	}
}
