package zookeeper

import (
	"context"
	"errors"
	"testing"
	"time"

	zookeeper "github.com/go-zookeeper/zk"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/zkstore"
)

var recipes = map[string]zkstore.Layout{"mutex": zkstore.Mutex, "rw": zkstore.ReadWrite, "semaphore": zkstore.Semaphore}

// TestCuratorLosesNoIncrement: two processes of Java and two of Go make 1,000 increments under each of
// the three recipes, and none is lost.
func TestCuratorLosesNoIncrement(t *testing.T) {
	address := start(t)
	for recipe, layout := range recipes {
		t.Run(recipe, func(t *testing.T) {
			name := "sum-" + recipe
			contend(t, 250,
				curator(t, address, recipe, name), curator(t, address, recipe, name),
				holdfastProcess(t, address, layout, name), holdfastProcess(t, address, layout, name))
		})
	}
}

// state waits until a name has the given numbers of holders and waiters, and returns its state.
func state(t *testing.T, l *holdfast.Locker, name string, holders, waiters int) holdfast.State {
	t.Helper()
	for end := time.Now().Add(testTimeout); ; time.Sleep(5 * time.Millisecond) {
		st, err := l.Inspect(t.Context(), name)
		must(t, err)
		if len(st.Holders) == holders && len(st.Waiters) == waiters {
			return st
		}
		if time.Now().After(end) {
			t.Fatalf("%+v, want %d holders and %d waiters", st, holders, waiters)
		}
	}
}

// TestCuratorWaitersAreServedInOrder: waiters are granted in order of arrival, whichever client they use.
func TestCuratorWaitersAreServedInOrder(t *testing.T) {
	address := start(t)
	for recipe, layout := range recipes {
		t.Run(recipe, func(t *testing.T) {
			name := "order-" + recipe
			first, later := open(t, address, layout), open(t, address, layout)
			java, other := curator(t, address, recipe, name), curator(t, address, recipe, name)
			k, err := first.Lock(t.Context(), name)
			must(t, err)
			java.send("acquire")
			state(t, first, name, 1, 1)
			got := make(chan *holdfast.Lock, 1)
			go func() {
				k, err := later.Lock(t.Context(), name)
				if err != nil {
					t.Error(err)
				}
				got <- k
			}()
			state(t, first, name, 1, 2)
			other.send("acquire")
			state(t, first, name, 1, 3)
			must(t, k.Unlock())
			java.expect("done acquire")
			select {
			case <-got:
				t.Fatal("the second waiter was served together with the first")
			default:
			}
			state(t, first, name, 1, 2)
			java.does("release")
			next := <-got
			if next == nil {
				t.FailNow()
			}
			if next.Token() <= k.Token() {
				t.Errorf("token %d after %d", next.Token(), k.Token())
			}
			must(t, next.Unlock())
			other.expect("done acquire")
			other.does("release")
			state(t, first, name, 0, 0)
		})
	}
}

// TestCuratorReadersShareTheLock: readers of Java and Go hold the lock together. A writer of each waits
// for the other's readers.
func TestCuratorReadersShareTheLock(t *testing.T) {
	address := start(t)
	const name = "readers"
	l := open(t, address, zkstore.ReadWrite)
	java, writer := curator(t, address, "rw", name), curator(t, address, "rw", name)
	java.does("read")
	k, err := l.Lock(t.Context(), name, holdfast.Shared())
	must(t, err)
	writer.send("acquire")
	state(t, l, name, 2, 1)
	if _, err := l.TryLock(t.Context(), name, holdfast.Shared()); !errors.Is(err, holdfast.ErrBusy) {
		t.Errorf("a reader overtakes a writer that waits: %v", err)
	}
	java.does("unread")
	state(t, l, name, 1, 1)
	must(t, k.Unlock())
	writer.expect("done acquire")
	if _, err := l.TryLock(t.Context(), name, holdfast.Shared()); !errors.Is(err, holdfast.ErrBusy) {
		t.Errorf("a reader beside a writer: %v", err)
	}
	// The writer becomes a reader and keeps its number.
	writer.does("downgrade")
	k, err = l.Lock(t.Context(), name, holdfast.Shared())
	must(t, err)
	if _, err := l.TryLock(t.Context(), name); !errors.Is(err, holdfast.ErrBusy) {
		t.Errorf("a writer beside readers: %v", err)
	}
	must(t, k.Unlock())
	writer.does("unread")
	state(t, l, name, 0, 0)

	// A permit excludes Curator's readers and writers, and they exclude it.
	k, err = l.Lock(t.Context(), name, holdfast.Limit(3))
	must(t, err)
	java.send("read")
	waitChildren(t, address, "/app/"+name, 2)
	writer.send("acquire")
	waitChildren(t, address, "/app/"+name, 3)
	if len(java.lines)+len(writer.lines) != 0 {
		t.Error("Curator holds the lock beside a permit")
	}
	must(t, k.Unlock())
	java.expect("done read")
	java.does("unread")
	writer.expect("done acquire")
	writer.does("release")
}

