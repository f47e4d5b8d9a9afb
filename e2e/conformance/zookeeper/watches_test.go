package zookeeper

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/e2e/conformance/requests"
	"github.com/holdfast-go/holdfast/internal/wakeup"
	"github.com/holdfast-go/holdfast/zkstore"
)

// TestEntriesOfOneClientKeepTheirWatches: one queue entry stops watching a node while
// another entry of the same client begins to. The other waiter is woken.
func TestEntriesOfOneClientKeepTheirWatches(t *testing.T) {
	z := single(t)
	_, s := locker(t, []string{z.Address()})
	_, holder := locker(t, []string{z.Address()})
	wait := func(s *zkstore.Store, name string, limit int) (*requests.Waiter, context.CancelFunc) {
		ctx, cancel := context.WithCancel(t.Context())
		return requests.QueueWith(t, ctx, s, requests.New(name, limit, 30*time.Second)), cancel
	}
	for i := range 400 {
		name := fmt.Sprintf("watches-%d", i%4)
		g := requests.Must(t, holder, exclusive(name, 30*time.Second))
		first, leave := wait(s, name, driver.Unlimited)
		left := make(chan struct{})
		// The first waiter leaves at about the time when the second one gets its queue entry and
		// its watch. In some rounds it leaves earlier, in others later.
		go func() {
			time.Sleep(time.Duration(i%100) * 20 * time.Microsecond)
			leave()
			close(left)
		}()
		second, cancel := wait(s, name, driver.Unlimited)
		<-left
		_ = first.Ended()
		must(t, holder.Release(t.Context(), g, 0))
		must(t, s.Release(t.Context(), second.Granted(), 0))
		cancel()
	}
}

// TestBreakKeepsItsWatch: a queue entry of the same client stops watching the node that is being
// broken. Break still notices the end of that node, long before the grace is over.
func TestBreakKeepsItsWatch(t *testing.T) {
	z := single(t)
	_, s := locker(t, []string{z.Address()}, zkstore.BreakGrace(time.Hour))
	_, holder := locker(t, []string{z.Address()})
	name := newName()
	g := requests.Must(t, holder, exclusive(name, 30*time.Second))
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	place := requests.QueueWith(t, ctx, s, exclusive(name, 30*time.Second)) // it watches the holder's node
	broken := make(chan error, 1)
	go func() { broken <- s.Break(t.Context(), name, g.Token) }()
	await(t, holder, name, "the holder got the request to end, and Break watches", func(st driver.State) bool {
		return len(st.Holders) == 1 && st.Holders[0].Note != ""
	})
	leave()
	switch err := place.Ended(); {
	case err == nil:
		t.Error("the queue entry was granted")
	case driver.CodeOf(err) == driver.CodeUnknown: // the answer took long
		requests.Undone(t, s, place.Request)
	case driver.CodeOf(err) != driver.CodeWithdrawn:
		t.Errorf("the place: %v", err)
	}
	if st := state(t, holder, name); len(st.Holders) != 1 || len(st.Waiters) != 0 {
		t.Errorf("after the queue entry was withdrawn: %+v", st)
	}
	must(t, holder.Release(t.Context(), g, 0))
	must(t, requests.Receive(t, "the end of Break, which sees the end of the holder", broken))
}

// TestManyGrantsAreWatchedDespiteLateAnswers: there are more grants than one batch of checks,
// and the answers to the first checks come late. All grants are watched in the end.
func TestManyGrantsAreWatchedDespiteLateAnswers(t *testing.T) {
	t.Parallel()
	const grants, piece = 300, 256
	z, p := proxied(t)
	name := newName()
	// The checks of one piece, which fail, and the first check of the next piece.
	var late atomic.Bool
	var checked atomic.Int64
	again := make(chan struct{}, 1)
	check := func(b []byte) {
		if checked.Add(int64(bytes.Count(b, []byte(name+"/")))) > piece {
			wakeup.Send(again)
		}
	}
	_, s := locker(t, []string{p.Address()}, dialing(func(c net.Conn) net.Conn {
		if late.Load() {
			return hooked{c, nil, check}
		}
		return c
	}))
	raw := connect(t, z.Address())
	held := make([]driver.Request, grants)
	for i := range held {
		held[i] = requests.New(name, driver.Unlimited, 2*time.Minute)
		requests.Must(t, s, held[i])
	}
	late.Store(true)
	must(t, p.Delay(3*time.Second))
	must(t, p.Redirect(z.Address()))
	requests.Receive(t, "another check of the grants", again)
	must(t, p.Heal())
	dir := "/faults/" + name
	for _, c := range nodes(t, raw, dir, "all stand", count(grants)) {
		must(t, raw.Delete(dir+"/"+c, -1))
	}
	for _, r := range held {
		requests.Of(r).AwaitLoss(t)
	}
}

