package zookeeper

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/check/servers"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/zkstore"
)

const testTimeout = time.Minute

var names atomic.Int64

func newName() string { return fmt.Sprintf("fault-%d", names.Add(1)) }

// locker makes a Locker with a client of its own.
func locker(t *testing.T, servers []string, o ...zkstore.Option) (*holdfast.Locker, *zkstore.Store) {
	t.Helper()
	s := open(t, servers, append([]zkstore.Option{zkstore.Root("/faults")}, o...)...)
	q := queuedHook{t, make(chan string, 100)}
	l, err := holdfast.New(s, holdfast.WithHooks(q))
	if err != nil {
		t.Fatal(err)
	}
	queuedHooks.Store(l, q)
	t.Cleanup(func() {
		queuedHooks.Delete(l)
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_ = l.Close(ctx)
		_ = s.Close(ctx)
	})
	return l, s
}

// queuedHooks contains the hook of each Locker that the function locker has made.
var queuedHooks sync.Map

// queuedHook is a hook of a Locker. It sends each name that the store has reported as held.
type queuedHook struct {
	t     *testing.T
	names chan string
}

func (q queuedHook) Start(ctx context.Context, _ holdfast.Event) context.Context { return ctx }

func (q queuedHook) Event(_ context.Context, e holdfast.Event) {
	if e.Kind == holdfast.EventQueued {
		select {
		case q.names <- e.Name:
		default:
		}
	}
}

// await waits until the store has reported a name as held.
func (q queuedHook) await(name string) {
	q.t.Helper()
	for end := time.After(testTimeout); ; {
		select {
		case n := <-q.names:
			if n == name {
				return
			}
		case <-end:
			q.t.Fatalf("no answer that %s is held", name)
		}
	}
}

func lock(t *testing.T, l *holdfast.Locker, name string, o ...holdfast.LockOption) *holdfast.Lock {
	t.Helper()
	k, err := l.Lock(t.Context(), name, o...) // the lock's context ends with this one
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// proxied puts a proxy before the single server.
func proxied(t *testing.T) (*servers.ZooKeeper, *servers.Proxy) {
	t.Helper()
	z := single(t)
	return z, behindProxy(t, z)
}

// behindProxy is a connection to a server through a proxy with faults.
func behindProxy(t *testing.T, z *servers.ZooKeeper) *servers.Proxy {
	t.Helper()
	p, err := servers.NewProxy(z.Address())
	must(t, err)
	t.Cleanup(p.Close)
	// One request first, so that all goroutines of the client run.
	c, err := net.Dial("tcp", p.Address())
	must(t, err)
	_, err = io.WriteString(c, "srvr")
	must(t, err)
	_, err = io.ReadAll(c)
	must(t, errors.Join(err, c.Close()))
	return p
}

// serve calls a function for each connection to a listener, until the test ends.
func serve(t *testing.T, l net.Listener, answer func(net.Conn)) (address string) {
	var done sync.WaitGroup
	t.Cleanup(func() { l.Close(); done.Wait() })
	done.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			done.Go(func() {
				defer c.Close()
				answer(c)
			})
		}
	})
	return l.Addr().String()
}

// passOn connects a client with a server; answers forwards the server's output.
func passOn(client net.Conn, upstream string, answers func(to io.Writer, from io.Reader)) {
	server, err := net.Dial("tcp", upstream)
	if err != nil {
		return
	}
	defer server.Close()
	var requests sync.WaitGroup
	requests.Go(func() { _, _ = io.Copy(server, client); server.Close() })
	answers(client, server)
	client.Close()
	requests.Wait()
}

// loopback listens.
func loopback(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	return l
}

// must ends the test at an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// state returns the state of a name, as soon as it can be read.
func state(t *testing.T, s *zkstore.Store, name string) driver.State {
	t.Helper()
	return await(t, s, name, "it can be read", func(driver.State) bool { return true })
}

// await waits until the state of a name meets a condition. It repeats reads with an expired
// session or a lost connection.
func await(t *testing.T, s *zkstore.Store, name, what string, so func(driver.State) bool) driver.State {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	var last driver.State
	for {
		st, err := s.Inspect(ctx, name)
		switch code := driver.CodeOf(err); {
		case err == nil && so(st):
			return st
		case err == nil:
			last = st
		case code != driver.CodeUnavailable && code != driver.CodeUnknown:
			t.Fatal(err)
		}
		select {
		case <-time.After(5 * time.Millisecond):
		case <-ctx.Done():
			t.Fatalf("waiting until %s: %+v (%v)", what, last, err)
		}
	}
}

