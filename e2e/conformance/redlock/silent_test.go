package redlock

import (
	"reflect"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/e2e/conformance/requests"
)

// TestDownServerIsProbedSeldom: one of three servers is down. While a client waits for a held name, and locks and
// unlocks other names, it opens few connections to that server. It opens more than a hundred a second if each
// failed ballot of the waiter is ended on its own. The client forgets each ballot after its end.
func TestDownServerIsProbedSeldom(t *testing.T) {
	const period, ttl, mostPerSecond = 3 * time.Second, 2 * time.Second, 25
	f := start(t, 3, nil)
	holder, s := f.open(t), f.open(t)
	held := must(t, holder, newName("held"), time.Minute)
	connected := must(t, s, newName("connected"), time.Minute)
	f.all[0].Kill()
	r := request(held.Name, ttl)
	r.Wait = true
	done := make(chan error, 1)
	go func() {
		g, err := s.Acquire(t.Context(), r)
		if err == nil {
			err = s.Release(t.Context(), g, 0)
		}
		done <- err
	}()
	before, began, pairs := f.proxies[0].Accepted(), time.Now(), 0
	for ; time.Since(began) < period; pairs++ {
		g, err := s.Acquire(t.Context(), request(newName("free"), ttl))
		check(t, err)
		release(t, s, g)
		if _, err := s.Acquire(t.Context(), request(held.Name, ttl)); driver.CodeOf(err) != driver.CodeBusy {
			t.Fatal(err)
		}
	}
	opened, took := f.proxies[0].Accepted()-before, time.Since(began)
	t.Logf("%d connections and %d pairs in %s", opened, pairs, took)
	if float64(opened) > mostPerSecond*took.Seconds() {
		t.Errorf("%d connections in %s to a server that is down, want at most %d a second", opened, took, mostPerSecond)
	}
	release(t, holder, held)
	check(t, <-done)
	release(t, s, connected)
	// Another package can read the length of the map, and lock its mutex, only so. The votes without an answer expire.
	client := reflect.ValueOf(s.Store).Elem().Field(0).Elem()
	mu := (*sync.Mutex)(client.FieldByName("mu").Addr().UnsafePointer())
	requests.Eventually(t, "at most one ballot is left: the vote of the long TTL, if it was not ended", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return client.FieldByName("ballots").Len() <= 1
	})
}
