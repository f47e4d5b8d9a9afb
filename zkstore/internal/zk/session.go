package zk

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/backoff"
)

// Config configures a session.
type Config struct {
	// Servers returns the servers, host:port each. They may change.
	Servers func() []string
	// Timeout is the requested session timeout.
	Timeout time.Duration
	// Heartbeat is the shortest time between the answer to one heartbeat and the send of the
	// next; more than a tick of the servers. Tick is that tick.
	Heartbeat, Tick time.Duration
	// WriteTimeout limits a write that the network does not accept; default 500 ms.
	WriteTimeout time.Duration
	// Dial opens a connection, with TLS if configured.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	Auth []Auth
	// Refused, if not nil, has the outcome of the last authentication. While it has a refusal, Open returns that.
	Refused *backoff.Refused
	// OnEvent is called when a watch fires. OnConn is called for each new connection, with its
	// number: all watches of earlier connections have ended. OnEnd is called once when the session
	// is over, with the reason. None of them may block.
	OnEvent func(Event)
	OnConn  func(conn int)
	OnEnd   func(error)
}

// ErrClosed is the error of a session that its owner has closed.
var ErrClosed = errors.New("zookeeper: the session is closed")

// ErrRewound is the error of a session that has seen a later state than the ensemble has, for
// example after a restore from a backup. The servers refuse such a session.
var ErrRewound = fmt.Errorf("%w: the servers went back to an earlier state than it had seen", ErrExpired)

// Session is one ZooKeeper session over consecutive connections.
type Session struct {
	cfg  Config
	stop context.CancelFunc
	done chan struct{} // run has returned

	mu      sync.Mutex
	session identity
	timeout time.Duration
	zxid    int64
	conn    *conn         // nil while there is none
	conns   int           // the number of connections so far
	ended   error         // why the session is over, nil while it is not
	changed chan struct{} // closed and replaced when conn or ended changes
	last    error         // why there is no connection
	proof   proof
}

// Open begins a session and waits until a server has accepted it.
func Open(ctx context.Context, cfg Config) (*Session, error) {
	if cfg.Refused != nil {
		if err := cfg.Refused.Err(); err != nil {
			return nil, &NotSentError{err}
		}
	}
	running, stop := context.WithCancel(context.Background())
	s := &Session{cfg: cfg, stop: stop, done: make(chan struct{}), changed: make(chan struct{}), session: newSession}
	s.proof.changed = make(chan struct{})
	go s.run(running)
	if _, err := s.await(ctx); err != nil {
		stop()
		<-s.done
		if cfg.Refused != nil && s.conns == 0 {
			cfg.Refused.Note(nil) // no server has seen the user
		}
		return nil, err
	}
	return s, nil
}

// ID returns the session's number, the ephemeralOwner of its nodes.
func (s *Session) ID() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.session.id
}

// Timeout returns the session timeout that the server has granted.
func (s *Session) Timeout() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.timeout
}

// Zxid returns the last transaction that the session has seen.
func (s *Session) Zxid() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.zxid
}

// Conn returns the number of the present connection, 0 if there is none.
func (s *Session) Conn() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn == nil {
		return 0
	}
	return s.conn.number
}

// Ended returns why the session is over, nil while it is not.
func (s *Session) Ended() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ended
}

// await returns the connection, and waits for one if there is none.
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

// Do sends calls in one piece, in order, and waits for their answers. Its error is a
// *NotSentError or a *LostError; errors of the server are in the calls. After a *LostError
// only Conn and Sent of the calls may be read.
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
		// The connection has just ended: wait for the next one.
		select {
		case <-c.over:
		case <-ctx.Done():
			return &NotSentError{ctx.Err()}
		}
		s.removeConn(c)
	}
}

// closeTimeout limits the end of a session at the server. The end is one write, which waits for the
// disks of a majority, so the limit does not depend on the session's timeout. If the limit is too
// short, nodes that the server would soon have removed exist until the session expires.
const closeTimeout = 5 * time.Second

// Close ends the session at the server, so that its nodes are removed at once. It tries until ctx
// ends, for closeTimeout at most. If it gets no answer, the session expires. If the connection is
// lost before the answer, Close repeats the request on the next one. ErrExpired means that the
// server no longer has the session: it was closed or has expired, if that server is right.
func (s *Session) Close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, closeTimeout)
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

// Abandon ends the session in this process and leaves it to expire at the server.
func (s *Session) Abandon() {
	s.end(ErrClosed)
	<-s.done
}

// dialTimeout returns the limit of a connection attempt to one server.
func (s *Session) dialTimeout() time.Duration {
	d := s.cfg.Timeout / time.Duration(2*len(s.cfg.Servers()))
	return min(max(d, 200*time.Millisecond), 5*time.Second)
}

