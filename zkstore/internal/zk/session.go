package zk

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// Config says how a session is kept.
type Config struct {
	// Servers are host:port each.
	Servers []string
	// Timeout is the session timeout to ask for.
	Timeout time.Duration
	// Beat is the least distance between the answer of one heartbeat and the send
	// of the next; more than a tick of the servers. Tick is that tick.
	Beat, Tick time.Duration
	// WritePatience bounds a write that the network does not take; default 500 ms.
	WritePatience time.Duration
	// Dial makes a connection, with TLS if there is to be any.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	Auth []Auth
	// OnEvent is told of watches that fire, and OnConn of each new connection, by
	// its number: all watches of earlier ones are void. OnEnd is told once when the
	// session is over, and why. None of them may block.
	OnEvent func(Event)
	OnConn  func(conn int)
	OnEnd   func(error)
}

// ErrClosed: the session was closed by its owner.
var ErrClosed = errors.New("zookeeper: the session is closed")

// ErrRewound: the ensemble has gone back to an earlier state than the session has seen, as
// after a restore from a backup. Its servers refuse the session for that reason.
var ErrRewound = fmt.Errorf("%w: the servers went back to an earlier state than it had seen", ErrExpired)

// Session is one ZooKeeper session, over as many connections as it takes.
type Session struct {
	cfg  Config
	stop context.CancelFunc
	done chan struct{} // run has returned

	mu      sync.Mutex
	id      int64
	passwd  []byte
	timeout time.Duration
	zxid    int64
	conn    *conn // nil while there is none
	conns   int
	ended   error
	changed chan struct{} // closed and replaced when conn or ended changes
	last    error         // why there is no connection
	proof   proof
}

// Open begins a session and returns when it stands.
func Open(ctx context.Context, cfg Config) (*Session, error) {
	running, stop := context.WithCancel(context.Background())
	s := &Session{cfg: cfg, stop: stop, done: make(chan struct{}), changed: make(chan struct{}), passwd: make([]byte, 16)}
	s.proof.changed = make(chan struct{})
	go s.run(running)
	if _, err := s.await(ctx); err != nil {
		stop()
		<-s.done
		return nil, err
	}
	return s, nil
}

// ID is the session's number, the ephemeralOwner of its nodes.
func (s *Session) ID() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.id
}

// Timeout is what the server gave.
func (s *Session) Timeout() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.timeout
}

// Zxid is the last transaction that the session has seen.
func (s *Session) Zxid() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.zxid
}

// Conn numbers the connection that stands, 0 if none does.
func (s *Session) Conn() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn == nil {
		return 0
	}
	return s.conn.n
}

// Ended tells why the session is over, nil while it is not.
func (s *Session) Ended() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ended
}

// await waits for a connection.
func (s *Session) await(ctx context.Context) (*conn, error) {
	for {
		s.mu.Lock()
		c, ended, changed := s.conn, s.ended, s.changed
		s.mu.Unlock()
		switch {
		case ended != nil:
			return nil, &NotSentError{ended}
		case c != nil:
			return c, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			s.mu.Lock()
			last := s.last
			s.mu.Unlock()
			if last != nil {
				return nil, &NotSentError{fmt.Errorf("%w (%w)", last, ctx.Err())}
			}
			return nil, &NotSentError{ctx.Err()}
		}
	}
}

// Do sends calls in one piece, in order, and waits for their answers. Its error
// is a *NotSentError or a *LostError; what the server answered is in the calls.
// After a *LostError the calls must not be read, except Conn and Sent.
func (s *Session) Do(ctx context.Context, calls ...*Call) error {
	if err := s.Send(ctx, calls...); err != nil {
		return err
	}
	last := calls[len(calls)-1]
	select {
	case <-last.done:
	case <-ctx.Done():
		select {
		case <-last.done:
		default:
			return &LostError{ctx.Err()}
		}
	}
	if lost, ok := last.Err.(*LostError); ok {
		return lost
	}
	return nil
}

