package redlock

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/held"
	"github.com/holdfast-go/holdfast/redisstore"
)

// unconnected makes a store over three servers, to which it does not connect.
func unconnected(t *testing.T) *Store {
	t.Helper()
	var stores []*redisstore.Store
	for i := range 3 {
		store, err := redisstore.Open(t.Context(), fmt.Sprintf("redis://127.0.0.1:%d", i+1))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = store.Close(context.Background()) })
		stores = append(stores, store)
	}
	s, err := New(stores)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close(context.Background()) })
	return s
}

// TestCheckBesideRequests runs checkHeld while another goroutine starts tasks under the mutex of a
// ballot. task locks the mutex of the store. If checkHeld locked the two in the other order, both
// goroutines would wait forever.
func TestCheckBesideRequests(t *testing.T) {
	s := unconnected(t)
	b := s.newBallot(driver.Request{ID: "r", Name: "n", Limit: driver.Exclusive, TTL: time.Second}, 1, "", 1)
	const rounds = 20_000
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range rounds {
			s.checkHeld([]*held.Grant{{Grant: driver.Grant{Handle: &handle{b: b}}}})
		}
	}()
	for range rounds {
		b.mu.Lock()
		s.task(func() {}) // endVote does the same
		b.mu.Unlock()
	}
	<-done
}