// TestCuratorSharesPermits: a holder of Java and a holder of Go have the two permits of a semaphore.
// When either releases its permit, the other's waiter is granted.
func TestCuratorSharesPermits(t *testing.T) {
	address := start(t)
	const name = "permits"
	l, later := open(t, address, zkstore.Semaphore), open(t, address, zkstore.Semaphore)
	java, other := curatorOf(t, address, "semaphore", name, 2), curatorOf(t, address, "semaphore", name, 2)
	java.does("acquire")
	k, err := l.TryLock(t.Context(), name, holdfast.Limit(2))
	must(t, err)
	if _, err := later.TryLock(t.Context(), name, holdfast.Limit(2)); !errors.Is(err, holdfast.ErrBusy) {
		t.Errorf("a third permit of a semaphore of two: %v", err)
	}
	other.send("acquire")
	state(t, l, name, 2, 1)
	got := make(chan *holdfast.Lock, 1)
	go func() {
		k, err := later.Lock(t.Context(), name, holdfast.Limit(2))
		if err != nil {
			t.Error(err)
		}
		got <- k
	}()
	state(t, l, name, 2, 2)
	if len(other.lines) != 0 {
		t.Error("Curator holds a third permit of a semaphore of two")
	}
	must(t, k.Unlock())
	other.expect("done acquire")
	state(t, l, name, 2, 1)
	if len(got) != 0 {
		t.Error("a third permit of a semaphore of two was granted")
	}
	java.does("release")
	next := <-got
	if next == nil {
		t.FailNow()
	}
	must(t, next.Unlock())
	other.does("release")
	state(t, l, name, 0, 0)
}

// TestCuratorRevocationNotifiesHolder: Curator's Revoker notifies a holdfast holder. Break notifies a
// Curator holder with a listener. A Curator holder without a listener loses its node.
func TestCuratorRevocationNotifiesHolder(t *testing.T) {
	address := start(t)
	for _, recipe := range []string{"mutex", "rw"} {
		t.Run(recipe, func(t *testing.T) {
			name := "revoke-" + recipe
			l := open(t, address, recipes[recipe])
			java := curator(t, address, recipe, name)
			k, err := l.Lock(t.Context(), name)
			must(t, err)
			java.does("revoke", "/app/"+name+"/"+child(t, address, "/app/"+name))
			select {
			case <-k.Context().Done():
			case <-time.After(testTimeout):
				t.Fatal("the holder was not notified")
			}
			var lost *holdfast.LostError
			if cause := context.Cause(k.Context()); !errors.As(cause, &lost) || lost.Cause != holdfast.CauseTaken {
				t.Errorf("cause %v, want taken", cause)
			}
			if err := k.Unlock(); !errors.Is(err, holdfast.ErrLost) {
				t.Errorf("Unlock: %v", err)
			}

			// Curator's holder has a listener, and releases.
			java.does("revocable")
			java.does("acquire")
			st := state(t, l, name, 1, 0)
			broken := make(chan error, 1)
			go func() { broken <- l.Break(t.Context(), name, st.Holders[0].Token) }()
			java.expect("revoked")
			java.does("release")
			must(t, <-broken)

			// The holder has no listener, and loses its node.
			plain := curator(t, address, recipe, name)
			plain.does("acquire")
			st = state(t, l, name, 1, 0)
			must(t, l.Break(t.Context(), name, st.Holders[0].Token))
			k, err = l.Lock(t.Context(), name)
			must(t, err)
			if k.Token() <= st.Holders[0].Token {
				t.Errorf("token %d after %d", k.Token(), st.Holders[0].Token)
			}
			must(t, k.Unlock())
		})
	}
}

