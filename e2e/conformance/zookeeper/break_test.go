package zookeeper

import (
	"bytes"
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	zookeeper "github.com/go-zookeeper/zk"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/e2e/conformance/requests"
)

// TestBreakRepeatsLostRequest: Break requests a holder to end, and loses the connection before the
// answer. Break sends the request again on the next connection, and ends a holder that does not
// react.
func TestBreakRepeatsLostRequest(t *testing.T) {
	z, p := proxied(t)
	var times atomic.Int64
	l, s := locker(t, []string{p.Address()}, onWrites(func(b []byte) {
		if bytes.Contains(b, []byte("__REVOKE__")) && times.Add(1) == 1 {
			must(t, p.LoseAnswer(0))
		}
	}, nil))
	raw := connect(t, z.Address())
	name := newName()
	must(t, lock(t, l, name).Unlock()) // makes the name's node
	path := create(t, raw, "/faults/"+name+"/x-__WRIT__", nil, zookeeper.FlagEphemeral|zookeeper.FlagSequence)
	_, at, err := raw.Exists(path)
	must(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	must(t, s.Break(ctx, name, uint64(at.Czxid)*tokenRoom))
	if _, _, err := raw.Get(path); !errors.Is(err, zookeeper.ErrNoNode) {
		t.Errorf("the holder's node: %v", err)
	}
	if n := times.Load(); n != 2 {
		t.Errorf("the holder got %d requests to end, want 2: the first without an answer", n)
	}
}

// TestBreakTakesEveryTokenAfterARequestToEnd: the request to end has replaced the number of the grant's tokens. A
// second break names the grant by a token that it has reserved, and one of another node is not taken for it.
func TestBreakTakesEveryTokenAfterARequestToEnd(t *testing.T) {
	z := single(t)
	_, s := locker(t, []string{z.Address()})
	raw := connect(t, z.Address())
	r := exclusive(newName(), 30*time.Second)
	r.Tokens = 16
	g := requests.Must(t, s, r)
	nodes, _, err := raw.Children("/faults/" + r.Name)
	must(t, err)
	path := "/faults/" + r.Name + "/" + nodes[0]
	_, err = raw.Set(path, []byte("__REVOKE__"), -1)
	must(t, err)
	if err := s.Break(t.Context(), r.Name, g.Token+tokenRoom); driver.CodeOf(err) != driver.CodeNotHeld {
		t.Errorf("a token of another node: %v", err)
	}
	must(t, s.Break(t.Context(), r.Name, g.Last()))
	if _, _, err := raw.Get(path); !errors.Is(err, zookeeper.ErrNoNode) {
		t.Errorf("the holder's node: %v", err)
	}
}
