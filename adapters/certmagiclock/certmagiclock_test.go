package certmagiclock_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/caddyserver/certmagic"
	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/adapters/certmagiclock"
	"github.com/holdfast-go/holdfast/internal/adaptertest"
	"github.com/holdfast-go/holdfast/internal/must"
	"github.com/holdfast-go/holdfast/memstore"
)

// TestReplicasExcludeEachOther: two servers with separate storages get the lock of a certificate one after the other.
// Without the adapter both have it.
func TestReplicasExcludeEachOther(t *testing.T) {
	ctx := t.Context()
	a, b := &certmagic.FileStorage{Path: t.TempDir()}, &certmagic.FileStorage{Path: t.TempDir()}
	for _, s := range []certmagic.Storage{a, b} {
		must.Succeed(t, s.Lock(ctx, "issue_cert_example.com"))
		defer func() { _ = s.Unlock(ctx, "issue_cert_example.com") }()
	}

	s := memstore.New()
	first, second := certmagiclock.New(a, adaptertest.Open(t, s)), certmagiclock.New(b, adaptertest.Open(t, s.Client()))
	attempt, cancel := context.WithCancel(ctx)
	must.Succeed(t, first.Lock(attempt, "issue_cert_example.com"))
	cancel() // certmagic ends the context of an attempt before it unlocks
	if ok, err := second.TryLock(ctx, "issue_cert_example.com"); ok || err != nil {
		t.Errorf("TryLock of a held lock: %t, %v", ok, err)
	}
	if ok, err := second.TryLock(ctx, "issue_cert_example.org"); !ok || err != nil {
		t.Errorf("TryLock of another lock: %t, %v", ok, err)
	}
	if err := first.RenewLockLease(ctx, "issue_cert_example.com", time.Minute); err != nil {
		t.Error(err)
	}
	granted := make(chan error)
	go func() { granted <- second.Lock(ctx, "issue_cert_example.com") }()
	adaptertest.AwaitWaiter(ctx, adaptertest.Open(t, s.Client()), certmagiclock.Prefix+"issue_cert_example.com")
	if err := first.Unlock(ctx, "issue_cert_example.com"); err != nil {
		t.Error(err)
	}
	if err := <-granted; err != nil {
		t.Error(err)
	}
	for _, name := range []string{"issue_cert_example.com", "issue_cert_example.org"} {
		if err := second.Unlock(ctx, name); err != nil {
			t.Error(err)
		}
	}
	if err := second.Unlock(ctx, "issue_cert_example.com"); err == nil {
		t.Error("a second Unlock: no error")
	}
	if err := second.RenewLockLease(ctx, "issue_cert_example.com", time.Minute); err == nil {
		t.Error("RenewLockLease without a lock: no error")
	}
}

// TestLossIsReported by the renewal and by Unlock.
func TestLossIsReported(t *testing.T) {
	ctx := t.Context()
	s := memstore.New()
	storage, other := certmagiclock.New(&certmagic.FileStorage{Path: t.TempDir()}, adaptertest.Open(t, s)), adaptertest.Open(t, s.Client())
	must.Succeed(t, storage.Lock(ctx, "a"))
	adaptertest.Break(t, other, certmagiclock.Prefix+"a")
	for storage.RenewLockLease(ctx, "a", time.Minute) == nil && ctx.Err() == nil {
		time.Sleep(time.Millisecond)
	}
	if err := storage.RenewLockLease(ctx, "a", time.Minute); !errors.Is(err, holdfast.ErrLost) {
		t.Errorf("RenewLockLease: %v", err)
	}
	if err := storage.Unlock(ctx, "a"); !errors.Is(err, holdfast.ErrLost) {
		t.Errorf("Unlock: %v", err)
	}
}

// TestWaitEndsWithItsContext: the end of a wait leaves no lock.
func TestWaitEndsWithItsContext(t *testing.T) {
	s := memstore.New()
	first, second := certmagiclock.New(nil, adaptertest.Open(t, s)), certmagiclock.New(nil, adaptertest.Open(t, s.Client()))
	must.Succeed(t, first.Lock(t.Context(), "a"))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := second.Lock(ctx, "a"); !errors.Is(err, context.Canceled) {
		t.Errorf("Lock: %v", err)
	}
	if err := first.Unlock(t.Context(), "a"); err != nil {
		t.Error(err)
	}
}
