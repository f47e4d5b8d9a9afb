//go:build linux || darwin

package servers

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"
)

// Proxy disturbs the traffic between clients and a server. It cuts connections, drops
// answers, loses single ones, and delays or holds back requests. It has a port of its own.
//
// Close ends every goroutine of a proxy. An open proxy has one goroutine from NewProxy on,
// and some for each connection, which end with the connection. So a leak check of a client,
// begun after NewProxy, finds none of them.
type Proxy struct {
	address string
	tasks   sync.WaitGroup

	mu           sync.Mutex
	listens      *sync.Cond // signals changes of listener and closed
	listener     net.Listener
	upstreams    []string // in turn
	links        map[*link]struct{}
	closed       bool
	silent       bool          // requests are dropped
	dropsAnswers bool          // answers are dropped
	delay        time.Duration // the delay of answers
	delaySent    time.Duration // the delay of requests
	// lose counts down to the request whose answer is lost. 0 means that no answer is lost.
	lose     int
	left     int // the number of connections that Hold has ended for their clients
	accepted int
}

// link is a connection from a client, with the proxy's connection to the server.
type link struct {
	p              *Proxy
	client, server net.Conn

	// p.mu guards the following fields. state signals their changes and those of the
	// proxy's delay.
	state    *sync.Cond
	requests []piece
	answers  []piece
	mute     bool        // all data is dropped, and the ends of the connection too
	dropped  bool        // the proxy dropped data, so client and server no longer agree
	lost     bool        // the next answer is lost, and the connection ends
	held     bool        // requests are held back
	gone     bool        // the client has ended a connection that was held, or has lost it
	late     *time.Timer // ends a connection for the server, after what was held was answered
	ended    bool
}

// piece is data that the client or the server has sent in one piece. A piece without data marks
// the end of the connection.
type piece struct {
	data []byte
	read time.Time
}

// NewProxy starts a proxy for an address, HOST:PORT.
func NewProxy(upstream string) (*Proxy, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("servers: a proxy before %s: %w", upstream, err)
	}
	p := &Proxy{address: l.Addr().String(), listener: l, upstreams: []string{upstream}, links: map[*link]struct{}{}}
	p.listens = sync.NewCond(&p.mu)
	p.tasks.Go(p.serve)
	return p, nil
}

// Address returns the address for clients. It does not change.
func (p *Proxy) Address() string { return p.address }

// Accepted returns how many connections clients have opened.
func (p *Proxy) Accepted() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.accepted
}

// serve accepts connections whenever there is a listener. It returns after Close.
func (p *Proxy) serve() {
	for {
		p.mu.Lock()
		for p.listener == nil && !p.closed {
			p.listens.Wait()
		}
		l := p.listener
		closed := p.closed
		p.mu.Unlock()
		if closed {
			return
		}
		c, err := l.Accept()
		if err != nil {
			p.mu.Lock()
			if p.listener == l {
				p.listener = nil
			}
			p.mu.Unlock()
			continue
		}
		p.tasks.Go(func() { p.connect(c, l) })
	}
}

// connect connects an accepted connection to the server.
func (p *Proxy) connect(c net.Conn, l net.Listener) {
	p.mu.Lock()
	p.accepted++
	upstream := p.upstreams[0]
	p.upstreams = append(slices.Clone(p.upstreams[1:]), upstream)
	p.mu.Unlock()
	s, err := net.DialTimeout("tcp", upstream, 5*time.Second)
	if err != nil {
		c.Close()
		return
	}
	k := &link{p: p, client: c, server: s, state: sync.NewCond(&p.mu)}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || p.listener != l {
		c.Close() // the proxy was cut or redirected meanwhile
		s.Close()
		return
	}
	p.links[k] = struct{}{}
	p.tasks.Go(k.readRequests)
	p.tasks.Go(func() { k.write(k.server, &k.requests, &p.delaySent) })
	p.tasks.Go(k.readAnswers)
	p.tasks.Go(func() { k.write(k.client, &k.answers, &p.delay) })
}

