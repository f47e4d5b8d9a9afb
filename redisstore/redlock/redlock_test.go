package redlock

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/redisstore"
)

// unconnected makes a store over three servers, to which it does not connect.
func unconnected(t *testing.T) *Store {
	t.Helper()
	var below []*redisstore.Store
	for i := range 3 {
		one, err := redisstore.Open(t.Context(), fmt.Sprintf("redis://127.0.0.1:%d", i+1))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = one.Close(context.Background()) })
		below = append(below, one)
	}
	s, err := New(below)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close(context.Background()) })
	return s
}

// TestCheckBesideRequests runs checkGrants while the votes of a ballot begin to end. It
// requires that the two do not wait for each other forever.
func TestCheckBesideRequests(t *testing.T) {
	s := unconnected(t)
	b := s.newBallot(driver.Request{ID: "r", Name: "n", Limit: driver.Exclusive, TTL: time.Second}, 1, "", 1)
	const often = 20_000
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range often {
			s.checkGrants()
		}
	}()
	for range often {
		b.mu.Lock()
		s.task(func() {}) // as a release begins to end votes
		b.mu.Unlock()
	}
	<-done
}