// undone requires that the undo of a request is confirmed in the end.
func undone(t *testing.T, s *zkstore.Store, r driver.Request) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	for err := s.Undo(ctx, r); err != nil; err = s.Undo(ctx, r) {
		if ctx.Err() != nil {
			t.Fatal(err)
		}
	}
}

// waiting begins to lock, and returns when the queue entry stands. If the function locker has made
// the Locker, waiting also waits until the store has reported the name as held. A waiter without
// that report gives up after the request timeout.
func waiting(t *testing.T, l *holdfast.Locker, watcher *zkstore.Store, name string, o ...holdfast.LockOption) <-chan *holdfast.Lock {
	t.Helper()
	before := state(t, watcher, name)
	got := make(chan *holdfast.Lock, 1)
	go func() {
		k, err := l.Lock(t.Context(), name, o...)
		if err != nil {
			t.Errorf("waiting for %s: %v", name, err)
		}
		got <- k
	}()
	await(t, watcher, name, "there is a queue entry", func(st driver.State) bool { return len(st.Waiters) > len(before.Waiters) })
	if q, ok := queuedHooks.Load(l); ok {
		q.(queuedHook).await(name)
	}
	return got
}

// overtaken waits until another client is granted the lock, and returns that lock. It requires that
// the context of k had ended before.
func overtaken(t *testing.T, k *holdfast.Lock, got <-chan *holdfast.Lock) *holdfast.Lock {
	t.Helper()
	ended := make(chan time.Time, 1)
	stop := context.AfterFunc(k.Context(), func() { ended <- time.Now() })
	defer stop()
	var next *holdfast.Lock
	select {
	case next = <-got:
		if k.Context().Err() == nil {
			t.Fatal("another client holds the lock before the first context has ended")
		}
	case <-time.After(testTimeout):
		t.Fatal("no other client was granted the lock")
	}
	if next == nil {
		t.FailNow()
	}
	if next.Token() <= k.Token() {
		t.Errorf("token %d after %d", next.Token(), k.Token())
	}
	var lost *holdfast.LostError
	if cause := context.Cause(k.Context()); !errors.As(cause, &lost) {
		t.Errorf("cause %v, want a loss", cause)
	}
	return next
}

// expiring is the TTL of a session that is cut off until the server has ended it. The client
// retries for a third of it, which is longer than the server's delay in ending a session.
const expiring = 4 * time.Second

// TestExpiredSessionEndsLock: the server ends the session of a client that is cut off.
func TestExpiredSessionEndsLock(t *testing.T) {
	z, p := proxied(t)
	a, _ := locker(t, []string{p.Address()})
	b, sb := locker(t, []string{z.Address()})
	name := newName()
	k := lock(t, a, name, holdfast.TTL(expiring))
	got := waiting(t, b, sb, name)
	must(t, p.Silence())
	next := overtaken(t, k, got)
	must(t, next.Unlock())
	must(t, p.Heal())
	// The client reconnects with a new session.
	must(t, lock(t, a, name, holdfast.TTL(expiring)).Unlock())
}

// TestExpiredSessionIsReplacedWhileWaiting: the server has ended the session of a queue
// entry, and the client makes a new one.
func TestExpiredSessionIsReplacedWhileWaiting(t *testing.T) {
	z, p := proxied(t)
	a, _ := locker(t, []string{p.Address()})
	b, sb := locker(t, []string{z.Address()})
	name := newName()
	k := lock(t, b, name)
	got := waiting(t, a, sb, name, holdfast.TTL(expiring))
	must(t, p.Silence())
	await(t, sb, name, "the session expires", func(st driver.State) bool { return len(st.Waiters) == 0 })
	must(t, p.Heal())
	must(t, k.Unlock())
	next := <-got
	if next == nil {
		t.FailNow()
	}
	must(t, next.Unlock())
	empty(t, sb, name)
}

