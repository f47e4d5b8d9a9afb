package etcd

import (
	"fmt"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/check/servers"
	"github.com/holdfast-go/holdfast/driver"
)

// TestKeptGrantKeepsItsKey: a grant that was released with a minimum hold keeps its key. The next
// request of the same store makes a queue entry with another key.
func TestKeptGrantKeepsItsKey(t *testing.T) {
	c := start(t, servers.EtcdConfig{})
	s := c.open(t)
	for _, test := range []struct {
		what  string
		limit int
		wait  bool
	}{
		{"wait", driver.Exclusive, true},
		{"shared wait", driver.Unlimited, true},
		{"permit wait", 2, true},
		{"permit", 2, false},
	} {
		t.Run(test.what, func(t *testing.T) {
			n := test.what
			kept := must(t, s, request("kept-"+n, n, test.limit, time.Minute))
			if err := s.Release(t.Context(), kept, 3*time.Second); err != nil {
				t.Fatal(err)
			}
			r := request("next-"+n, n, test.limit, time.Minute)
			r.Wait = test.wait
			g := must(t, s, r)
			if test.limit == driver.Exclusive {
				if !r.From.(*requester).wasQueued() {
					t.Error("granted at once beside a grant that was kept")
				}
			} else if st, err := s.Inspect(t.Context(), n); err != nil || len(st.Holders) != 2 {
				t.Errorf("holders %+v, %v: want the kept grant and the new grant", st.Holders, err)
			}
			if a := s.Renew(t.Context(), []driver.Grant{g})[0]; a.Err != nil {
				t.Errorf("Renew: %v", a.Err)
			}
			if err := s.Release(t.Context(), g, 0); err != nil {
				t.Errorf("Release: %v", err)
			}
		})
	}
}

// TestTryBesideKeptGrantsMakesItsOwnEntry: two grants were released with a minimum hold. A try
// makes a queue entry of its own, and overwrites neither of them.
func TestTryBesideKeptGrantsMakesItsOwnEntry(t *testing.T) {
	c := start(t, servers.EtcdConfig{})
	s := c.open(t)
	for _, limit := range []int{driver.Unlimited, 3} {
		n := fmt.Sprint("n", limit)
		var kept []driver.Grant
		for i := range 2 {
			kept = append(kept, must(t, s, request(fmt.Sprint("kept", i, n), n, limit, time.Minute)))
		}
		for _, g := range kept {
			if err := s.Release(t.Context(), g, testTimeout); err != nil {
				t.Fatal(err)
			}
		}
		g := must(t, s, request("next"+n, n, limit, time.Minute))
		st, err := s.Inspect(t.Context(), n)
		if err != nil || len(st.Holders) != 3 {
			t.Fatalf("limit %d: %+v, %v, want two that were kept and the new one", limit, st, err)
		}
		if last := st.Holders[2]; last.ID != "next"+n || last.Token != g.Token {
			t.Errorf("limit %d: the new one is %+v, want token %d", limit, last, g.Token)
		}
		if a := s.Renew(t.Context(), []driver.Grant{g})[0]; a.Err != nil {
			t.Errorf("limit %d: Renew: %v", limit, a.Err)
		}
		if err := s.Release(t.Context(), g, 0); err != nil {
			t.Errorf("limit %d: Release: %v", limit, err)
		}
		if st, err := s.Inspect(t.Context(), n); err != nil || len(st.Holders) != 2 {
			t.Errorf("limit %d: after Release: %+v, %v, want the two that were kept", limit, st, err)
		}
	}
}

// TestUndoKeepsKeptGrant: the key of a request belongs to a grant that was released with a minimum
// hold. The undo of the request does not delete that grant.
func TestUndoKeepsKeptGrant(t *testing.T) {
	c := start(t, servers.EtcdConfig{})
	s, l := c.late(t)
	kept := must(t, s, request("kept", "n", 1, time.Minute))
	if err := s.Release(t.Context(), kept, time.Minute); err != nil {
		t.Fatal(err)
	}
	r := request("next", "n", 1, time.Minute)
	r.Wait = true
	l.mu.Lock()
	l.hold = makes
	l.mu.Unlock()
	if _, err := s.Acquire(t.Context(), r); s.Classify(err) != driver.CodeUnknown {
		t.Fatalf("Acquire returned %v, want an unknown outcome", err)
	}
	if err := s.Undo(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	if st, err := s.Inspect(t.Context(), "n"); err != nil || len(st.Holders) != 1 || st.Holders[0].ID != "kept" {
		t.Fatalf("after Undo: %+v, %v, want the kept grant", st, err)
	}
}

func (a *requester) wasQueued() bool {
	select {
	case <-a.queued:
		return true
	default:
		return false
	}
}
