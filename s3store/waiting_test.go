package s3store

import (
	"context"
	"errors"
	"net"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver/record"
	"github.com/holdfast-go/holdfast/internal/gather"
	"github.com/holdfast-go/holdfast/internal/must"
)

// pipes is a listener whose connections pass no network, so that the time of a bubble passes.
type pipes struct {
	conns chan net.Conn
	end   sync.Once
}

func (p *pipes) Accept() (net.Conn, error) {
	if c, ok := <-p.conns; ok {
		return c, nil
	}
	return nil, net.ErrClosed
}

func (p *pipes) Close() error   { p.end.Do(func() { close(p.conns) }); return nil }
func (p *pipes) Addr() net.Addr { return &net.TCPAddr{} }

func (p *pipes) dial(context.Context, string, string) (net.Conn, error) {
	client, server := net.Pipe()
	p.conns <- server
	return client, nil
}

// TestWaitingMinuteCostsReads: all waiters of a process for one name together make the reads and writes of
// docs/s3.md. The lock of a dead client is free when its TTL, two seconds and the skew have passed.
func TestWaitingMinuteCostsReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{objects: map[string][][]byte{}, written: map[string]time.Time{}}
		l := &pipes{conns: make(chan net.Conn)}
		h := &http.Server{Handler: s}
		go func() { _ = h.Serve(l) }()
		defer h.Close()
		const skew = time.Second
		open := func() *record.Store {
			b := &bucket{root: "http://waiting/bucket/", prefix: "locks/", skew: skew}
			b.client = &http.Client{Transport: &signer{region: "r", Transport: &http.Transport{DialContext: l.dial},
				keys: func(context.Context) (Keys, error) { return Keys{ID: "id", Secret: "secret"}, nil }}}
			b.ctx, b.end = context.WithCancel(context.Background())
			b.probes = gather.New(1, b.probe)
			return record.New(b, "s3", declared(skew), record.Options{Skew: func() time.Duration { return tick + skew }})
		}
		dead := open()
		r := request("a")
		r.TTL = 2 * time.Minute
		if _, err := dead.Acquire(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		_ = dead.Close(t.Context())
		granted := time.Now()

		store := open()
		defer store.Close(context.Background())
		locker, err := holdfast.New(store)
		must.Succeed(t, err)
		defer locker.Close(context.Background())
		reads, writes := s.count("GET"), s.count("PUT")
		minute, end := context.WithTimeout(t.Context(), time.Minute)
		defer end()
		var waiters sync.WaitGroup
		for range 10 {
			waiters.Go(func() {
				if _, err := locker.Lock(minute, "a"); !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("Lock: %v", err)
				}
			})
		}
		waiters.Wait()
		if n := s.count("GET") - reads; n < 120 || n > 220 {
			t.Errorf("a waiting minute made %d reads, want about 170", n)
		}
		if n := s.count("PUT") - writes; n < 8 || n > 16 { // with the place, and its end
			t.Errorf("a waiting minute made %d writes, want about 13", n)
		}
		lock, err := locker.Lock(t.Context(), "a")
		must.Succeed(t, err)
		if after := time.Since(granted); after < r.TTL || after > r.TTL+2*tick+skew+time.Second {
			t.Errorf("the lock was free after %s", after)
		}
		_ = lock.Unlock()
	})
}