func (k *link) readRequests() {
	buf := make([]byte, 64<<10)
	for {
		n, err := k.client.Read(buf)
		now := time.Now()
		k.p.mu.Lock()
		if n > 0 && k.passes() {
			k.requests = append(k.requests, piece{append([]byte(nil), buf[:n]...), now})
			if k.held && len(k.requests) == 1 {
				time.AfterFunc(holdTime, k.leave)
			}
		}
		switch {
		case err == nil || k.mute:
		case k.held:
			k.gone = true
		case !k.gone:
			k.requests = append(k.requests, piece{nil, now})
		}
		k.state.Broadcast()
		k.p.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// passes reports whether a request passes, and records whether its answer is lost. The caller holds p.mu.
func (k *link) passes() bool {
	p := k.p
	if p.silent || k.mute {
		k.dropped = true
		return false
	}
	if p.lose > 0 {
		if p.lose--; p.lose == 0 {
			k.lost = true
			k.answers = nil
		}
	}
	return true
}

func (k *link) readAnswers() {
	buf := make([]byte, 64<<10)
	for {
		n, err := k.server.Read(buf)
		now := time.Now()
		k.p.mu.Lock()
		switch {
		case n == 0:
		case k.lost:
			err = errors.New("the answer is lost")
		case k.gone:
			if k.late != nil {
				k.late.Reset(holdTime)
			}
		case k.p.dropsAnswers || k.mute:
			k.dropped = true
		default:
			k.answers = append(k.answers, piece{append([]byte(nil), buf[:n]...), now})
		}
		lost := (k.lost || k.gone) && err != nil
		if err != nil && !lost && !k.mute {
			k.answers = append(k.answers, piece{nil, now})
		}
		k.state.Broadcast()
		k.p.mu.Unlock()
		if lost {
			k.end()
		}
		if err != nil {
			return
		}
	}
}

// write forwards each piece of one direction when it is due.
func (k *link) write(to net.Conn, pieces *[]piece, delay *time.Duration) {
	p := k.p
	p.mu.Lock()
	defer p.mu.Unlock()
	for !k.ended {
		if len(*pieces) == 0 || k.held && to == k.server {
			k.state.Wait()
			continue
		}
		a := (*pieces)[0]
		if wait := *delay - time.Since(a.read); wait > 0 {
			// The timer ends the Wait when the delay is over. Any other change ends it,
			// too.
			t := time.AfterFunc(wait, func() {
				p.mu.Lock()
				defer p.mu.Unlock()
				k.state.Broadcast()
			})
			k.state.Wait()
			t.Stop()
			continue
		}
		*pieces = (*pieces)[1:]
		p.mu.Unlock()
		if a.data == nil {
			k.end()
		} else if _, err := to.Write(a.data); err != nil && to == k.client {
			k.end()
		}
		p.mu.Lock()
	}
}

// holdTime is how long a client waits for the answer to a request that is held back, until its
// connection ends. It is also how long a server may pause between its answers to such requests.
const holdTime = 50 * time.Millisecond

// leave ends a held connection for its client. The server does not notice that.
func (k *link) leave() {
	k.p.mu.Lock()
	defer k.p.mu.Unlock()
	if k.held && !k.ended {
		k.gone = true
		k.p.left++
		k.client.Close()
	}
}

func (k *link) end() {
	k.p.mu.Lock()
	defer k.p.mu.Unlock()
	k.endLocked()
}

func (k *link) endLocked() {
	if k.ended {
		return
	}
	k.ended = true
	delete(k.p.links, k)
	k.client.Close()
	k.server.Close()
	if k.late != nil {
		k.late.Stop()
	}
	k.state.Broadcast()
}

func (p *Proxy) change(f func() error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	err := f()
	p.listens.Signal()
	for k := range p.links {
		k.state.Broadcast()
	}
	return err
}

// refuse refuses new connections. The caller holds p.mu.
func (p *Proxy) refuse() {
	if p.listener != nil {
		p.listener.Close()
		p.listener = nil
	}
}

// cut ends every connection and refuses new ones. The caller holds p.mu.
func (p *Proxy) cut() {
	p.refuse()
	for k := range p.links {
		k.endLocked()
	}
}

// listen accepts connections again. The caller holds p.mu.
func (p *Proxy) listen() error {
	if p.listener != nil || p.closed {
		return nil
	}
	// The kernel may have given the port to a connection that is about to end, so listen
	// tries again.
	var l net.Listener
	var err error
	for range 100 {
		if l, err = net.Listen("tcp", p.address); err == nil {
			p.listener = l
			return nil
		}
		time.Sleep(20 * time.Millisecond)
	}
	return fmt.Errorf("servers: a proxy before %s: %w", p.upstreams[0], err)
}

// Cut ends every connection and refuses new ones, until Heal.
func (p *Proxy) Cut() {
	_ = p.change(func() error { p.cut(); return nil })
}

// Refuse refuses new connections, until Heal. The present ones remain.
func (p *Proxy) Refuse() {
	_ = p.change(func() error { p.refuse(); return nil })
}

// DropAnswers forwards requests and drops every answer, until Heal.
func (p *Proxy) DropAnswers() error {
	return p.change(func() error { p.dropsAnswers = true; return nil })
}

// Silence drops all data in both directions and keeps connections open, like an unplugged
// cable, until Heal.
func (p *Proxy) Silence() error {
	return p.change(func() error { p.dropsAnswers, p.silent = true, true; return nil })
}

// Mute drops all data of the present connections in both directions and keeps them open, until Heal. The one side does
// not notice that the other one has ended its connection. New connections are not disturbed.
func (p *Proxy) Mute() {
	_ = p.change(func() error {
		for k := range p.links {
			k.mute = true
		}
		return nil
	})
}

// Delay delays every answer by d after the server has sent it, until Heal. A new Delay
// replaces the old one, and 0 ends it.
func (p *Proxy) Delay(d time.Duration) error {
	return p.change(func() error { p.delay = max(d, 0); return nil })
}

// DelayRequests delays every request by d after its client has sent it, until Heal. A new
// DelayRequests replaces the old one, and 0 ends it.
func (p *Proxy) DelayRequests(d time.Duration) error {
	return p.change(func() error { p.delaySent = max(d, 0); return nil })
}

// Hold holds back what clients send over their present connections, until Deliver. 50 ms after its
// first request was held back, such a connection ends for its client. The server does not notice that.
// New connections are not disturbed.
func (p *Proxy) Hold() {
	_ = p.change(func() error {
		p.left = 0
		for k := range p.links {
			k.held = true
		}
		return nil
	})
}

// Held returns the number of connections that have ended for their clients since the last Hold.
func (p *Proxy) Held() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.left
}

// Deliver delivers what Hold has held back. A connection whose client has lost it ends 50 ms after
// the server's last answer. Deliver returns when all of them have ended, or after timeout, which ends them.
func (p *Proxy) Deliver(timeout time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	expired := false
	t := time.AfterFunc(timeout, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		expired = true
		for k := range p.links {
			k.state.Broadcast()
		}
	})
	defer t.Stop()
	var late []*link
	for k := range p.links {
		if !k.held {
			continue
		}
		k.held = false
		k.state.Broadcast()
		if k.gone && len(k.requests) > 0 {
			k.late = time.AfterFunc(timeout, k.end)
			late = append(late, k)
		} else if k.gone {
			k.endLocked()
		}
	}
	for _, k := range late {
		for !k.ended && !expired {
			k.state.Wait()
		}
		k.endLocked()
	}
}

