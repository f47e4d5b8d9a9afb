package zookeeper

import (
	"context"
	"net"
	"regexp"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	zookeeper "github.com/go-zookeeper/zk"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/check/servers"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/e2e/conformance/contention"
	"github.com/holdfast-go/holdfast/zkstore"
)

// exclusive returns a request for a name.
func exclusive(name string, ttl time.Duration) driver.Request {
	return driver.Request{ID: "s-" + newName(), Name: name, Limit: driver.Exclusive, TTL: ttl, Wait: true, From: noRequester{}}
}

// swapped is the outcome of a Swap.
type swapped struct {
	g        driver.Grant
	err      error
	released []error
}

// swapIn starts a Swap.
func swapIn(ctx context.Context, s *zkstore.Store, old driver.Grant, r driver.Request) <-chan swapped {
	done := make(chan swapped, 1)
	go func() {
		var o swapped
		o.g, o.err = s.Swap(ctx, old, r, func(err error) { o.released = append(o.released, err) })
		done <- o
	}()
	return done
}

// outcome waits for the outcome of a Swap.
func outcome(t *testing.T, done <-chan swapped) swapped {
	t.Helper()
	select {
	case o := <-done:
		return o
	case <-time.After(testTimeout):
		t.Fatal("Swap does not return")
		return swapped{}
	}
}

// code requires that the release was reported once, with a code.
func (o swapped) code(t *testing.T, want driver.Code) {
	t.Helper()
	if len(o.released) != 1 || driver.CodeOf(o.released[0]) != want {
		t.Errorf("the release: %v, want one report of %v", o.released, want)
	}
}

// TestSwapIsOneTransaction: the release and the create of a swap are one transaction, so the tokens
// of two grants in a row differ by one. (Another client may add a transaction between them, but not
// in each of 20 swaps.)
func TestSwapIsOneTransaction(t *testing.T) {
	for _, layout := range []zkstore.Layout{zkstore.ReadWrite, zkstore.Mutex} {
		z := single(t)
		_, s := locker(t, []string{z.Address()}, zkstore.WithLayout(layout))
		name := newName()
		g, err := s.Acquire(t.Context(), exclusive(name, 30*time.Second))
		must(t, err)
		least := ^uint64(0)
		for range 20 {
			o := outcome(t, swapIn(t.Context(), s, g, exclusive(name, 30*time.Second)))
			must(t, o.err)
			o.code(t, driver.CodeOf(nil))
			least, g = min(least, o.g.Token-g.Token), o.g
		}
		if least != 1 {
			t.Errorf("%s: every swap takes %d transactions or more", layout, least)
		}
		must(t, s.Release(t.Context(), g, 0))
	}
}

// TestSwapWithoutAnswer: the answer to a swap is lost. The client finds the new node over the next
// connection, and reports the outcome of both halves. If the context ends before, both outcomes are
// unknown. After the undo and the repeated release no node stands.
func TestSwapWithoutAnswer(t *testing.T) {
	z, p := proxied(t)
	_, s := locker(t, []string{p.Address()})
	_, other := locker(t, []string{z.Address()})
	for _, gives := range []bool{false, true} {
		name := newName()
		old, err := s.Acquire(t.Context(), exclusive(name, 30*time.Second))
		must(t, err)
		must(t, p.DropAnswers())
		r := exclusive(name, 30*time.Second)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		done := swapIn(ctx, s, old, r)
		await(t, other, name, "the swap arrives", func(st driver.State) bool {
			return len(st.Holders) == 1 && st.Holders[0].Token > old.Token && len(st.Waiters) == 0
		})
		if !gives {
			must(t, p.Heal())
			o := outcome(t, done)
			must(t, o.err)
			o.code(t, driver.CodeOf(nil))
			if err := s.Release(t.Context(), old, 0); driver.CodeOf(err) != driver.CodeNotHeld {
				t.Errorf("Release of the old grant: %v, want not held", err)
			}
			must(t, s.Release(t.Context(), o.g, 0))
			empty(t, other, name)
			continue
		}
		cancel()
		o := outcome(t, done)
		o.code(t, driver.CodeUnknown)
		if driver.CodeOf(o.err) != driver.CodeUnknown {
			t.Errorf("the request: %v, want unknown", o.err)
		}
		must(t, p.Heal())
		undone(t, s, r)
		releasedInTheEnd(t, s, old)
		empty(t, other, name)
	}
}

