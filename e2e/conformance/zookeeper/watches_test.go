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

// TestWatchesOfOneClient: one place stops to watch a node while another of the same
// client begins to; the other is woken.
func TestWatchesOfOneClient(t *testing.T) {
	z := single(t)
	_, s := locker(t, []string{z.Address()})
	_, holder := locker(t, []string{z.Address()})
	ask := func(s *zkstore.Store, name string, limit int) (*asking, context.CancelFunc) {
		ctx, cancel := context.WithCancel(t.Context())
		a := &asking{queued: make(chan struct{}), granted: make(chan driver.Grant, 1)}
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
		h, _ := ask(holder, name, driver.Exclusive)
		g := h.woken(t)
		first, leave := ask(s, name, driver.Unlimited)
		<-first.queued
		second, cancel := ask(s, name, driver.Unlimited)
		// About when the second has its place and watches: from before to after.
		time.Sleep(time.Duration(i%100) * 20 * time.Microsecond)
		leave()
		<-second.queued
		<-first.granted
		must(t, holder.Release(t.Context(), g, 0))
		must(t, s.Release(t.Context(), second.woken(t), 0))
		cancel()
	}
}

// TestBreakKeepsItsWatch: a place of the same client stops to watch the node that is
// being broken. Break still sees it go, long before its grace is over.
func TestBreakKeepsItsWatch(t *testing.T) {
	z := single(t)
	_, s := locker(t, []string{z.Address()}, zkstore.BreakGrace(time.Hour))
	_, holder := locker(t, []string{z.Address()})
	name := newName()
	r := driver.Request{ID: "b-" + newName(), Name: name, Limit: driver.Exclusive, TTL: 30 * time.Second, From: nobody{}}
	g, err := holder.Acquire(t.Context(), r)
	must(t, err)
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	place := &asking{queued: make(chan struct{}), granted: make(chan driver.Grant, 1)}
	left := make(chan error, 1)
	behind := r
	behind.ID, behind.Wait, behind.From = r.ID+"-place", true, place
	go func() {
		_, err := s.Acquire(ctx, behind)
		left <- err
	}()
	<-place.queued // and it watches the holder's node
	broken := make(chan error, 1)
	go func() { broken <- s.Break(t.Context(), name, g.Token) }()
	await(t, holder, name, "the holder is asked to end, and Break watches", func(st driver.State) bool {
		return len(st.Holders) == 1 && st.Holders[0].Note != ""
	})
	leave()
	switch err := <-left; {
	case err == nil:
		t.Error("the place was granted")
	case driver.CodeOf(err) == driver.CodeUnknown: // the answer took long
		undone(t, s, behind)
	case driver.CodeOf(err) != driver.CodeWithdrawn:
		t.Errorf("the place: %v", err)
	}
	if st := state(t, holder, name); len(st.Holders) != 1 || len(st.Waiters) != 0 {
		t.Errorf("after the place was left: %+v", st)
	}
	must(t, holder.Release(t.Context(), g, 0))
	select {
	case err := <-broken:
		must(t, err)
	case <-time.After(patience):
		t.Fatal("Break does not see that the holder has gone")
	}
}

// holder is told once that its grant is lost.
type holder struct {
	*asking
	lost chan driver.Cause
}

func newHolder() *holder {
	return &holder{&asking{queued: make(chan struct{})}, make(chan driver.Cause, 1)}
}

func (h *holder) Lost(c driver.Cause, _ error) { h.lost <- c }

// told wants the holder to hear of it.
func (h *holder) told(t *testing.T) {
	t.Helper()
	select {
	case <-h.lost:
	case <-time.After(patience):
		t.Fatal("the holder was not told")
	}
}

// tally counts how often a word is written, and tells when it is often enough.
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

// TestManyWatchedLate: more grants than are looked at in one piece, and the answers to
// the first look come late. All of them are watched in the end.
func TestManyWatchedLate(t *testing.T) {
	const grants, piece = 300, 256
	z, p := proxied(t)
	name := newName()
	// One look that fails, and the next.
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
	case <-time.After(patience):
		t.Fatal("they are not looked at again")
	}
	must(t, p.Heal())
	dir := "/faults/" + name
	for _, c := range nodes(t, raw, dir, "all stand", count(grants)) {
		must(t, raw.Delete(dir+"/"+c, -1))
	}
	for _, h := range holders {
		h.told(t)
	}
}

// queued asks for a lock and answers when the place stands.
func queued(t *testing.T, s *zkstore.Store, name string, limit int) *asking {
	t.Helper()
	a := &asking{queued: make(chan struct{}), granted: make(chan driver.Grant, 1)}
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
	case <-time.After(patience):
		t.Fatal("it has no place")
	}
	return a
}

// TestAskedToEndAndReconnected: a holder was asked to end, and has not yet when the
// connection changes. Whoever of the same client waits for it sees its node go.
func TestAskedToEndAndReconnected(t *testing.T) {
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
			c = tally{c, []byte(dir + "\x00"), &left, listed} // its children, and none of them
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
	h.told(t)
	again.Store(true)
	must(t, p.Redirect(z.Address()))
	select {
	case <-listed:
	case <-time.After(patience):
		t.Fatal("the place does not look again")
	}
	if st := state(t, s, name); len(st.Holders) != 1 { // so the server has answered it
		t.Fatalf("%+v", st)
	}
	must(t, raw.Delete(node, -1))
	next.woken(t)
}

// TestOwnPlaceDeleted: of two places of one client the first is deleted by hand. The
// second, for which there is room then, does not wait for what the first waited for.
func TestOwnPlaceDeleted(t *testing.T) {
	z := single(t)
	_, s := locker(t, []string{z.Address()})
	_, other := locker(t, []string{z.Address()})
	raw := connect(t, z.Address())
	name := newName()
	dir := "/faults/" + name
	_, err := other.Acquire(t.Context(), driver.Request{ID: "h-" + newName(), Name: name, Limit: driver.Unlimited, TTL: 2 * time.Minute, From: nobody{}})
	must(t, err)
	first := queued(t, s, name, driver.Exclusive)
	second := queued(t, s, name, driver.Unlimited)
	must(t, raw.Delete(dir+"/"+nodes(t, raw, dir, "all stand", count(3))[1], -1))
	select {
	case <-second.granted:
	case <-first.granted:
		t.Error("the first is granted the lock beside the holder")
	case <-time.After(patience):
		t.Fatal("it was not woken")
	}
}

// TestHeirDeleted: a place was deleted by hand, and then the lock is passed on to it
// inside the client. The release finds out.
func TestHeirDeleted(t *testing.T) {
	z := single(t)
	_, s := locker(t, []string{z.Address()})
	_, other := locker(t, []string{z.Address()})
	raw := connect(t, z.Address())
	name := newName()
	dir := "/faults/" + name
	request := func(h driver.Requester) driver.Request {
		return driver.Request{ID: "i-" + newName(), Name: name, Limit: driver.Exclusive, TTL: 2 * time.Minute, Wait: true, From: h}
	}
	g, err := s.Acquire(t.Context(), request(nobody{}))
	must(t, err)
	h := newHolder()
	done := make(chan error, 1)
	go func() {
		_, err := s.Acquire(t.Context(), request(h))
		done <- err
	}()
	select {
	case <-h.queued:
	case <-time.After(patience):
		t.Fatal("the heir has no place")
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
			t.Error("the release is confirmed, and the heir holds on")
		}
	case <-time.After(patience):
		t.Fatal("the heir is not answered")
	}
	select {
	case <-stranger.granted:
	case <-time.After(patience):
		t.Fatal("the next was not woken")
	}
}
