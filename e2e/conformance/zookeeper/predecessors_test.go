package zookeeper

import (
	"bytes"
	"context"
	"net"
	"sync/atomic"
	"testing"
	"time"

	zookeeper "github.com/go-zookeeper/zk"

	"github.com/holdfast-go/holdfast/check/servers"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/zkstore"
)

// TestEntryCountsDeletedPredecessors: the three nodes before an entry are deleted, in several orders. The
// entry becomes a grant after the last deletion, and not earlier. Its client does not read the queue
// again.
func TestEntryCountsDeletedPredecessors(t *testing.T) {
	z := single(t)
	_, a := locker(t, []string{z.Address()})
	raw := connect(t, z.Address())
	var left atomic.Int64
	left.Store(1 << 40)
	listed := make(chan struct{})
	name := newName()
	dir := "/faults/" + name
	_, s := locker(t, []string{z.Address()}, zkstore.Dial(func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := new(net.Dialer).DialContext(ctx, network, address)
		return tally{c, []byte(dir + "\x00"), &left, listed}, err // matches a read of the directory's children, but not a read of one child
	}))
	first, err := a.Acquire(t.Context(), exclusive(name, 2*time.Minute)) // creates the name's node
	must(t, err)
	must(t, a.Release(t.Context(), first, 0))
	for i, order := range [][3]int{{0, 1, 2}, {1, 0, 2}, {2, 1, 0}} {
		for n := range 3 {
			_, b := locker(t, []string{z.Address()})
			go func() { _, _ = b.Acquire(t.Context(), exclusive(name, 2*time.Minute)) }()
			nodes(t, raw, dir, "the entry exists", count(n+1))
		}
		left.Store(2) // the read with the entry's create, and one more read
		last := queued(t, s, name, driver.Exclusive)
		ahead := nodes(t, raw, dir, "all stand", count(4))
		for n, j := range order {
			select {
			case g := <-last.granted:
				t.Fatalf("order %d: granted beside %d others: %+v", i, 3-n, g)
			default:
			}
			must(t, raw.Delete(dir+"/"+ahead[j], -1))
		}
		g := last.woken(t)
		if left.Load() <= 0 {
			t.Fatalf("order %d: the entry has read the queue again", i)
		}
		must(t, s.Release(t.Context(), g, 0))
		empty(t, a, name)
	}
}

// TestDeletedEntryIsNotGranted: an operator deletes the node of the next waiter, and then that of
// the holder. The store refuses that waiter, and grants the lock to the waiter behind it.
func TestDeletedEntryIsNotGranted(t *testing.T) {
	z := single(t)
	_, holder := locker(t, []string{z.Address()})
	_, s := locker(t, []string{z.Address()})
	_, other := locker(t, []string{z.Address()})
	raw := connect(t, z.Address())
	for range 20 {
		name := newName()
		dir := "/faults/" + name
		_, err := holder.Acquire(t.Context(), exclusive(name, 2*time.Minute))
		must(t, err)
		next := &queuedRequest{queued: make(chan struct{})}
		r := exclusive(name, 2*time.Minute)
		r.From = next
		refused := make(chan error, 1)
		go func() {
			_, err := s.Acquire(t.Context(), r)
			refused <- err
		}()
		<-next.queued
		behind := queued(t, other, name, driver.Exclusive)
		all := nodes(t, raw, dir, "all stand", count(3))
		_, err = raw.Multi(
			&zookeeper.DeleteRequest{Path: dir + "/" + all[1], Version: -1},
			&zookeeper.DeleteRequest{Path: dir + "/" + all[0], Version: -1},
		)
		must(t, err)
		g := behind.woken(t)
		select {
		case err := <-refused:
			if driver.CodeOf(err) != driver.CodeUnavailable {
				t.Fatalf("a waiter whose entry was deleted: %v, want unavailable", err)
			}
		case <-time.After(testTimeout):
			t.Fatal("a waiter whose entry was deleted gets no answer")
		}
		must(t, other.Release(t.Context(), g, 0))
	}
}