// releasedInTheEnd repeats the release of a grant until its outcome is known.
func releasedInTheEnd(t *testing.T, s *zkstore.Store, g driver.Grant) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	for {
		err := s.Release(ctx, g, 0)
		if err == nil || driver.CodeOf(err) == driver.CodeNotHeld {
			return
		}
		if ctx.Err() != nil {
			t.Fatal(err)
		}
	}
}

// TestLateSwapChangesNothing: a swap is on its way while the server stands still, and its connection
// ends. The server executes it before the undo and the repeated release, or never.
func TestLateSwapChangesNothing(t *testing.T) {
	z, p := proxied(t)
	var left atomic.Int64
	sent := make(chan struct{})
	_, s := locker(t, []string{p.Address()}, zkstore.Dial(func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := new(net.Dialer).DialContext(ctx, network, address)
		return tally{c, []byte(`"id":"lost-answer"`), &left, sent}, err // in the node of each request
	}))
	_, other := locker(t, []string{z.Address()})
	name := newName()
	old, err := s.Acquire(t.Context(), exclusive(name, 30*time.Second))
	must(t, err)
	left.Store(1)
	r := exclusive(name, 30*time.Second)
	must(t, z.Pause())
	defer func() { _ = z.Cont() }()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := swapIn(ctx, s, old, r)
	select {
	case <-sent:
	case <-time.After(testTimeout):
		t.Fatal("the swap is not sent")
	}
	cancel()
	o := outcome(t, done)
	o.code(t, driver.CodeUnknown)
	if driver.CodeOf(o.err) != driver.CodeUnknown {
		t.Errorf("the request: %v, want unknown", o.err)
	}
	p.Cut()
	must(t, z.Cont())
	must(t, p.Heal())
	undone(t, s, r)
	releasedInTheEnd(t, s, old)
	empty(t, other, name)
	next, err := other.Acquire(t.Context(), exclusive(name, 30*time.Second))
	must(t, err)
	if next.Token <= old.Token {
		t.Errorf("token %d after %d", next.Token, old.Token)
	}
	if st := state(t, s, name); len(st.Holders) != 1 || len(st.Waiters) != 0 {
		t.Errorf("beside the new grant: %+v", st)
	}
	must(t, other.Release(t.Context(), next, 0))
}

// TestHalvesOfASwapAreIndependent: in the first case the holder's node was deleted, and the request
// is granted. In the second case the request has another TTL, and so another session: both halves
// succeed.
func TestHalvesOfASwapAreIndependent(t *testing.T) {
	z := single(t)
	_, s := locker(t, []string{z.Address()})
	raw := connect(t, z.Address())
	name := newName()
	old, err := s.Acquire(t.Context(), exclusive(name, 30*time.Second))
	must(t, err)
	dir := "/faults/" + name
	must(t, raw.Delete(dir+"/"+nodes(t, raw, dir, "the holder stands", count(1))[0], -1))
	o := outcome(t, swapIn(t.Context(), s, old, exclusive(name, 30*time.Second)))
	must(t, o.err)
	o.code(t, driver.CodeNotHeld)

	o = outcome(t, swapIn(t.Context(), s, o.g, exclusive(name, time.Minute)))
	must(t, o.err)
	o.code(t, driver.CodeOf(nil))
	nodes(t, raw, dir, "one node stands", count(1))
	must(t, s.Release(t.Context(), o.g, 0))
}

// TestRefusedSwapReleasesAlone: the user may delete nodes and not create them. The swap is refused
// and releases nothing, and the release by itself succeeds.
func TestRefusedSwapReleasesAlone(t *testing.T) {
	z := single(t)
	_, s := locker(t, []string{z.Address()})
	name := newName()
	old, err := s.Acquire(t.Context(), exclusive(name, 30*time.Second))
	must(t, err)
	dir := "/faults/" + name
	all := servers.ZooKeeperACL{Rights: servers.RightAll &^ servers.RightCreate, Scheme: "world", ID: "anyone"}
	must(t, z.SetACL(t.Context(), dir, all))
	o := outcome(t, swapIn(t.Context(), s, old, exclusive(name, 30*time.Second)))
	if driver.CodeOf(o.err) != driver.CodeRefused || len(o.released) != 0 {
		t.Errorf("the request: %v, want refused; the release: %v, want no report", o.err, o.released)
	}
	if st := state(t, s, name); len(st.Holders) != 1 || st.Holders[0].Token != old.Token {
		t.Errorf("after the refusal: %+v", st)
	}
	must(t, s.Release(t.Context(), old, 0))
	empty(t, s, name)
}

