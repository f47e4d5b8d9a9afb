package zookeeper

import (
	"encoding/binary"
	"io"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/e2e/conformance/requests"
	"github.com/holdfast-go/holdfast/internal/servers"
	"github.com/holdfast-go/holdfast/zkstore"
)

// falseExpiry starts a server that imitates a leader which was deposed while it was stopped. The
// server reports that a session has expired, and sends nothing else. notified is closed when a
// client has received that report.
func falseExpiry(t *testing.T) (address string, notified <-chan struct{}) {
	t.Helper()
	reported := make(chan struct{})
	var once sync.Once
	return serve(t, loopback(t), func(c net.Conn) {
		// Length, version, zxid, timeout, the session, its password of 16 bytes,
		// and a flag.
		request := make([]byte, 4+4+8+4+8+4+16+1)
		if _, err := io.ReadFull(c, request); err != nil || binary.BigEndian.Uint64(request[20:]) == 0 {
			return
		}
		// Length, version, timeout 0, session 0, and a password of 16 bytes.
		answer := make([]byte, 4+4+4+8+4+16)
		binary.BigEndian.PutUint32(answer, uint32(len(answer)-4))
		binary.BigEndian.PutUint32(answer[20:], 16)
		if _, err := c.Write(answer); err != nil {
			return
		}
		_, _ = io.Copy(io.Discard, c) // until the client disconnects
		once.Do(func() { close(reported) })
	}), reported
}

// reportExpiry reports to the client behind a proxy that its session has expired. Then the proxy
// leads to the server again.
func reportExpiry(t *testing.T, z *servers.ZooKeeper, p *servers.Proxy) {
	t.Helper()
	address, notified := falseExpiry(t)
	must(t, p.Redirect(address))
	requests.Receive(t, "the report of the expiry", notified)
	must(t, p.Redirect(z.Address()))
}

// lasting is a TTL whose session outlives the test. If a node disappears, a client has deleted it:
// its session has not expired.
var lasting = holdfast.TTL(2 * time.Minute)

// TestSessionReportedExpiredIsCleanedUp: a session that one server reports as expired may continue at
// the next server. A waiter first deletes its old queue entry, and then makes a new one. A holder
// deletes its node and loses its lock.
func TestSessionReportedExpiredIsCleanedUp(t *testing.T) {
	t.Parallel()
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
			k := lock(t, b, name)
			got := waiting(t, a, sb, name, lasting)
			before := nodes(t, raw, dir, "the entry exists", func([]string) bool { return true })
			reportExpiry(t, z, p)
			after := nodes(t, raw, dir, "there is a queue entry in the new session", func(all []string) bool {
				return slices.ContainsFunc(all, func(n string) bool { return !slices.Contains(before, n) })
			})
			if len(after) > len(before) {
				t.Errorf("the old queue entry exists beside the new one: %v, before %v", after, before)
			}
			must(t, k.Unlock())
			next := granted(t, got)

			reportExpiry(t, z, p)
			ends(t, next)
			if err := next.Unlock(); err == nil {
				t.Error("Unlock does not report the loss")
			}
			empty(t, sb, name)
		})
	}
}

// TestCloseConfirmsEndWithLostAnswer: the server ends the session, and its answer is lost. Close
// finds that the session no longer exists, and returns no error.
func TestCloseConfirmsEndWithLostAnswer(t *testing.T) {
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
	must(t, requests.Receive(t, "the end of Close", closed))
}

// TestCloseFailsOnFalseExpiry: the request to end a session does not arrive. The next server falsely
// reports that the session has expired. Close returns an error.
func TestCloseFailsOnFalseExpiry(t *testing.T) {
	t.Parallel()
	z := alone(t, plain) // its session stays until it expires
	p := behindProxy(t, z)
	hook, sent := sends("\xff\xff\xff\xf5") // closeSession, -11
	l, s := locker(t, []string{p.Address()}, onWrites(nil, hook))
	_, sb := locker(t, []string{z.Address()})
	name := newName()
	lock(t, l, name, lasting)
	select {
	case <-sent: // of the session that has read the server's limits
	default:
	}
	must(t, p.Silence())
	closed := make(chan error, 1)
	go func() { closed <- s.Close(t.Context()) }()
	requests.Receive(t, "the request to end the session", sent)
	p.Cut() // the proxy may not have read the request yet, and would forward it after Heal
	must(t, p.Heal())
	reportExpiry(t, z, p)
	if err := requests.Receive(t, "the end of Close", closed); driver.CodeOf(err) != driver.CodeUnavailable {
		t.Errorf("Close: %v", err)
	}
	if st := state(t, sb, name); len(st.Holders) != 1 {
		t.Errorf("%+v, want one holder: else the session has ended, and the test proves nothing", st)
	}
}
