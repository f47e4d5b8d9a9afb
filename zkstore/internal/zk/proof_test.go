package zk

import (
	"bufio"
	"context"
	"encoding/binary"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// fakeServer accepts sessions and answers each request with the next code that the test
// sends. A request without a code waits for one.
type fakeServer struct {
	net.Listener
	codes    chan Error
	requests chan struct{} // one for each request
	zxid     atomic.Int64
}

func newFakeServer(t *testing.T) *fakeServer {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := &fakeServer{Listener: l, codes: make(chan Error), requests: make(chan struct{}, 1000)}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go f.serve(t.Context(), c)
		}
	}()
	return f
}

func (f *fakeServer) serve(ctx context.Context, c net.Conn) {
	defer c.Close()
	stop := context.AfterFunc(ctx, func() { c.Close() })
	defer stop()
	send := func(e encoder) bool {
		_, err := c.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(e.b))), e.b...))
		return err == nil
	}
	r := bufio.NewReader(c)
	hello, err := readFrame(r, nil)
	if err != nil {
		return
	}
	d := decoder{b: hello}
	d.int32()
	d.int64()
	var welcome encoder
	welcome.int32(0)
	welcome.int32(d.int32())
	welcome.int64(7)
	welcome.bytes(make([]byte, 16))
	if !send(welcome) {
		return
	}
	for {
		frame, err := readFrame(r, nil)
		if err != nil {
			return
		}
		d := decoder{b: frame}
		xid, op := d.int32(), d.int32()
		f.requests <- struct{}{}
		var code Error
		select {
		case code = <-f.codes:
		case <-ctx.Done():
			return
		}
		var answer encoder
		answer.int32(xid)
		answer.int64(f.zxid.Add(1))
		answer.int32(int32(code))
		if code == 0 && op == opSync {
			answer.string("/")
		}
		if !send(answer) {
			return
		}
	}
}

// session begins a session at the server, and returns it with the instant before.
func (f *fakeServer) session(t *testing.T) (s *Session, before driver.Instant) {
	t.Helper()
	before = driver.Now()
	s, err := Open(t.Context(), Config{
		Servers: func() []string { return []string{f.Addr().String()} }, Timeout: time.Minute, Heartbeat: 10 * time.Millisecond, Tick: 10 * time.Millisecond,
		Dial:    (&net.Dialer{}).DialContext,
		OnEvent: func(Event) {},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Abandon)
	return s, before
}

// beat lets the server answer the next heartbeat with a code. It then waits for another
// heartbeat, which the client sends after it has handled the answer.
func (f *fakeServer) beat(t *testing.T, code Error) {
	t.Helper()
	f.codes <- code
	select {
	case <-f.requests:
	case <-time.After(time.Minute):
		t.Fatal("no heartbeat comes")
	}
}

// TestSessionIsNotProvedByOneAnswer: an answer proves the session from the request before the
// answered one, and not from the answered one itself. The leader may not have received the server's
// report about the answered request yet (see proof).
func TestSessionIsNotProvedByOneAnswer(t *testing.T) {
	f := newFakeServer(t)
	s, _ := f.session(t)
	connected, _ := s.Proof()
	<-f.requests // the first heartbeat is on its way
	first := driver.Now()
	f.beat(t, 0)
	if origin, _ := s.Proof(); origin != connected {
		t.Errorf("one answer has moved the proof by %s", Between(connected, origin))
	}
	second := driver.Now() // the second heartbeat was sent before
	f.beat(t, 0)
	origin, _ := s.Proof()
	if Between(connected, origin) <= 0 || Between(first, origin) > 0 {
		t.Errorf("two answers have moved the proof by %s, want to the send of the first, at most %s", Between(connected, origin), Between(connected, first))
	}
	f.beat(t, 0)
	if origin, _ = s.Proof(); Between(first, origin) <= 0 || Between(second, origin) > 0 {
		t.Errorf("three answers have moved the proof to %s after the first, want to the send of the second, at most %s", Between(first, origin), Between(first, second))
	}
}

// TestRefusalsProveNothing: a server may refuse without its leader, so refusals do not
// change the proof.
func TestRefusalsProveNothing(t *testing.T) {
	f := newFakeServer(t)
	s, _ := f.session(t)
	connected, _ := s.Proof()
	<-f.requests
	for _, code := range []Error{ErrReadOnly, ErrUnimplemented, ErrThrottled, ErrNoAuth, -5 /* malformed */} {
		for range 3 {
			f.beat(t, code)
		}
		if origin, _ := s.Proof(); origin != connected {
			t.Errorf("answers %q have moved the proof by %s", code, Between(connected, origin))
		}
	}
}

// TestReconnectionIsNotProofByItself: the handshake on another connection counts like an
// answer, because a deposed leader gives it as well.
func TestReconnectionIsNotProofByItself(t *testing.T) {
	f := newFakeServer(t)
	s, _ := f.session(t)
	connected, _ := s.Proof()
	<-f.requests
	s.mu.Lock()
	c := s.conn
	s.mu.Unlock()
	c.close(net.ErrClosed)
	<-f.requests // the first heartbeat of the second connection
	if origin, _ := s.Proof(); origin != connected {
		t.Errorf("a reconnection has moved the proof by %s", Between(connected, origin))
	}
}
