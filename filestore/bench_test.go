//go:build linux || darwin

package filestore_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/holdfast-go/holdfast/driver"
)

// BenchmarkBareFlock opens, locks and closes a file, and does nothing else. It is the lower limit for
// BenchmarkPair.
func BenchmarkBareFlock(b *testing.B) {
	path := filepath.Join(tempDir(b), "lock")
	for b.Loop() {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			b.Fatal(err)
		}
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
			b.Fatal(err)
		}
		f.Close()
	}
}

// BenchmarkPair measures an uncontended Acquire and Release.
func BenchmarkPair(b *testing.B) {
	s := open(b, tempDir(b))
	ctx := context.Background()
	from := &requester{}
	for i := 0; b.Loop(); i++ {
		g, err := s.Acquire(ctx, driver.Request{ID: "id", Name: "name", Limit: driver.Exclusive, From: from})
		if err != nil {
			b.Fatal(err)
		}
		if err := s.Release(ctx, g, 0); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkHandoff passes a lock back and forth between two stores. Each wait ends when the other
// store releases the lock.
func BenchmarkHandoff(b *testing.B) {
	dir := tempDir(b)
	a, z := open(b, dir), open(b, dir)
	ctx := context.Background()
	type result struct {
		g   driver.Grant
		err error
	}
	stores := []driver.Store{a, z}
	g, err := a.Acquire(ctx, driver.Request{ID: "first", Name: "name", Limit: driver.Exclusive, From: &requester{}})
	if err != nil {
		b.Fatal(err)
	}
	for i := 1; b.Loop(); i++ {
		got := make(chan result, 1)
		queued := make(chan struct{}, 8)
		go func() {
			g, err := stores[i%2].Acquire(ctx, driver.Request{
				ID: fmt.Sprint("r", i), Name: "name", Limit: driver.Exclusive, Wait: true, From: &requester{queued: queued},
			})
			got <- result{g, err}
		}()
		<-queued
		if err := stores[(i+1)%2].Release(ctx, g, 0); err != nil {
			b.Fatal(err)
		}
		r := <-got
		if r.err != nil {
			b.Fatal(r.err)
		}
		g = r.g
	}
}