// Send sends calls in one piece, in order, and does not wait for their answers.
func (s *Session) Send(ctx context.Context, calls ...*Call) error {
	if err := ctx.Err(); err != nil {
		return &NotSentError{err}
	}
	for {
		c, err := s.await(ctx)
		if err != nil {
			return err
		}
		if c.send(calls...) == nil {
			return nil
		}
		// It ended just now: wait for what comes after it.
		select {
		case <-c.over:
		case <-ctx.Done():
			return &NotSentError{ctx.Err()}
		}
		s.lost(c)
	}
}

// closePatience bounds the end of a session. It is one write, which waits for the disks of
// a majority, and not an attempt with one server of several: it does not get shorter with
// the session's timeout. Given up too soon, nodes stand until the session expires that
// would have been gone a moment later.
const closePatience = 5 * time.Second

// Close ends the session at the server, so that its nodes go at once; ctx, and
// closePatience, bound how long that is tried. Without an answer the session is left to expire. Where the
// answer was lost with its connection it is asked again, on the next. ErrExpired says that
// the server there does not know the session any more: it was closed, or has expired, if
// that server is right.
func (s *Session) Close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, closePatience)
	err := s.Do(ctx, &Call{op: opClose})
	for ; err != nil && ctx.Err() == nil; err = s.Do(ctx, &Call{op: opClose}) {
		if ended := s.Ended(); ended != nil {
			if errors.Is(ended, ErrExpired) {
				err = ErrExpired
			}
			break
		}
	}
	cancel()
	s.end(ErrClosed)
	<-s.done
	return err
}

// Abandon ends the session for this process and leaves it to expire at the
// server.
func (s *Session) Abandon() {
	s.end(ErrClosed)
	<-s.done
}

// patience bounds an attempt with one server.
func (s *Session) patience() time.Duration {
	d := s.cfg.Timeout / time.Duration(2*len(s.cfg.Servers))
	return min(max(d, 200*time.Millisecond), 5*time.Second)
}

func (s *Session) end(err error) {
	s.mu.Lock()
	if s.ended != nil {
		s.mu.Unlock()
		return
	}
	s.ended = err
	c := s.conn
	s.conn = nil
	s.announce()
	s.mu.Unlock()
	s.stop()
	if c != nil {
		c.close(err)
	}
	if s.cfg.OnEnd != nil {
		s.cfg.OnEnd(err)
	}
}

// announce wakes those who wait for a change. The session is locked.
func (s *Session) announce() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// lost takes a connection that has ended out of use.
func (s *Session) lost(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn == c {
		s.conn, s.last = nil, c.err
		s.announce()
	}
}

// run keeps the session connected until it is over.
func (s *Session) run(ctx context.Context) {
	defer close(s.done)
	defer s.stop()
	at := rand.IntN(len(s.cfg.Servers))
	var why reason
	for failures := 0; ctx.Err() == nil; at++ {
		server := s.cfg.Servers[at%len(s.cfg.Servers)]
		err := s.connect(ctx, server)
		if err == nil {
			failures = 0
			continue
		}
		s.mu.Lock()
		s.last = why.of(s.last, server, err)
		s.mu.Unlock()
		if failures++; failures%len(s.cfg.Servers) != 0 {
			continue
		}
		// Every server was tried in vain.
		if errors.Is(err, errNoWelcome) && s.rewound(ctx, server) {
			s.end(ErrRewound)
			return
		}
		pause(ctx, min(time.Duration(failures)*20*time.Millisecond, 500*time.Millisecond))
	}
}

// rewound reports whether the ensemble has gone back to an earlier state. A server refuses
// a session that has seen a later transaction than the server itself, without an answer.
// Most such servers lag behind, and the client has only to wait. But what a majority
// commits now is later than everything that any client of the same history has seen.
func (s *Session) rewound(ctx context.Context, server string) bool {
	seen := s.Zxid()
	if seen == 0 {
		return false
	}
	trying, cancel := context.WithTimeout(ctx, s.patience())
	defer cancel()
	now, err := latest(trying, s.cfg, server)
	return err == nil && now < seen
}

