package zookeeper

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/e2e/conformance/requests"
	"github.com/holdfast-go/holdfast/e2e/servertest"
	"github.com/holdfast-go/holdfast/internal/servers"
	"github.com/holdfast-go/holdfast/internal/wakeup"
	"github.com/holdfast-go/holdfast/zkstore"
)

// tokenRoom: the token of a grant is that many times the czxid of its node.
const tokenRoom = 64

const testTimeout = requests.Timeout

var names atomic.Int64

func newName() string { return fmt.Sprintf("fault-%d", names.Add(1)) }

// locker makes a Locker with a client of its own.
func locker(t *testing.T, servers []string, o ...zkstore.Option) (*holdfast.Locker, *zkstore.Store) {
	t.Helper()
	s := open(t, servers, append([]zkstore.Option{zkstore.Root("/faults")}, o...)...)
	q := queuedHook{t, make(chan string, 100)}
	l, err := holdfast.New(s, holdfast.WithHooks(q))
	must(t, err)
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
	for requests.Receive(q.t, "the answer that "+name+" is held", q.names) != name {
	}
}

func lock(t *testing.T, l *holdfast.Locker, name string, o ...holdfast.LockOption) *holdfast.Lock {
	t.Helper()
	k, err := l.Lock(t.Context(), name, o...) // the lock's context ends with this one
	must(t, err)
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

// hooked is a connection that calls before and after around each write, unless they are nil.
type hooked struct {
	net.Conn
	before, after func(written []byte)
}

func (h hooked) Write(b []byte) (int, error) {
	if h.before != nil {
		h.before(b)
	}
	n, err := h.Conn.Write(b)
	if h.after != nil {
		h.after(b)
	}
	return n, err
}

// onWrites returns the option of a client that calls before and after around each write to a server.
func onWrites(before, after func(written []byte)) zkstore.Option {
	return dialing(func(c net.Conn) net.Conn { return hooked{c, before, after} })
}

// dialing returns the option of a client whose connections pass through wrap.
func dialing(wrap func(net.Conn) net.Conn) zkstore.Option {
	return zkstore.Dial(func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := new(net.Dialer).DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return wrap(c), nil
	})
}

// sends returns a hook for writes, which sends to the channel when one of the words is written.
func sends(words ...string) (hook func([]byte), sent chan struct{}) {
	sent = make(chan struct{}, 1)
	return func(b []byte) {
		if slices.ContainsFunc(words, func(w string) bool { return bytes.Contains(b, []byte(w)) }) {
			wakeup.Send(sent)
		}
	}, sent
}

// loopback listens.
func loopback(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	return l
}

var must = servertest.Check

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

// granted waits for the lock of a waiter.
func granted(t *testing.T, got <-chan *holdfast.Lock) *holdfast.Lock {
	t.Helper()
	k := requests.Receive(t, "the waiter's lock", got)
	if k == nil {
		t.FailNow()
	}
	return k
}

// ends waits for the end of a lock's context.
func ends(t *testing.T, k *holdfast.Lock) {
	t.Helper()
	requests.Receive(t, "the end of the context of "+k.Name(), k.Context().Done())
}

// overtaken waits until another client is granted the lock, and returns that lock. It requires that
// the context of k had ended before.
func overtaken(t *testing.T, k *holdfast.Lock, got <-chan *holdfast.Lock) *holdfast.Lock {
	t.Helper()
	next := granted(t, got)
	if k.Context().Err() == nil {
		t.Fatal("another client holds the lock before the first context has ended")
	}
	requests.LocksRise(t, k, next)
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
	t.Parallel()
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

// empty requires that nothing is left of a name.
func empty(t *testing.T, s *zkstore.Store, name string) {
	t.Helper()
	await(t, s, name, "nothing is left", func(st driver.State) bool { return len(st.Holders)+len(st.Waiters) == 0 })
}
