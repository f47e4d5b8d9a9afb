package zookeeper

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/check/servers"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/zkstore"
)

// liar stands for a leader that was deposed while it was stopped: it says of a session
// that it has expired, and answers nothing else. The session's id tells.
func liar(t *testing.T) (address string, told <-chan struct{}) {
	t.Helper()
	said := make(chan struct{})
	var once sync.Once
	return serve(t, loopback(t), func(c net.Conn) {
		// Length, version, zxid, timeout, the session, its password of 16 bytes,
		// and a flag.
		ask := make([]byte, 4+4+8+4+8+4+16+1)
		if _, err := io.ReadFull(c, ask); err != nil || binary.BigEndian.Uint64(ask[20:]) == 0 {
			return
		}
		// Length, version, timeout 0, session 0, and a password of 16 bytes.
		answer := make([]byte, 4+4+4+8+4+16)
		binary.BigEndian.PutUint32(answer, uint32(len(answer)-4))
		binary.BigEndian.PutUint32(answer[20:], 16)
		if _, err := c.Write(answer); err != nil {
			return
		}
		_, _ = io.Copy(io.Discard, c) // until the client, who has heard it, leaves
		once.Do(func() { close(said) })
	}), said
}

// lied tells the client behind a proxy that its session has expired, and leads it back.
func lied(t *testing.T, z *servers.ZooKeeper, p *servers.Proxy) {
	t.Helper()
	address, told := liar(t)
	must(t, p.Redirect(address))
	select {
	case <-told:
	case <-time.After(patience):
		t.Fatal("the client did not come back")
	}
	must(t, p.Redirect(z.Address()))
}

// lasting is a TTL whose session outlives the test's patience: what goes has been
// removed, and did not expire.
var lasting = holdfast.TTL(2 * time.Minute)

// TestSaidToHaveExpired: a session that one server calls expired may live at the next.
// Whoever waits in it takes its old place back before it takes another, and who holds
// gives the node back with the lock.
func TestSaidToHaveExpired(t *testing.T) {
	for _, layout := range []zkstore.Layout{zkstore.ReadWrite, zkstore.Semaphore} {
		t.Run(string(layout), func(t *testing.T) {
			z, p := proxied(t)
			o := []zkstore.Option{zkstore.WithLayout(layout), zkstore.Root("/expired-" + string(layout))}
			a, _ := locker(t, []string{p.Address()}, o...)
			b, sb := locker(t, []string{z.Address()}, o...)
			raw := connect(t, z.Address())
			name := newName()
			dir := "/expired-" + string(layout) + "/" + name
			if layout == zkstore.Semaphore {
				dir += "/locks"
			}
			places := func() []string {
				all, _, err := raw.Children(dir)
				must(t, err)
				return all
			}
			k := lock(t, b, name)
			got := waiting(t, a, sb, name, lasting)
			before := places()
			lied(t, z, p)
			var after []string
			for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
				after = places()
				if slices.ContainsFunc(after, func(n string) bool { return !slices.Contains(before, n) }) {
					break
				}
				if time.Now().After(end) {
					t.Fatal("no place in the new session")
				}
			}
			if len(after) > len(before) {
				t.Errorf("a second place beside the first: %v after %v", after, before)
			}
			must(t, k.Unlock())
			next := <-got
			if next == nil {
				t.FailNow()
			}

			lied(t, z, p)
			select {
			case <-next.Context().Done():
			case <-time.After(patience):
				t.Fatal("the holder was not told")
			}
			if err := next.Unlock(); err == nil {
				t.Error("Unlock says nothing of the loss")
			}
			empty(t, sb, name)
		})
	}
}

// TestCloseAnswerLost: a session whose end has lost its answer is seen to be gone.
func TestCloseAnswerLost(t *testing.T) {
	z, p := proxied(t)
	l, s := locker(t, []string{p.Address()})
	_, sb := locker(t, []string{z.Address()})
	name := newName()
	lock(t, l, name, lasting)
	must(t, p.DropAnswers())
	closed := make(chan error, 1)
	go func() { closed <- s.Close(t.Context()) }()
	empty(t, sb, name)
	must(t, p.Heal())
	select {
	case err := <-closed:
		must(t, err)
	case <-time.After(patience):
		t.Fatal("Close does not come back")
	}
}

// TestCloseDoesNotBelieveOneServer: the end of a session was sent and did not arrive, and
// the next server says that it has expired. Close does not say that all is done.
func TestCloseDoesNotBelieveOneServer(t *testing.T) {
	z := alone(t) // the session stays there until it expires
	p := behindProxy(t, z)
	sent := make(chan struct{}, 1)
	l, s := locker(t, []string{p.Address()}, zkstore.Dial(func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := new(net.Dialer).DialContext(ctx, network, address)
		return overheard{c, [][]byte{{0xff, 0xff, 0xff, 0xf5}}, sent}, err // closeSession, -11
	}))
	_, sb := locker(t, []string{z.Address()})
	name := newName()
	lock(t, l, name, lasting)
	select {
	case <-sent: // by the session that has asked for the limits
	default:
	}
	must(t, p.Silence())
	closed := make(chan error, 1)
	go func() { closed <- s.Close(t.Context()) }()
	select {
	case <-sent:
	case <-time.After(patience):
		t.Fatal("the end of the session was not sent")
	}
	address, told := liar(t)
	must(t, p.Redirect(address))
	must(t, p.Heal())
	select {
	case <-told:
	case <-time.After(patience):
		t.Fatal("the client did not come back")
	}
	must(t, p.Redirect(z.Address()))
	select {
	case err := <-closed:
		if driver.CodeOf(err) != driver.CodeUnavailable {
			t.Errorf("Close: %v", err)
		}
	case <-time.After(patience):
		t.Fatal("Close does not come back")
	}
	if st := state(t, sb, name); len(st.Holders) != 1 {
		t.Errorf("%+v; the test shows nothing", st)
	}
}
