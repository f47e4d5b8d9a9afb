package zookeeper

import (
	"bytes"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	zookeeper "github.com/go-zookeeper/zk"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/e2e/conformance/requests"
	"github.com/holdfast-go/holdfast/internal/servers"
	"github.com/holdfast-go/holdfast/zkstore"
)

// TestEntryCountsDeletedPredecessors: the three nodes before an entry are deleted, in several orders. The
// entry becomes a grant after the last deletion, and not earlier. Its client does not read the queue
// again.
func TestEntryCountsDeletedPredecessors(t *testing.T) {
	z := single(t)
	_, a := locker(t, []string{z.Address()})
	raw := connect(t, z.Address())
	var listed atomic.Int64 // reads of the directory's children
	name := newName()
	dir := "/faults/" + name
	_, s := locker(t, []string{z.Address()}, onWrites(func(b []byte) {
		listed.Add(int64(bytes.Count(b, []byte(dir+"\x00")))) // a read of one child has no zero byte there
	}, nil))
	must(t, a.Release(t.Context(), requests.Must(t, a, exclusive(name, 2*time.Minute)), 0)) // creates the name's node
	for i, order := range [][3]int{{0, 1, 2}, {1, 0, 2}, {2, 1, 0}} {
		for n := range 3 {
			_, b := locker(t, []string{z.Address()})
			go func() { _, _ = b.Acquire(t.Context(), exclusive(name, 2*time.Minute)) }()
			nodes(t, raw, dir, "the entry exists", count(n+1))
		}
		listed.Store(0)
		last := queued(t, s, name, driver.Exclusive)
		ahead := nodes(t, raw, dir, "all stand", count(4))
		for _, j := range order {
			last.Pending()
			must(t, raw.Delete(dir+"/"+ahead[j], -1))
		}
		g := last.Granted()
		if n := listed.Load(); n > 1 { // one is sent with the entry's create
			t.Fatalf("order %d: the entry has read the queue %d times", i, n)
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
		requests.Must(t, holder, exclusive(name, 2*time.Minute))
		next := queued(t, s, name, driver.Exclusive)
		behind := queued(t, other, name, driver.Exclusive)
		all := nodes(t, raw, dir, "all stand", count(3))
		_, err := raw.Multi(
			&zookeeper.DeleteRequest{Path: dir + "/" + all[1], Version: -1},
			&zookeeper.DeleteRequest{Path: dir + "/" + all[0], Version: -1},
		)
		must(t, err)
		g := behind.Granted()
		if err := next.Ended(); driver.CodeOf(err) != driver.CodeUnavailable {
			t.Fatalf("a waiter whose entry was deleted: %v, want unavailable", err)
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
	g := requests.Must(t, s, exclusive(name, 2*time.Minute))
	queue := dir + "/_c_0c1bb0f1-6c1a-4a4f-9b5e-0123456789ab-__WRIT__"
	writer := create(t, raw, queue, nil, zookeeper.FlagEphemeral|zookeeper.FlagSequence)
	must(t, s.Release(t.Context(), g, 0))
	waiter := queued(t, s, name, driver.Exclusive)
	number := writer[len(writer)-10:]
	reader := dir + "/_c_1c1bb0f1-6c1a-4a4f-9b5e-0123456789ab-__READ__" + number
	create(t, raw, reader, nil, zookeeper.FlagEphemeral)
	must(t, raw.Delete(writer, -1))
	requests.Eventually(t, "the waiter watches the reader", func() bool {
		waiter.Pending()
		watched, err := z.Command(t.Context(), "wchp")
		must(t, err)
		return strings.Contains(watched, reader)
	})
	must(t, raw.Delete(reader, -1))
	must(t, s.Release(t.Context(), waiter.Granted(), 0))
}

// beforeTheWatch begins a request for a lock, and returns when the client is about to set a watch for
// the node first. The client waits until the test closes through.
func beforeTheWatch(t *testing.T, z *servers.ZooKeeper, name, first string) (w *requests.Waiter, through chan struct{}) {
	t.Helper()
	reached := make(chan struct{}, 1)
	through = make(chan struct{})
	_, s := locker(t, []string{z.Address()}, onWrites(func(b []byte) {
		if bytes.Contains(b, []byte(first)) {
			select {
			case reached <- struct{}{}:
				<-through
			default:
			}
		}
	}, nil))
	w = requests.Submit(t, s, exclusive(name, 2*time.Minute))
	requests.Receive(t, "the client's watch of the first node", reached)
	return w, through
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
		near    bool  // there is only one node before the entry, 0, and the entry is 1
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
		{what: "an operator revokes the second entry", near: true, delete: []int{0}, revoke: 1, ended: true},
	} {
		t.Run(c.what, func(t *testing.T) {
			_, a := locker(t, []string{z.Address()})
			_, b := locker(t, []string{z.Address()})
			name := newName()
			dir := "/faults/" + name
			requests.Must(t, a, exclusive(name, 2*time.Minute))
			before := 1
			if !c.near {
				queued(t, b, name, driver.Exclusive)
				before = 2
			}
			first := nodes(t, raw, dir, "those before it stand", count(before))[0]
			w, through := beforeTheWatch(t, z, name, dir+"/"+first)
			all := nodes(t, raw, dir, "all stand", count(before+1))
			if c.revoke >= 0 {
				_, err := raw.Set(dir+"/"+all[c.revoke], []byte("__REVOKE__"), -1)
				must(t, err)
			}
			for _, i := range c.delete {
				must(t, raw.Delete(dir+"/"+all[i], -1))
			}
			close(through)
			if len(c.later) > 0 {
				requests.Receive(t, "the report of the queue entry", requests.Of(w.Request).Waits)
			}
			for _, i := range c.later {
				w.Pending()
				must(t, raw.Delete(dir+"/"+all[i], -1))
			}
			err := w.Ended()
			switch {
			case c.refused && driver.CodeOf(err) != driver.CodeUnavailable:
				t.Fatalf("an entry whose node was deleted: %v, want unavailable", err)
			case !c.refused:
				must(t, err)
			}
			if c.ended {
				requests.Of(w.Request).AwaitLoss(t)
			}
		})
	}
}

// reportedHolders is a requester that receives the holders that the store reports to it.
type reportedHolders struct {
	*requests.Recorder
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

// submitReporting makes a request that may wait. holders receives the holders that the store reports.
func submitReporting(t *testing.T, s *zkstore.Store, name string) (w *requests.Waiter, holders <-chan []driver.Holder) {
	r := exclusive(name, 2*time.Minute)
	reported := reportedHolders{requests.Of(r), make(chan []driver.Holder, 1)}
	r.From = reported
	return requests.Submit(t, s, r), reported.holders
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
		held := requests.Must(t, a, exclusive(name, 2*time.Minute))
		queued(t, b, name, driver.Exclusive)
		if !readable {
			second := nodes(t, raw, "/faults/"+name, "both stand", count(2))[1]
			_, err := raw.SetACL("/faults/"+name+"/"+second, zookeeper.WorldACL(zookeeper.PermAll&^zookeeper.PermRead), -1)
			must(t, err)
		}
		w, reported := submitReporting(t, s, name)
		if readable {
			if holders := requests.Receive(t, "the holders", reported); holders[0].Token != held.Token {
				t.Fatalf("the client reports the holders %+v", holders)
			}
		} else if err := w.Ended(); driver.CodeOf(err) != driver.CodeRefused {
			t.Fatalf("behind a node that the client may not read: %v, want refused", err)
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
	requests.Must(t, a, exclusive(name, 2*time.Minute))
	// wait begins a request, and returns it after the store has reported the holder. The client does not
	// read the holder again.
	wait := func() *requests.Waiter {
		_, s := locker(t, []string{z.Address()})
		w, reported := submitReporting(t, s, name)
		requests.Receive(t, "the report of the holder", reported)
		return w
	}
	for range 3 {
		wait()
	}
	before := nodes(t, raw, dir, "all stand", count(4))
	_, err := raw.SetACL(dir+"/"+before[1], zookeeper.WorldACL(zookeeper.PermAll&^zookeeper.PermRead), -1)
	must(t, err)
	refused := wait()
	// Now three nodes are before the last entry, few enough for its client to watch all of them.
	must(t, raw.Delete(dir+"/"+before[2], -1))
	if err := refused.Ended(); driver.CodeOf(err) != driver.CodeRefused { // the server reports no event of that node
		t.Fatalf("behind a node that the client may not read: %v, want refused", err)
	}
}
