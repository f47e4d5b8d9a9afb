package etcd

import (
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/e2e/conformance/requests"
	"github.com/holdfast-go/holdfast/internal/servers"
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
	check(t, err)
}

// TestStuckRequestWithoutSpaceIsUndone: the server applies the request that fills it, and returns "no space". The queue
// entry cannot be withdrawn at once, so the outcome is unknown. The undo removes the entry.
func TestStuckRequestWithoutSpaceIsUndone(t *testing.T) {
	c := start(t, servers.EtcdConfig{})
	s, d := c.disturbed(t)
	for name, wait := range map[string]bool{"try": false, "wait": true} {
		d.next(puts, func(send func() error) error {
			err := after(rpctypes.ErrGRPCNoSpace)(send)
			d.always(deletes, noRight)
			return err
		})
		r := request(name, 1, time.Minute)
		r.Wait = wait
		_, err := s.Acquire(t.Context(), r)
		d.clear()
		requests.Code(t, s, err, driver.CodeUnknown)
		if !strings.Contains(err.Error(), "space") {
			t.Errorf("%s: %v", name, err)
		}
		check(t, s.Undo(t.Context(), r))
		if st, err := s.Inspect(t.Context(), name); err != nil || len(st.Holders)+len(st.Waiters) > 0 {
			t.Errorf("%s: %+v, %v", name, st, err)
		}
	}
}

// TestWriteAppliedWithoutSpaceIsUnknown: the server applies the write of a value or of a guard, and
// returns "no space". The client reports that the write may have been applied.
func TestWriteAppliedWithoutSpaceIsUnknown(t *testing.T) {
	c := start(t, servers.EtcdConfig{})
	s, d := c.disturbed(t)
	d.next(makes, after(rpctypes.ErrGRPCNoSpace))
	if _, err := s.Put(t.Context(), "config", []byte("one"), ""); s.Classify(err) != driver.CodeUnknown || err == nil {
		t.Errorf("Put: %v; want an unknown outcome", err)
	}
	if data, _, err := s.Get(t.Context(), "config"); err != nil || string(data) != "one" {
		t.Errorf("Get: %q, %v; want the value that was written", data, err)
	}
	guard := s.Guard()
	d.next(makes, after(rpctypes.ErrGRPCNoSpace))
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
	s, d := c.disturbed(t)
	client, other := c.direct(t), c.open(t)
	// The first request is delayed. The answer of the second is lost.
	first, r := request("n", 1, time.Minute), request("n", 1, time.Minute)
	var sent func() error
	d.next(puts, held(&sent))
	_, err := s.Acquire(t.Context(), first)
	requests.Code(t, s, err, driver.CodeUnknown)
	d.next(puts, after(errBroken))
	_, err = s.Acquire(t.Context(), r)
	requests.Code(t, s, err, driver.CodeUnknown)
	// The answer of the transaction that creates the epoch is lost.
	d.next(makes, after(errBroken))
	requests.Code(t, s, s.Undo(t.Context(), first), driver.CodeUnknown)
	if st, err := other.Inspect(t.Context(), "n"); err != nil || len(st.Holders) != 1 {
		t.Fatalf("%+v, %v, want the queue entry whose answer was lost", st, err)
	}

	fill(t, client)
	requests.Code(t, s, s.Undo(t.Context(), r), driver.CodeRefused)
	if st, err := other.Inspect(t.Context(), "n"); err != nil || len(st.Holders) > 0 {
		t.Errorf("after Undo on a full server: %+v, %v", st, err)
	}

	c.makeSpace(t, client)
	for _, r := range []driver.Request{r, first} {
		check(t, s.Undo(t.Context(), r))
	}
	check(t, sent())
	// The delayed transaction has changed nothing: the name is free.
	check(t, s.Release(t.Context(), must(t, s, request("n", 1, time.Minute)), 0))
}