// reason picks what to say of attempts that have failed, one after another.
type reason struct{ timeouts int }

// of is what is said from now on. One attempt that took too long, or was cut off, does
// not hide why those before it failed; several do.
func (r *reason) of(last error, server string, err error) error {
	slow, ok := errors.AsType[net.Error](err)
	if ok && slow.Timeout() || errors.Is(err, context.Canceled) {
		r.timeouts++
	} else {
		r.timeouts = 0
	}
	if last != nil && 0 < r.timeouts && r.timeouts <= 3 {
		return last
	}
	return fmt.Errorf("%s: %w", server, err)
}

// pause sleeps for half of d to all of it.
func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d/2 + rand.N(d/2))
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// connect serves the session on one connection until that ends. Its error says
// why there was none.
func (s *Session) connect(ctx context.Context, server string) error {
	trying, cancel := context.WithTimeout(ctx, s.patience())
	defer cancel()
	nc, err := s.cfg.Dial(trying, "tcp", server)
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { nc.Close() })
	defer stop()
	if deadline, ok := trying.Deadline(); ok {
		if err := nc.SetDeadline(deadline); err != nil {
			nc.Close()
			return err
		}
	}
	r := bufio.NewReaderSize(nc, 16<<10)
	s.mu.Lock()
	id, passwd, zxid := s.id, s.passwd, s.zxid
	s.mu.Unlock()
	sent, newID, newPasswd, timeout, err := handshake(nc, r, id, passwd, zxid, s.cfg.Timeout)
	if err == nil {
		err = nc.SetDeadline(time.Time{})
	}
	if err != nil {
		nc.Close()
		return err
	}
	if timeout <= 0 || newID == 0 {
		nc.Close()
		s.end(ErrExpired)
		return ErrExpired
	}
	answered := driver.Now()

	c := &conn{s: s, nc: nc, over: make(chan struct{})}
	s.mu.Lock()
	if s.ended != nil {
		s.mu.Unlock()
		nc.Close()
		return s.ended
	}
	s.conns++
	c.n = s.conns
	s.id, s.passwd, s.timeout = newID, newPasswd, timeout
	s.proof.connected(id == 0, sent, answered)
	s.mu.Unlock()
	if err := s.authenticate(nc); err != nil {
		c.close(err)
		return err
	}
	s.mu.Lock()
	if s.ended == nil {
		s.conn = c
		s.announce()
	}
	s.mu.Unlock()
	if s.cfg.OnConn != nil {
		s.cfg.OnConn(c.n)
	}
	var beating sync.WaitGroup
	beating.Go(func() { s.beat(c) })
	err = c.read(r)
	c.close(err)
	s.lost(c)
	c.abandon()
	beating.Wait()
	return nil
}

// authenticate presents the credentials, ahead of all requests; a refusal ends
// the session.
func (s *Session) authenticate(nc net.Conn) error {
	var e encoder
	for _, a := range s.cfg.Auth {
		start := len(e.b)
		e.int32(0)
		e.int32(xidAuth)
		e.int32(opAuth)
		e.int32(0)
		e.string(a.Scheme)
		e.bytes(a.Data)
		n := encoder{}
		n.int32(int32(len(e.b) - start - 4))
		copy(e.b[start:], n.b)
	}
	if len(e.b) == 0 {
		return nil
	}
	_, err := nc.Write(e.b)
	return err
}

// answered takes note of an answer.
func (s *Session) answered(k *Call, zxid int64, code Error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if zxid > 0 {
		s.zxid = max(s.zxid, zxid)
	}
	// A refusal may be the server's own word, without the leader.
	if throughLeader(k.op) && code == 0 {
		s.proof.answered(k.Sent, s.cfg.Beat)
	}
}
