package zookeeper

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"testing"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/e2e/conformance/requests"
	"github.com/holdfast-go/holdfast/e2e/servertest"
	"github.com/holdfast-go/holdfast/internal/servers"
	"github.com/holdfast-go/holdfast/zkstore"
)

// refusingUsers is a proxy that turns each answer to an authentication into a refusal. A
// member that was started without that kind of user answers like this.
func refusingUsers(t *testing.T, z *servers.ZooKeeper) (address string) {
	t.Helper()
	return serve(t, loopback(t), func(c net.Conn) {
		passOn(c, z.Address(), func(to io.Writer, from io.Reader) { refuseUsers(to, bufio.NewReader(from)) })
	})
}

// refuseUsers forwards the answers of a connection: the first is the welcome, the others
// begin with length, xid, zxid and code.
func refuseUsers(to io.Writer, from io.Reader) {
	for first := true; ; first = false {
		frame := make([]byte, 4)
		if _, err := io.ReadFull(from, frame); err != nil {
			return
		}
		frame = append(frame, make([]byte, binary.BigEndian.Uint32(frame))...)
		if _, err := io.ReadFull(from, frame[4:]); err != nil {
			return
		}
		if xid := int32(binary.BigEndian.Uint32(frame[4:])); !first && xid == -4 {
			refusal := int32(-115)
			binary.BigEndian.PutUint32(frame[16:], uint32(refusal))
		}
		if _, err := to.Write(frame); err != nil {
			return
		}
	}
}

// TestRefusedUserLosesSession: a server refuses the user when the client reconnects. The client
// gives up the session, which the ensemble still has. The client notifies the holder, and the
// waiter gets an error. When the server accepts the user again, the nodes of both are removed long
// before the session expires.
func TestRefusedUserLosesSession(t *testing.T) {
	t.Parallel()
	z := alone(t, plain) // the server keeps the session until it expires
	p := behindProxy(t, z)
	root := zkstore.Root("/auth-fails")
	a, _ := locker(t, []string{p.Address()}, root, zkstore.Digest("me", "secret"))
	b, sb := locker(t, []string{z.Address()}, root)
	name, other := newName(), newName()
	k := lock(t, b, name)
	held := lock(t, a, other, lasting)
	waited := make(chan error, 1)
	go func() {
		_, err := a.Lock(t.Context(), name, lasting)
		waited <- err
	}()
	await(t, sb, name, "there is a queue entry", func(st driver.State) bool { return len(st.Waiters) == 1 })
	must(t, p.Redirect(refusingUsers(t, z)))
	ends(t, held)
	if err := requests.Receive(t, "the waiter's error", waited); !errors.Is(err, holdfast.ErrRefused) {
		t.Errorf("the waiter: %v", err)
	}
	var lost *holdfast.LostError
	if err := held.Unlock(); !errors.As(err, &lost) || lost.Cause != holdfast.CauseSessionEnded {
		t.Errorf("Unlock: %v", err)
	}
	must(t, p.Redirect(z.Address()))
	empty(t, sb, other)
	must(t, k.Unlock())
	empty(t, sb, name)
}

// TestRefusedLoginsAreFew: a server refuses the user of a process with a holder, a waiter and a candidate.
func TestRefusedLoginsAreFew(t *testing.T) {
	t.Parallel()
	z := alone(t, plain)
	p := behindProxy(t, z)
	root := zkstore.Root("/refused-logins")
	other, _ := locker(t, []string{z.Address()}, root)
	lock(t, other, "busy", lasting)
	l, _ := locker(t, []string{p.Address()}, root, zkstore.Digest("me", "secret"))
	servertest.RefusedLogins{
		Row: "zookeeper", Client: l, Busy: "busy", Count: p.Accepted,
		Refuse: func() { must(t, p.Redirect(refusingUsers(t, z))) },
		Accept: func() { must(t, p.Redirect(z.Address())) },
	}.Test(t)
}