// TestReaderBesideAWriterPrecedesTheWaiter: the holder of Curator's write lock takes the read lock,
// and then releases the write lock. The reader's node has the same number as the writer's node. A
// waiter that queued before the reader was created still waits for the reader.
func TestReaderBesideAWriterPrecedesTheWaiter(t *testing.T) {
	z := single(t)
	_, s := locker(t, []string{z.Address()})
	raw := connect(t, z.Address())
	name := newName()
	dir := "/faults/" + name
	g, err := s.Acquire(t.Context(), exclusive(name, 2*time.Minute))
	must(t, err)
	writer, err := raw.Create(dir+"/_c_0c1bb0f1-6c1a-4a4f-9b5e-0123456789ab-__WRIT__", nil, zookeeper.FlagEphemeral|zookeeper.FlagSequence, zookeeper.WorldACL(zookeeper.PermAll))
	must(t, err)
	must(t, s.Release(t.Context(), g, 0))
	waiter := queued(t, s, name, driver.Exclusive)
	number := writer[len(writer)-10:]
	reader := dir + "/_c_1c1bb0f1-6c1a-4a4f-9b5e-0123456789ab-__READ__" + number
	_, err = raw.Create(reader, nil, zookeeper.FlagEphemeral, zookeeper.WorldACL(zookeeper.PermAll))
	must(t, err)
	must(t, raw.Delete(writer, -1))
	for end := time.Now().Add(testTimeout); ; time.Sleep(5 * time.Millisecond) {
		watched, err := z.Command(t.Context(), "wchp")
		must(t, err)
		if bytes.Contains([]byte(watched), []byte(reader)) {
			break
		}
		if time.Now().After(end) {
			t.Fatal("the waiter does not watch the reader")
		}
		select {
		case g := <-waiter.granted:
			t.Fatalf("granted beside a reader: %+v", g)
		default:
		}
	}
	must(t, raw.Delete(reader, -1))
	must(t, s.Release(t.Context(), waiter.woken(t), 0))
}

// lateWrite is a connection that delays a write that contains word: it sends to reached, and writes
// after through is closed.
type lateWrite struct {
	net.Conn
	word    []byte
	reached chan<- struct{}
	through <-chan struct{}
}

func (c lateWrite) Write(b []byte) (int, error) {
	if bytes.Contains(b, c.word) {
		select {
		case c.reached <- struct{}{}:
			<-c.through
		default:
		}
	}
	return c.Conn.Write(b)
}

// beforeTheWatch begins a request for a lock, and returns when the client is about to set a watch for
// the node first. The client waits until the test closes through. Then granted receives the request's
// error, or nil for a grant.
func beforeTheWatch(t *testing.T, z *servers.ZooKeeper, name, first string) (h *holder, granted chan error, through chan struct{}) {
	t.Helper()
	reached := make(chan struct{}, 1)
	through = make(chan struct{})
	_, s := locker(t, []string{z.Address()}, zkstore.Dial(func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := new(net.Dialer).DialContext(ctx, network, address)
		return lateWrite{c, []byte(first), reached, through}, err
	}))
	h = newHolder()
	r := exclusive(name, 2*time.Minute)
	r.From = h
	granted = make(chan error, 1)
	go func() {
		_, err := s.Acquire(t.Context(), r)
		granted <- err
	}()
	select {
	case <-reached:
	case <-time.After(testTimeout):
		t.Fatal("the client sets no watch for the first node")
	}
	return h, granted, through
}