type quiet struct{}

func (quiet) Printf(string, ...any) {}

// child reads with go-zookeeper, and returns the only child of a node.
func child(t *testing.T, address, path string) string {
	t.Helper()
	c, _, err := zookeeper.Connect([]string{address}, 20*time.Second, zookeeper.WithLogger(quiet{}))
	must(t, err)
	defer c.Close()
	children, _, err := c.Children(path)
	must(t, err)
	if len(children) != 1 {
		t.Fatalf("%s has the children %v, want one", path, children)
	}
	return children[0]
}

// TestKazooRespectsCuratorNames: if kazoo is configured to respect Curator's names, it waits for their
// holders. If kazoo uses those names itself, it shares the lock in both directions.
func TestKazooRespectsCuratorNames(t *testing.T) {
	address := start(t)
	l := open(t, address, zkstore.Mutex)
	one := kazoo(t, address, "pattern", "oneway")
	k, err := l.Lock(t.Context(), "oneway")
	must(t, err)
	one.send("acquire")
	c := waitChildren(t, address, "/app/oneway", 2)
	if len(one.lines) != 0 {
		t.Fatalf("kazoo holds the lock beside ours: %v", c)
	}
	must(t, k.Unlock())
	one.expect("done acquire")
	one.does("release")

	contend(t, 100, kazoo(t, address, "curator", "both"), kazoo(t, address, "curator", "both"),
		holdfastProcess(t, address, zkstore.Mutex, "both"), holdfastProcess(t, address, zkstore.Mutex, "both"),
		curator(t, address, "mutex", "both"))
}

// TestGoZooKeeperSharesMutex: go-zookeeper's own Lock uses the names of the layout Mutex, and shares its
// locks.
func TestGoZooKeeperSharesMutex(t *testing.T) {
	address := start(t)
	l := open(t, address, zkstore.Mutex)
	k, err := l.Lock(t.Context(), "go")
	must(t, err)
	c, _, err := zookeeper.Connect([]string{address}, 20*time.Second, zookeeper.WithLogger(quiet{}))
	must(t, err)
	defer c.Close()
	theirs := zookeeper.NewLock(c, "/app/go", zookeeper.WorldACL(zookeeper.PermAll))
	got := make(chan error, 1)
	go func() { got <- theirs.Lock() }()
	state(t, l, "go", 1, 1)
	if len(got) != 0 {
		t.Fatal("both hold the lock")
	}
	must(t, k.Unlock())
	must(t, <-got)
	if _, err := l.TryLock(t.Context(), "go"); !errors.Is(err, holdfast.ErrBusy) {
		t.Errorf("TryLock of a lock that go-zookeeper holds: %v", err)
	}
	must(t, theirs.Unlock())
	state(t, l, "go", 0, 0)
}

func waitChildren(t *testing.T, address, path string, n int) []string {
	t.Helper()
	c, _, err := zookeeper.Connect([]string{address}, 20*time.Second, zookeeper.WithLogger(quiet{}))
	must(t, err)
	defer c.Close()
	for end := time.Now().Add(testTimeout); ; time.Sleep(5 * time.Millisecond) {
		children, _, err := c.Children(path)
		must(t, err)
		if len(children) == n {
			return children
		}
		if time.Now().After(end) {
			t.Fatalf("%s has the children %v, want %d", path, children, n)
		}
	}
}