// TestLockersSwapWithLostAnswers: goroutines of two processes contend for one name, while answers are
// lost again and again. The client finds the outcome of a swap over its next connection.
func TestLockersSwapWithLostAnswers(t *testing.T) {
	z := single(t)
	_, other := locker(t, []string{z.Address()})
	contention.WithLostAnswers(t, newName(), other, 0, func() contention.Client {
		p := behindProxy(t, z)
		_, s := locker(t, []string{p.Address()})
		return contention.Client{Store: s, Lose: func() error { return p.LoseAnswer(0) }, Errors: []error{holdfast.ErrUnavailable}}
	})
}

// watchedReads records the paths that were read with a watch.
type watchedReads struct {
	net.Conn
	paths *sync.Map
}

// readWithWatch matches the end of a read with a watch: a path and the byte 1.
var readWithWatch = regexp.MustCompile(`(/faults/[!-~]+)\x01`)

func (c watchedReads) Write(b []byte) (int, error) {
	for _, found := range readWithWatch.FindAllSubmatch(b, -1) {
		c.paths.Store(string(found[1]), nil)
	}
	return c.Conn.Write(b)
}

// TestSwapHandsOffToNoDeletedEntry: an operator has deleted the nodes of a grant and of the next
// entry of the same client, and another client is granted. The answer to the swap shows the
// deletions. Without it the client would notice them later, since it reads the node of each grant
// after 100 ms. (On a busy machine that read may come first, but not in every round.)
func TestSwapHandsOffToNoDeletedEntry(t *testing.T) {
	for layout, queues := range map[zkstore.Layout][]string{zkstore.ReadWrite: {""}, zkstore.Semaphore: {"/locks", "/leases"}} {
		t.Run(string(layout), func(t *testing.T) {
			z := single(t)
			var reads sync.Map
			_, s := locker(t, []string{z.Address()}, zkstore.WithLayout(layout), zkstore.Dial(func(ctx context.Context, network, address string) (net.Conn, error) {
				c, err := new(net.Dialer).DialContext(ctx, network, address)
				return watchedReads{c, &reads}, err
			}))
			_, other := locker(t, []string{z.Address()}, zkstore.WithLayout(layout))
			raw := connect(t, z.Address())
			for range 20 {
				name := newName()
				dir := "/faults/" + name
				old, err := s.Acquire(t.Context(), exclusive(name, 30*time.Second))
				must(t, err)
				h := newHolder()
				r := exclusive(name, 30*time.Second)
				r.From = h
				next := make(chan error, 1)
				go func() {
					_, err := s.Acquire(t.Context(), r)
					next <- err
				}()
				<-h.queued
				own := map[string][]string{}
				for _, queue := range queues {
					want := 2
					if queue == "/locks" {
						want = 1 // the holder has released its mutex
					}
					own[queue] = nodes(t, raw, dir+queue, "both stand", count(want))
				}
				behind := queued(t, other, name, driver.Exclusive)
				var all []any
				for queue, names := range own {
					for _, n := range names {
						all = append(all, &zookeeper.DeleteRequest{Path: dir + queue + "/" + n, Version: -1})
					}
				}
				_, err = raw.Multi(all...)
				must(t, err)
				beside := behind.woken(t)
				done := swapIn(t.Context(), s, old, exclusive(name, 30*time.Second))
				if err := <-next; err == nil {
					h.notified(t)
				}
				early := !slices.ContainsFunc(all, func(o any) bool {
					_, read := reads.Load(o.(*zookeeper.DeleteRequest).Path)
					return read
				})
				must(t, other.Release(t.Context(), beside, 0))
				o := outcome(t, done)
				must(t, o.err)
				must(t, s.Release(t.Context(), o.g, 0))
				if early {
					return
				}
			}
			t.Error("no swap has shown that the next entry had been deleted")
		})
	}
}