// TestRevokeBeforeWatchReachesHolder: the holder's node is deleted, and an operator writes __REVOKE__ into
// the next entry's node. The client of that entry has not set its watches yet. The new holder is
// notified, although no watch reports that write.
func TestRevokeBeforeWatchReachesHolder(t *testing.T) {
	z := single(t)
	_, a := locker(t, []string{z.Address()})
	raw := connect(t, z.Address())
	name := newName()
	dir := "/faults/" + name
	_, err := a.Acquire(t.Context(), exclusive(name, 2*time.Minute))
	must(t, err)
	first := nodes(t, raw, dir, "the entry exists", count(1))[0]
	h, granted, through := beforeTheWatch(t, z, name, dir+"/"+first)
	all := nodes(t, raw, dir, "both stand", count(2))
	must(t, raw.Delete(dir+"/"+first, -1))
	_, err = raw.Set(dir+"/"+all[1], []byte("__REVOKE__"), -1)
	must(t, err)
	close(through)
	must(t, <-granted)
	h.notified(t)
}

// TestEntrySeesChangesBeforeTheWatches: a client has read the queue for an entry, and sets its watches
// in one request. Nodes are deleted or written before the server receives that request. The client
// still notices each change.
func TestEntrySeesChangesBeforeTheWatches(t *testing.T) {
	z := single(t)
	raw := connect(t, z.Address())
	for _, c := range []struct {
		what    string
		delete  []int // before the watches: 0 and 1 are the nodes before the entry, 2 is its own
		revoke  int   // the node into which an operator writes __REVOKE__, -1 for none
		later   []int // the nodes that are deleted after the watches were set
		refused bool
		ended   bool // the new holder is notified
	}{
		{what: "both predecessors end", delete: []int{0, 1}, revoke: -1},
		{what: "the first predecessor ends", delete: []int{0}, revoke: -1, later: []int{1}},
		{what: "the second predecessor ends", delete: []int{1}, revoke: -1, later: []int{0}},
		{what: "both predecessors and the own node end", delete: []int{0, 1, 2}, revoke: -1, refused: true},
		{what: "the own node ends", delete: []int{2}, revoke: -1, refused: true},
		{what: "a predecessor is written", revoke: 1, later: []int{1, 0}},
		{what: "an operator revokes the entry", delete: []int{0, 1}, revoke: 2, ended: true},
	} {
		t.Run(c.what, func(t *testing.T) {
			_, a := locker(t, []string{z.Address()})
			_, b := locker(t, []string{z.Address()})
			name := newName()
			dir := "/faults/" + name
			_, err := a.Acquire(t.Context(), exclusive(name, 2*time.Minute))
			must(t, err)
			queued(t, b, name, driver.Exclusive)
			first := nodes(t, raw, dir, "both stand", count(2))[0]
			h, granted, through := beforeTheWatch(t, z, name, dir+"/"+first)
			all := nodes(t, raw, dir, "all stand", count(3))
			if c.revoke >= 0 {
				_, err := raw.Set(dir+"/"+all[c.revoke], []byte("__REVOKE__"), -1)
				must(t, err)
			}
			for _, i := range c.delete {
				must(t, raw.Delete(dir+"/"+all[i], -1))
			}
			close(through)
			for _, i := range c.later {
				select {
				case err := <-granted:
					t.Fatalf("granted or refused before the last predecessor ended: %v", err)
				case <-h.queued:
				case <-time.After(testTimeout):
					t.Fatal("the waiter has no queue entry")
				}
				must(t, raw.Delete(dir+"/"+all[i], -1))
			}
			select {
			case err = <-granted:
			case <-time.After(testTimeout):
				t.Fatal("the store did not wake the waiter")
			}
			switch {
			case c.refused && driver.CodeOf(err) != driver.CodeUnavailable:
				t.Fatalf("an entry whose node was deleted: %v, want unavailable", err)
			case !c.refused:
				must(t, err)
			}
			if c.ended {
				h.notified(t)
			}
		})
	}
}

// reportedHolders is a requester that receives the holders that the store reports to it.
type reportedHolders struct {
	noRequester
	holders chan []driver.Holder
}

func (h reportedHolders) Queued(all []driver.Holder) {
	if len(all) > 0 {
		select {
		case h.holders <- all:
		default:
		}
	}
}