// LoseAnswer lets that many requests, of any connection, pass with their answers. The next
// request reaches the server, but the proxy drops its answer and ends its connection. A
// request is data that arrives in one piece.
func (p *Proxy) LoseAnswer(after int) error {
	return p.change(func() error { p.lose = after + 1; return nil })
}

// Heal ends all disturbances. It closes connections whose data was dropped, because their
// client and server no longer agree on what was sent.
func (p *Proxy) Heal() error {
	return p.change(func() error {
		p.silent, p.dropsAnswers, p.delay, p.delaySent, p.lose = false, false, 0, 0, 0
		for k := range p.links {
			if k.dropped || k.lost || k.held || k.mute {
				k.endLocked()
			}
		}
		return p.listen()
	})
}

// Redirect ends every connection and connects new ones to another address. A proxy that is
// cut stays cut until Heal.
func (p *Proxy) Redirect(upstream string) error {
	return p.change(func() error {
		wasCut := p.listener == nil
		p.cut()
		p.upstreams = []string{upstream}
		if wasCut {
			return nil
		}
		return p.listen()
	})
}

// Lead connects new connections to another address. Established connections keep their
// server, as when a name or an address moves to another server. With several addresses the proxy
// is a balancer: it uses them in turn.
func (p *Proxy) Lead(upstream string, others ...string) {
	_ = p.change(func() error { p.upstreams = append([]string{upstream}, others...); return nil })
}

// Close ends the proxy, its connections and its goroutines.
func (p *Proxy) Close() {
	_ = p.change(func() error { p.closed = true; p.cut(); return nil })
	p.tasks.Wait()
}
