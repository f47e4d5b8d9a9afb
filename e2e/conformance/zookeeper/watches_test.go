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
	"github.com/holdfast-go/holdfast/zkstore"
)

// TestEntriesOfOneClientKeepTheirWatches: one queue entry stops watching a node while
// another entry of the same client begins to. The other waiter is woken.
func TestEntriesOfOneClientKeepTheirWatches(t *testing.T) {
	z := single(t)
	_, s := locker(t, []string{z.Address()})
	_, holder := locker(t, []string{z.Address()})
	wait := func(s *zkstore.Store, name string, limit int) (*queuedRequest, context.CancelFunc) {
		ctx, cancel := context.WithCancel(t.Context())
		a := &queuedRequest{queued: make(chan struct{}), granted: make(chan driver.Grant, 1)}
		r := driver.Request{ID: "w-" + newName(), Name: name, Limit: limit, TTL: 30 * time.Second, Wait: true, From: a}
		go func() {
			g, err := s.Acquire(ctx, r)
			if err != nil && ctx.Err() == nil {
				t.Errorf("%s: %v", name, err)
			}
			a.granted <- g
		}()
		return a, cancel
	}
	for i := range 400 {
		name := fmt.Sprintf("watches-%d", i%4)
		h, _ := wait(holder, name, driver.Exclusive)
		g := h.woken(t)
		first, leave := wait(s, name, driver.Unlimited)
		<-first.queued
		second, cancel := wait(s, name, driver.Unlimited)
		// The first waiter leaves at about the time when the second one gets its queue entry and
		// its watch. In some rounds it leaves earlier, in others later.
		time.Sleep(time.Duration(i%100) * 20 * time.Microsecond)
		leave()
		<-second.queued
		<-first.granted
		must(t, holder.Release(t.Context(), g, 0))
		must(t, s.Release(t.Context(), second.woken(t), 0))
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
	r := driver.Request{ID: "b-" + newName(), Name: name, Limit: driver.Exclusive, TTL: 30 * time.Second, From: noRequester{}}
	g, err := holder.Acquire(t.Context(), r)
	must(t, err)
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	place := &queuedRequest{queued: make(chan struct{}), granted: make(chan driver.Grant, 1)}
	left := make(chan error, 1)
	behind := r
	behind.ID, behind.Wait, behind.From = r.ID+"-place", true, place
	go func() {
		_, err := s.Acquire(ctx, behind)
		left <- err
	}()
	<-place.queued // the waiter now watches the holder's node
	broken := make(chan error, 1)
	go func() { broken <- s.Break(t.Context(), name, g.Token) }()
	await(t, holder, name, "the holder got the request to end, and Break watches", func(st driver.State) bool {
		return len(st.Holders) == 1 && st.Holders[0].Note != ""
	})
	leave()
	switch err := <-left; {
	case err == nil:
		t.Error("the queue entry was granted")
	case driver.CodeOf(err) == driver.CodeUnknown: // the answer took long
		undone(t, s, behind)
	case driver.CodeOf(err) != driver.CodeWithdrawn:
		t.Errorf("the place: %v", err)
	}
	if st := state(t, holder, name); len(st.Holders) != 1 || len(st.Waiters) != 0 {
		t.Errorf("after the queue entry was withdrawn: %+v", st)
	}
	must(t, holder.Release(t.Context(), g, 0))
	select {
	case err := <-broken:
		must(t, err)
	case <-time.After(testTimeout):
		t.Fatal("Break does not see that the holder has ended")
	}
}

// holder is a requester that receives one notice of the loss of its grant.
type holder struct {
	*queuedRequest
	lost chan driver.Cause
}

func newHolder() *holder {
	return &holder{&queuedRequest{queued: make(chan struct{})}, make(chan driver.Cause, 1)}
}

func (h *holder) Lost(c driver.Cause, _ error) { h.lost <- c }

// notified waits for that notice.
func (h *holder) notified(t *testing.T) {
	t.Helper()
	select {
	case <-h.lost:
	case <-time.After(testTimeout):
		t.Fatal("the holder was not notified")
	}
}

// tally counts how often a word is written, and reports when that was often enough.
type tally struct {
	net.Conn
	word []byte
	left *atomic.Int64
	full chan<- struct{}
}

func (c tally) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	if said := int64(bytes.Count(b, c.word)); said > 0 {
		if left := c.left.Add(-said); left <= 0 && left+said > 0 {
			close(c.full)
		}
	}
	return n, err
}

