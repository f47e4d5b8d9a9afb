package nats

import (
	"fmt"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/e2e/conformance/requests"
	"github.com/holdfast-go/holdfast/internal/servers"
)

// TestPairCostsFourRequests: an uncontended lock and its release cost the requests that docs/nats.md lists. The
// renewals of many locks share their reads.
func TestPairCostsFourRequests(t *testing.T) {
	c := start(t, servers.NATSConfig{})
	s := c.open(t, "")
	received := func() int {
		t.Helper()
		n, err := c.members[0].Received(t.Context())
		check(t, err)
		return n
	}
	lock := func(i int) driver.Grant {
		t.Helper()
		return requests.Must(t, s, requests.New(fmt.Sprint("name-", i), driver.Exclusive, time.Minute))
	}
	if err := s.Release(t.Context(), lock(0), 0); err != nil { // it checks the bucket
		t.Fatal(err)
	}
	const pairs = 20
	before := received()
	for i := range pairs {
		check(t, s.Release(t.Context(), lock(i), 0))
	}
	// A check of held grants may read once a second. The last message to waiters may not have arrived.
	if n := received() - before; n <= 4*pairs || n > 5*pairs+10 {
		t.Errorf("%d pairs made %d messages, want 4 requests and one message to waiters each", pairs, n)
	}

	var held []driver.Grant
	for i := range pairs {
		held = append(held, lock(i))
	}
	before = received()
	for _, r := range s.Renew(t.Context(), held) {
		if r.Err != nil {
			t.Error(r.Err)
		}
	}
	if n := received() - before; n > 2*pairs {
		t.Errorf("a renewal of %d locks made %d requests: the reads were not shared", pairs, n)
	}
}
