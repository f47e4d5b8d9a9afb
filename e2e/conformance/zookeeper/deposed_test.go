package zookeeper

import (
	"bytes"
	"context"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/check/servers"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/zkstore"
)

// observed is a connection that reports when one of some words was written.
type observed struct {
	net.Conn
	words [][]byte
	said  chan<- struct{}
}

func (o observed) Write(b []byte) (int, error) {
	n, err := o.Conn.Write(b)
	if slices.ContainsFunc(o.words, func(w []byte) bool { return bytes.Contains(b, w) }) {
		select {
		case o.said <- struct{}{}:
		default:
		}
	}
	return n, err
}

// TestUndoAtADeposedLeaderIsNotConfirmed: the leader was stopped, and its successor has made
// a node that the old leader does not have. An Undo reaches the old leader before it notices
// its successor. The old leader's answer must not confirm the Undo.
func TestUndoAtADeposedLeaderIsNotConfirmed(t *testing.T) {
	e := three(t)
	for attempt := 1; !undoneAtADeposedLeader(t, e, leader(t, e)); attempt++ {
		if attempt == 10 {
			t.Fatal("no Undo reached the stopped leader")
		}
	}
}

// undoneAtADeposedLeader returns false if the test proves nothing: the election took longer
// than the client's timeout for a silent leader.
func undoneAtADeposedLeader(t *testing.T, e *servers.Ensemble, l *servers.ZooKeeper) bool {
	t.Helper()
	var others []string
	for _, m := range e.Members {
		if m != l {
			others = append(others, m.Address())
		}
	}
	name := newName()
	ttl := 2 * time.Minute // their sessions and their timeouts outlast the test
	sent := make(chan struct{}, 1)
	_, old := locker(t, []string{l.Address()}, zkstore.Dial(func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := new(net.Dialer).DialContext(ctx, network, address)
		// An Undo writes to a guard or looks at the name; heartbeats do neither.
		return observed{c, [][]byte{[]byte("/@"), []byte(name)}, sent}, err
	}))
	_, young := locker(t, others)
	for _, s := range []*zkstore.Store{old, young} { // so that their sessions stand
		r := driver.Request{ID: "warm-" + newName(), Name: newName(), Limit: driver.Exclusive, TTL: ttl, From: noRequester{}}
		g, err := s.Acquire(t.Context(), r)
		must(t, err)
		must(t, s.Release(t.Context(), g, 0))
	}

	must(t, l.Pause())
	goOn := sync.OnceFunc(func() {
		must(t, l.Cont())
		leader(t, e)
	})
	defer goOn()
	// The connections of the other members to the old leader end, so that these members need not
	// wait for a timeout.
	for _, m := range e.Members {
		if m != l {
			must(t, e.Silence(m))
			must(t, e.Heal(m))
		}
	}
	successor(t, e, l)
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	var r driver.Request
	for {
		r = driver.Request{ID: "deposed-" + newName(), Name: name, Limit: driver.Exclusive, TTL: ttl, From: noRequester{}}
		if _, err := young.Acquire(ctx, r); err == nil {
			break
		}
		for young.Undo(ctx, r) != nil {
			must(t, ctx.Err())
		}
	}
	select {
	case <-sent: // sent by the earlier acquisition
	default:
	}
	undone := make(chan error, 1)
	undoing, giveUp := context.WithCancel(t.Context())
	defer giveUp()
	go func() {
		err := old.Undo(undoing, r)
		for err != nil && undoing.Err() == nil { // retry like the core
			err = old.Undo(undoing, r)
		}
		undone <- err
	}()
	select {
	case <-sent: // the Undo is queued at the old leader, or on its way there
	case <-time.After(2 * time.Second):
		giveUp()
		<-undone
		return false
	}
	goOn()
	defer time.AfterFunc(testTimeout, giveUp).Stop() // from now on there is a leader again
	must(t, <-undone)
	st := state(t, young, name)
	if len(st.Holders) > 0 {
		t.Errorf("the Undo was confirmed, and the grant stands: %+v", st.Holders)
	}
	return true
}