// TestManyGrantsAreWatchedDespiteLateAnswers: there are more grants than one batch of checks,
// and the answers to the first checks come late. All grants are watched in the end.
func TestManyGrantsAreWatchedDespiteLateAnswers(t *testing.T) {
	const grants, piece = 300, 256
	z, p := proxied(t)
	name := newName()
	// The checks of one piece, which fail, and the first check of the next piece.
	var late atomic.Bool
	var left atomic.Int64
	left.Store(piece + 1)
	again := make(chan struct{})
	_, s := locker(t, []string{p.Address()}, zkstore.Dial(func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := new(net.Dialer).DialContext(ctx, network, address)
		if late.Load() {
			c = tally{c, []byte(name + "/"), &left, again}
		}
		return c, err
	}))
	raw := connect(t, z.Address())
	holders := make([]*holder, grants)
	for i := range holders {
		holders[i] = newHolder()
		r := driver.Request{ID: "many-" + newName(), Name: name, Limit: driver.Unlimited, TTL: 2 * time.Minute, From: holders[i]}
		_, err := s.Acquire(t.Context(), r)
		must(t, err)
	}
	late.Store(true)
	must(t, p.Delay(3*time.Second))
	must(t, p.Redirect(z.Address()))
	select {
	case <-again:
	case <-time.After(testTimeout):
		t.Fatal("the client does not check the grants again")
	}
	must(t, p.Heal())
	dir := "/faults/" + name
	for _, c := range nodes(t, raw, dir, "all stand", count(grants)) {
		must(t, raw.Delete(dir+"/"+c, -1))
	}
	for _, h := range holders {
		h.notified(t)
	}
}

// queued requests a lock and returns when the queue entry stands.
func queued(t *testing.T, s *zkstore.Store, name string, limit int) *queuedRequest {
	t.Helper()
	a := &queuedRequest{queued: make(chan struct{}), granted: make(chan driver.Grant, 1)}
	r := driver.Request{ID: "q-" + newName(), Name: name, Limit: limit, TTL: 2 * time.Minute, Wait: true, From: a}
	go func() {
		if g, err := s.Acquire(t.Context(), r); err == nil {
			a.granted <- g
		}
	}()
	select {
	case <-a.queued:
	case <-a.granted:
		t.Fatal("it does not wait")
	case <-time.After(testTimeout):
		t.Fatal("it has no queue entry")
	}
	return a
}

// TestReconnectKeepsWatchOfEndingHolder: a holder got the request to end and has not ended
// when the connection changes. A waiter of the same client sees the end of its node.
func TestReconnectKeepsWatchOfEndingHolder(t *testing.T) {
	z, p := proxied(t)
	name := newName()
	dir := "/faults/" + name
	var again atomic.Bool
	var left atomic.Int64
	left.Store(1)
	listed := make(chan struct{})
	_, s := locker(t, []string{p.Address()}, zkstore.Dial(func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := new(net.Dialer).DialContext(ctx, network, address)
		if again.Load() {
			c = tally{c, []byte(dir + "\x00"), &left, listed} // matches a read of the directory's children, and no read of one child
		}
		return c, err
	}))
	raw := connect(t, z.Address())
	h := newHolder()
	_, err := s.Acquire(t.Context(), driver.Request{ID: "h-" + newName(), Name: name, Limit: driver.Exclusive, TTL: 2 * time.Minute, From: h})
	must(t, err)
	next := queued(t, s, name, driver.Exclusive)
	node := dir + "/" + nodes(t, raw, dir, "there are two", count(2))[0]
	_, err = raw.Set(node, []byte("__REVOKE__"), -1)
	must(t, err)
	h.notified(t)
	again.Store(true)
	must(t, p.Redirect(z.Address()))
	select {
	case <-listed:
	case <-time.After(testTimeout):
		t.Fatal("the waiter does not read the queue again")
	}
	if st := state(t, s, name); len(st.Holders) != 1 { // the server has answered the waiter's read before this one
		t.Fatalf("%+v", st)
	}
	must(t, raw.Delete(node, -1))
	next.woken(t)
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
	_, err := other.Acquire(t.Context(), driver.Request{ID: "h-" + newName(), Name: name, Limit: driver.Unlimited, TTL: 2 * time.Minute, From: noRequester{}})
	must(t, err)
	first := queued(t, s, name, driver.Exclusive)
	second := queued(t, s, name, driver.Unlimited)
	must(t, raw.Delete(dir+"/"+nodes(t, raw, dir, "all stand", count(3))[1], -1))
	select {
	case <-second.granted:
	case <-first.granted:
		t.Error("the first entry is granted the lock beside the holder")
	case <-time.After(testTimeout):
		t.Fatal("the second entry was not woken")
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
	request := func(h driver.Requester) driver.Request {
		return driver.Request{ID: "i-" + newName(), Name: name, Limit: driver.Exclusive, TTL: 2 * time.Minute, Wait: true, From: h}
	}
	g, err := s.Acquire(t.Context(), request(noRequester{}))
	must(t, err)
	h := newHolder()
	done := make(chan error, 1)
	go func() {
		_, err := s.Acquire(t.Context(), request(h))
		done <- err
	}()
	select {
	case <-h.queued:
	case <-time.After(testTimeout):
		t.Fatal("the successor has no queue entry")
	}
	stranger := queued(t, other, name, driver.Exclusive)
	must(t, raw.Delete(dir+"/"+nodes(t, raw, dir, "all stand", count(3))[1], -1))
	must(t, s.Release(t.Context(), g, 0))
	select {
	case err := <-done:
		if err != nil {
			break
		}
		select {
		case <-h.lost:
		default:
			t.Error("the release is confirmed, and the successor still holds the lock")
		}
	case <-time.After(testTimeout):
		t.Fatal("the successor gets no answer")
	}
	select {
	case <-stranger.granted:
	case <-time.After(testTimeout):
		t.Fatal("the next waiter was not woken")
	}
}