// TestLongerWaitReadsTheNodesBeforeIt: the client of an entry behind two nodes sets its watches in one
// request. After a moment the client reads those nodes and reports the holder. The store refuses the
// request if the client may not read one of them, because a server reports no event of such a node.
func TestLongerWaitReadsTheNodesBeforeIt(t *testing.T) {
	z := single(t)
	raw := connect(t, z.Address())
	_, a := locker(t, []string{z.Address()})
	_, b := locker(t, []string{z.Address()})
	_, s := locker(t, []string{z.Address()})
	for _, readable := range []bool{true, false} {
		name := newName()
		held, err := a.Acquire(t.Context(), exclusive(name, 2*time.Minute))
		must(t, err)
		queued(t, b, name, driver.Exclusive)
		if !readable {
			second := nodes(t, raw, "/faults/"+name, "both stand", count(2))[1]
			_, err := raw.SetACL("/faults/"+name+"/"+second, zookeeper.WorldACL(zookeeper.PermAll&^zookeeper.PermRead), -1)
			must(t, err)
		}
		reported := reportedHolders{holders: make(chan []driver.Holder, 1)}
		r := exclusive(name, 2*time.Minute)
		r.From = reported
		refused := make(chan error, 1)
		go func() {
			_, err := s.Acquire(t.Context(), r)
			refused <- err
		}()
		select {
		case err := <-refused:
			if readable || driver.CodeOf(err) != driver.CodeRefused {
				t.Fatalf("both nodes readable: %t: %v", readable, err)
			}
		case holders := <-reported.holders:
			if !readable || holders[0].Token != held.Token {
				t.Fatalf("both nodes readable: %t: the client reports the holders %+v", readable, holders)
			}
		case <-time.After(testTimeout):
			t.Fatalf("both nodes readable: %t: the client has read none", readable)
		}
	}
}

// TestNearEntryReadsItsPredecessors: the client of an entry far behind the head has reported
// the holder. When the entry comes near the head, the client sets the watches in one request. After a
// moment the client reads the nodes before the entry. The store refuses the request if the client may
// not read one of them.
func TestNearEntryReadsItsPredecessors(t *testing.T) {
	z := single(t)
	raw := connect(t, z.Address())
	name := newName()
	dir := "/faults/" + name
	_, a := locker(t, []string{z.Address()})
	_, err := a.Acquire(t.Context(), exclusive(name, 2*time.Minute))
	must(t, err)
	// wait begins a request, and returns a channel for its outcome after the store has reported the
	// holder. The client does not read the holder again.
	wait := func() chan error {
		_, s := locker(t, []string{z.Address()})
		reported := reportedHolders{holders: make(chan []driver.Holder, 1)}
		r := exclusive(name, 2*time.Minute)
		r.From = reported
		done := make(chan error, 1)
		go func() {
			_, err := s.Acquire(t.Context(), r)
			done <- err
		}()
		select {
		case <-reported.holders:
		case err := <-done:
			t.Fatalf("a request behind others: %v", err)
		case <-time.After(testTimeout):
			t.Fatal("a request has not reported the holder")
		}
		return done
	}
	for range 3 {
		wait()
	}
	before := nodes(t, raw, dir, "all stand", count(4))
	_, err = raw.SetACL(dir+"/"+before[1], zookeeper.WorldACL(zookeeper.PermAll&^zookeeper.PermRead), -1)
	must(t, err)
	refused := wait()
	// Now three nodes are before the last entry, few enough for its client to watch all of them.
	must(t, raw.Delete(dir+"/"+before[2], -1))
	select {
	case err := <-refused:
		if driver.CodeOf(err) != driver.CodeRefused {
			t.Fatalf("behind a node that the client may not read: %v, want refused", err)
		}
	case <-time.After(testTimeout):
		t.Fatal("the client waits for a node of which the server reports no event")
	}
}
