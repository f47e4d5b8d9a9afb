package etcd

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/holdfast-go/holdfast/check/servers"
	"github.com/holdfast-go/holdfast/driver"
)

// fill writes until a server with a small quota is full.
func fill(t *testing.T, client *clientv3.Client) {
	t.Helper()
	for i := 0; ; i++ {
		if _, err := client.Put(t.Context(), "fill", strings.Repeat("x", 8000)); err != nil {
			return
		}
		if i > 1000 {
			t.Fatal("the server does not become full")
		}
	}
}

// makeSpace removes what fill has written, and ends the server's alarm.
func (c *cluster) makeSpace(t *testing.T, client *clientv3.Client) {
	t.Helper()
	deleted, err := client.Delete(t.Context(), "fill")
	if err == nil {
		_, err = client.Compact(t.Context(), deleted.Header.Revision, clientv3.WithCompactPhysical())
	}
	if err == nil {
		_, err = client.Defragment(t.Context(), c.members[0].Client)
	}
	if err == nil {
		_, err = client.AlarmDisarm(t.Context(), &clientv3.AlarmMember{})
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestRequestAppliedWithoutSpaceIsUndone: the server applies the request that fills it, and returns
// "no space". The client undoes the request completely.
func TestRequestAppliedWithoutSpaceIsUndone(t *testing.T) {
	c := start(t, servers.EtcdConfig{})
	s, l := c.late(t)
	other := c.open(t)
	for i, test := range []struct {
		what         string
		wait, behind bool
		stuck        bool // the queue entry cannot be withdrawn at once
	}{
		{what: "try"},
		{what: "wait", wait: true},
		{what: "wait behind another", wait: true, behind: true},
		{what: "try, stuck", stuck: true},
		{what: "wait, stuck", wait: true, stuck: true},
	} {
		n := fmt.Sprint("n", i)
		before := 0
		if test.behind {
			must(t, other, request("holder-"+n, n, 1, time.Minute))
			before = 1
		}
		r := request("full-"+n, n, 1, time.Minute)
		r.Wait = test.wait
		l.mu.Lock()
		l.lose, l.reported = puts, rpctypes.ErrGRPCNoSpace
		l.mu.Unlock()
		l.refuse.Store(test.stuck)
		_, err := s.Acquire(t.Context(), r)
		l.refuse.Store(false)
		want := driver.CodeRefused
		if test.stuck {
			want = driver.CodeUnknown
		}
		if code := s.Classify(err); code != want || err == nil || !strings.Contains(err.Error(), "space") {
			t.Errorf("%s: %s (%v), want %s", test.what, code, err, want)
		}
		if test.stuck {
			if err := s.Undo(t.Context(), r); err != nil {
				t.Errorf("%s: Undo: %v", test.what, err)
			}
		}
		if st, err := other.Inspect(t.Context(), n); err != nil || len(st.Holders) != before || len(st.Waiters) > 0 {
			t.Errorf("%s: %+v, %v, want %d holders", test.what, st, err, before)
		}
	}
}

// TestWriteAppliedWithoutSpaceIsUnknown: the server applies the write of a value or of a guard, and
// returns "no space". The client reports that the write may have been applied.
func TestWriteAppliedWithoutSpaceIsUnknown(t *testing.T) {
	c := start(t, servers.EtcdConfig{})
	s, l := c.late(t)
	fill := func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.lose, l.reported = makes, rpctypes.ErrGRPCNoSpace
	}
	fill()
	if _, err := s.Put(t.Context(), "config", []byte("one"), ""); s.Classify(err) != driver.CodeUnknown || err == nil {
		t.Errorf("Put: %v; want an unknown outcome", err)
	}
	if data, _, err := s.Get(t.Context(), "config"); err != nil || string(data) != "one" {
		t.Errorf("Get: %q, %v; want the value that was written", data, err)
	}
	guard := s.Guard()
	fill()
	if err := guard.Write(t.Context(), "stock", 7, nil); err == nil || !strings.Contains(err.Error(), "it may have been written") {
		t.Errorf("Write: %v; want an unknown outcome", err)
	}
	if n, err := guard.Newest(t.Context(), "stock"); err != nil || n != 7 {
		t.Errorf("Newest: %d, %v; want the token that was written", n, err)
	}
}

// TestUndoWithoutSpaceRemovesEntry: a full server refuses the epoch of an undo, so the undo
// is not confirmed. The undo still removes the queue entry.
func TestUndoWithoutSpaceRemovesEntry(t *testing.T) {
	c := start(t, servers.EtcdConfig{Args: []string{"--quota-backend-bytes", "65536"}})
	s, l := c.late(t)
	client, other := c.direct(t), c.open(t)
	// The first request is delayed. The answer of the second is lost.
	first, r := request("first", "n", 1, time.Minute), request("r", "n", 1, time.Minute)
	l.mu.Lock()
	l.hold = puts
	l.mu.Unlock()
	if _, err := s.Acquire(t.Context(), first); s.Classify(err) != driver.CodeUnknown {
		t.Fatalf("Acquire returned %v, want an unknown outcome", err)
	}
	l.mu.Lock()
	l.lose = puts
	l.mu.Unlock()
	if _, err := s.Acquire(t.Context(), r); s.Classify(err) != driver.CodeUnknown {
		t.Fatalf("Acquire returned %v, want an unknown outcome", err)
	}
	// The answer of the transaction that creates the epoch is lost.
	l.mu.Lock()
	l.lose = makes
	l.mu.Unlock()
	if err := s.Undo(t.Context(), first); s.Classify(err) != driver.CodeUnknown {
		t.Fatalf("Undo returned %v, want an unknown outcome", err)
	}
	if st, err := other.Inspect(t.Context(), "n"); err != nil || len(st.Holders) != 1 {
		t.Fatalf("%+v, %v, want the queue entry whose answer was lost", st, err)
	}

	fill(t, client)
	if err := s.Undo(t.Context(), r); s.Classify(err) != driver.CodeRefused {
		t.Errorf("Undo on a full server: %v, want refused", err)
	}
	if st, err := other.Inspect(t.Context(), "n"); err != nil || len(st.Holders) > 0 {
		t.Errorf("after Undo on a full server: %+v, %v", st, err)
	}

	c.makeSpace(t, client)
	for _, r := range []driver.Request{r, first} {
		if err := s.Undo(t.Context(), r); err != nil {
			t.Errorf("Undo when there is space again: %v", err)
		}
	}
	if answer, err := l.sent(); err != nil || answer.Succeeded {
		t.Errorf("the delayed transaction was applied: %v, %v", answer, err)
	}
	if err := s.Release(t.Context(), must(t, s, request("next", "n", 1, time.Minute)), 0); err != nil {
		t.Error(err)
	}
}