// queued requests a lock and returns when the queue entry stands.
func queued(t *testing.T, s *zkstore.Store, name string, limit int) *requests.Waiter {
	t.Helper()
	return requests.Queue(t, s, requests.New(name, limit, 2*time.Minute))
}

// TestReconnectKeepsWatchOfEndingHolder: a holder got the request to end and has not ended
// when the connection changes. A waiter of the same client sees the end of its node.
func TestReconnectKeepsWatchOfEndingHolder(t *testing.T) {
	z, p := proxied(t)
	name := newName()
	dir := "/faults/" + name
	var again atomic.Bool
	hook, listed := sends(dir + "\x00") // a read of one child has no zero byte there
	_, s := locker(t, []string{p.Address()}, dialing(func(c net.Conn) net.Conn {
		if again.Load() {
			return hooked{c, nil, hook}
		}
		return c
	}))
	raw := connect(t, z.Address())
	r := exclusive(name, 2*time.Minute)
	requests.Must(t, s, r)
	next := queued(t, s, name, driver.Exclusive)
	node := dir + "/" + nodes(t, raw, dir, "there are two", count(2))[0]
	_, err := raw.Set(node, []byte("__REVOKE__"), -1)
	must(t, err)
	requests.Of(r).AwaitLoss(t)
	again.Store(true)
	must(t, p.Redirect(z.Address()))
	requests.Receive(t, "another read of the queue", listed)
	if st := state(t, s, name); len(st.Holders) != 1 { // the server has answered the waiter's read before this one
		t.Fatalf("%+v", st)
	}
	must(t, raw.Delete(node, -1))
	next.Granted()
}

// TestDeletedEntryUnblocksNextOfSameClient: a client has two queue entries, and the first is
// deleted by hand. The second is granted if the limit admits it, and does not wait for the
// nodes for which the first one waited.
func TestDeletedEntryUnblocksNextOfSameClient(t *testing.T) {
	z := single(t)
	_, s := locker(t, []string{z.Address()})
	_, other := locker(t, []string{z.Address()})
	raw := connect(t, z.Address())
	name := newName()
	dir := "/faults/" + name
	requests.Must(t, other, requests.New(name, driver.Unlimited, 2*time.Minute))
	first := queued(t, s, name, driver.Exclusive)
	second := queued(t, s, name, driver.Unlimited)
	must(t, raw.Delete(dir+"/"+nodes(t, raw, dir, "all stand", count(3))[1], -1))
	second.Granted()
	if first.Ended() == nil {
		t.Error("the first entry is granted the lock beside the holder")
	}
}

// TestReleaseNoticesDeletedSuccessor: a queue entry was deleted by hand, and then the client
// hands the lock off to it. The release finds that.
func TestReleaseNoticesDeletedSuccessor(t *testing.T) {
	z := single(t)
	_, s := locker(t, []string{z.Address()})
	_, other := locker(t, []string{z.Address()})
	raw := connect(t, z.Address())
	name := newName()
	dir := "/faults/" + name
	g := requests.Must(t, s, exclusive(name, 2*time.Minute))
	next := queued(t, s, name, driver.Exclusive)
	stranger := queued(t, other, name, driver.Exclusive)
	must(t, raw.Delete(dir+"/"+nodes(t, raw, dir, "all stand", count(3))[1], -1))
	must(t, s.Release(t.Context(), g, 0))
	if next.Ended() == nil {
		select {
		case <-requests.Of(next.Request).Losses:
		default:
			t.Error("the release is confirmed, and the successor still holds the lock")
		}
	}
	stranger.Granted()
}