// attemptTimeout returns the limit of an attempt to continue a session, after so many attempts in a
// row that timed out. It grows from one second to full, the limit for a new session. A server that is
// starting may accept a connection and never answer: ZooKeeper 3.8 fails to close a connection before
// it has loaded its database (a NullPointerException in ZooKeeperServer.removeCnxn). To continue a
// session the server writes nothing to its disk, so most servers answer at once.
func attemptTimeout(full time.Duration, timeouts int) time.Duration {
	return min(full, time.Second<<min(timeouts, 10))
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

// announce wakes the goroutines that wait for a change. The caller holds mu.
func (s *Session) announce() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// removeConn removes a connection that has ended.
func (s *Session) removeConn(c *conn) {
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
	at := rand.IntN(len(s.cfg.Servers()))
	var why reason
	timeouts := 0 // of the attempts in a row
	retry := backoff.Backoff{First: 20 * time.Millisecond, Max: 500 * time.Millisecond}
	for failures := 0; ctx.Err() == nil; at++ {
		servers := s.cfg.Servers()
		server := servers[at%len(servers)]
		limit := s.dialTimeout()
		if s.ID() != 0 {
			limit = attemptTimeout(limit, timeouts)
		}
		err := s.connect(ctx, server, limit)
		if err == nil {
			failures, timeouts = 0, 0
			retry.Reset()
			continue
		}
		if isTimeout(err) {
			timeouts++
		} else {
			timeouts = 0
		}
		s.mu.Lock()
		s.last = why.choose(s.last, server, err)
		s.mu.Unlock()
		if failures++; failures%len(servers) != 0 {
			continue
		}
		// All servers have failed.
		if errors.Is(err, errUnanswered) && s.rewound(ctx, server) {
			s.end(ErrRewound)
			return
		}
		_ = retry.Sleep(ctx)
	}
}

// rewound reports whether the ensemble has returned to an earlier state. A server refuses,
// without an answer, a session that has seen a later transaction than the server itself.
// Most such servers are behind, and the client only has to wait. But a transaction that a
// majority commits now is later than all that any client of the same history has seen.
func (s *Session) rewound(ctx context.Context, server string) bool {
	seen := s.Zxid()
	if seen == 0 {
		return false
	}
	trying, cancel := context.WithTimeout(ctx, s.dialTimeout())
	defer cancel()
	now, err := latest(trying, s.cfg, server)
	return err == nil && now < seen
}

func isTimeout(err error) bool {
	slow, ok := errors.AsType[net.Error](err)
	return ok && slow.Timeout()
}

// reason selects the error to report after consecutive failed attempts.
type reason struct{ timeouts int }

// choose returns the error to report from now on. One attempt that timed out, or was cancelled, does
// not hide the reason of earlier failures. Several such attempts in a row do.
func (r *reason) choose(last error, server string, err error) error {
	if isTimeout(err) || errors.Is(err, context.Canceled) {
		r.timeouts++
	} else {
		r.timeouts = 0
	}
	if last != nil && 0 < r.timeouts && r.timeouts <= 3 {
		return last
	}
	return fmt.Errorf("%s: %w", server, err)
}

// connect serves the session on one connection until that ends. It returns an error if there
// was no connection within limit.
func (s *Session) connect(ctx context.Context, server string, limit time.Duration) error {
	trying, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	nc, err := s.cfg.Dial(trying, "tcp", server)
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { nc.Close() })
	defer stop()
	deadline, _ := trying.Deadline()
	r := bufio.NewReaderSize(nc, 16<<10)
	c, err := s.establish(nc, r, deadline)
	if err != nil {
		nc.Close()
		return err
	}
	s.serve(c, r)
	return nil
}

// establish begins or continues the session on a new connection, and presents the credentials.
func (s *Session) establish(nc net.Conn, r *bufio.Reader, deadline time.Time) (*conn, error) {
	if err := nc.SetDeadline(deadline); err != nil {
		return nil, err
	}
	s.mu.Lock()
	old, zxid := s.session, s.zxid
	s.mu.Unlock()
	sent := driver.Now()
	session, timeout, err := handshake(nc, r, old, zxid, s.cfg.Timeout)
	if err == ErrExpired {
		s.end(ErrExpired)
	}
	if err == nil {
		err = nc.SetDeadline(time.Time{})
	}
	if err != nil {
		return nil, err
	}
	answered := driver.Now()

	c := &conn{s: s, nc: nc, over: make(chan struct{})}
	s.mu.Lock()
	if s.ended != nil {
		s.mu.Unlock()
		return nil, s.ended
	}
	s.conns++
	c.number = s.conns
	s.session, s.timeout = session, timeout
	s.proof.connected(old.id == 0, sent, answered)
	s.mu.Unlock()
	return c, s.authenticate(nc)
}

// authenticate presents the credentials before all requests. A refusal ends the session.
func (s *Session) authenticate(nc net.Conn) error {
	var e encoder
	for _, a := range s.cfg.Auth {
		start := len(e.b)
		e.int32(0) // the length of the request, set below
		e.int32(xidAuth)
		e.int32(opAuth)
		e.int32(0) // not used
		e.string(a.Scheme)
		e.bytes(a.Data)
		binary.BigEndian.PutUint32(e.b[start:], uint32(len(e.b)-start-4))
	}
	if len(e.b) == 0 {
		return nil
	}
	_, err := nc.Write(e.b)
	return err
}

// serve uses a connection for the session's requests until it ends.
func (s *Session) serve(c *conn, r *bufio.Reader) {
	s.mu.Lock()
	if s.ended == nil {
		s.conn = c
		s.announce()
	}
	s.mu.Unlock()
	if s.cfg.OnConn != nil {
		s.cfg.OnConn(c.number)
	}
	var heartbeats sync.WaitGroup
	heartbeats.Go(func() { s.sendHeartbeats(c) })
	c.close(c.read(r))
	s.removeConn(c)
	c.failPending()
	heartbeats.Wait()
}

// answered handles the answer to a call.
func (s *Session) answered(k *Call, zxid int64, code Error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if zxid > 0 {
		s.zxid = max(s.zxid, zxid)
	}
	// A server may refuse without the leader.
	if throughLeader(k.op) && code == 0 {
		s.proof.answered(k.Sent, s.cfg.Heartbeat)
	}
}