// empty requires that nothing is left of a name.
func empty(t *testing.T, s *zkstore.Store, name string) {
	t.Helper()
	await(t, s, name, "nothing is left", func(st driver.State) bool { return len(st.Holders)+len(st.Waiters) == 0 })
}

// TestLostAnswerOfCreateLeavesOneNode: the answer to a create is lost. The request takes over its
// node, or its undo removes it; there is never a second node.
func TestLostAnswerOfCreateLeavesOneNode(t *testing.T) {
	z, p := proxied(t)
	a, sa := locker(t, []string{p.Address()})
	_, sb := locker(t, []string{z.Address()})
	name := newName()
	must(t, lock(t, a, name).Unlock()) // the session stands, and the name has a node
	must(t, p.DropAnswers())
	got := make(chan *holdfast.Lock, 1)
	go func() {
		k, err := a.Lock(t.Context(), name)
		if err != nil {
			t.Error(err)
		}
		got <- k
	}()
	arrived := func(st driver.State) bool { return len(st.Holders) == 1 }
	await(t, sb, name, "the create arrives", arrived)
	must(t, p.Heal())
	k := <-got
	if k == nil {
		t.FailNow()
	}
	st := state(t, sb, name)
	if len(st.Holders) != 1 || len(st.Waiters) != 0 || st.Holders[0].Token != k.Token() {
		t.Errorf("%+v, want one holder with token %d", st, k.Token())
	}
	must(t, k.Unlock())
	empty(t, sb, name)

	// The caller's context ends before the client finds that the answer is lost.
	must(t, p.DropAnswers())
	r := driver.Request{ID: "lost-answer", Name: name, Limit: driver.Exclusive, TTL: 30 * time.Second, Wait: true, From: noRequester{}}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	answered := make(chan error, 1)
	go func() {
		_, err := sa.Acquire(ctx, r)
		answered <- err
	}()
	await(t, sb, name, "the create arrives", arrived)
	cancel()
	if err := <-answered; err == nil || driver.CodeOf(err) != driver.CodeUnknown {
		t.Fatalf("Acquire: %v (%v), want unknown", err, driver.CodeOf(err))
	}
	must(t, p.Heal())
	undone(t, sa, r) // the connection is lost as well
	st = state(t, sb, name)
	if len(st.Holders)+len(st.Waiters) != 0 {
		t.Errorf("left after a confirmed undo: %+v", st)
	}
}

type noRequester struct{}

func (noRequester) Owner() driver.Owner      { return driver.Owner{ID: "lost-answer"} }
func (noRequester) Queued([]driver.Holder)   {}
func (noRequester) Lost(driver.Cause, error) {}

// TestWaiterFindsMissedGrant: a waiter was cut off when it became the first. It is granted the lock
// after it has reconnected.
func TestWaiterFindsMissedGrant(t *testing.T) {
	z, p := proxied(t)
	a, _ := locker(t, []string{p.Address()})
	b, sb := locker(t, []string{z.Address()})
	name := newName()
	k := lock(t, b, name)
	got := waiting(t, a, sb, name)
	p.Cut()
	must(t, k.Unlock())
	must(t, p.Heal())
	next := <-got
	if next == nil {
		t.FailNow()
	}
	must(t, next.Unlock())
}

// TestDeletedNodeEndsLock: an operator deletes the holder's node. The holder is notified
// within the declared notice, and a waiter is granted.
func TestDeletedNodeEndsLock(t *testing.T) {
	z := single(t)
	a, _ := locker(t, []string{z.Address()})
	b, sb := locker(t, []string{z.Address()})
	name := newName()
	k := lock(t, a, name)
	got := waiting(t, b, sb, name)
	raw := connect(t, z.Address())
	children, _, err := raw.Children("/faults/" + name)
	must(t, err)
	deleted := false
	for _, c := range children {
		_, stat, err := raw.Exists("/faults/" + name + "/" + c)
		must(t, err)
		if uint64(stat.Czxid) == k.Token() {
			must(t, raw.Delete("/faults/"+name+"/"+c, -1))
			deleted = true
			break
		}
	}
	if !deleted {
		t.Fatalf("none of %v is the holder's", children)
	}
	next := <-got
	if next == nil {
		t.FailNow()
	}
	select {
	case <-k.Context().Done():
	case <-time.After(testTimeout):
		t.Fatal("the holder was not notified")
	}
	must(t, next.Unlock())
}
