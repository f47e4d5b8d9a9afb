//go:build linux || darwin

package servers

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"time"
)

// Proxy disturbs the traffic between clients and a server. It cuts connections, drops
// answers, delays them, and loses single ones. It has a port of its own.
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
	upstream     string
	links        map[*link]struct{}
	closed       bool
	silent       bool          // requests are dropped
	dropsAnswers bool          // answers are dropped
	delay        time.Duration // the delay of answers
	// lose counts down to the request whose answer is lost. 0 means that no answer is lost.
	lose int
}

// link is a connection from a client, with the proxy's connection to the server.
type link struct {
	p              *Proxy
	client, server net.Conn

	// p.mu guards the following fields. state signals their changes and those of the
	// proxy's delay.
	state   *sync.Cond
	answers []answer
	dropped bool // the proxy dropped data, so client and server no longer agree
	lost    bool // the next answer is lost, and the connection ends
	ended   bool
}

// answer is data that the server has sent in one piece. An answer without data marks the
// end of the connection.
type answer struct {
	data []byte
	read time.Time
}

// NewProxy starts a proxy for an address, HOST:PORT.
func NewProxy(upstream string) (*Proxy, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("servers: a proxy before %s: %w", upstream, err)
	}
	p := &Proxy{address: l.Addr().String(), listener: l, upstream: upstream, links: map[*link]struct{}{}}
	p.listens = sync.NewCond(&p.mu)
	p.tasks.Go(p.serve)
	return p, nil
}

// Address returns the address for clients. It does not change.
func (p *Proxy) Address() string { return p.address }

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
	upstream := p.upstream
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
	p.tasks.Go(k.forwardRequests)
	p.tasks.Go(k.readAnswers)
	p.tasks.Go(k.writeAnswers)
}

func (k *link) forwardRequests() {
	buf := make([]byte, 64<<10)
	for {
		n, err := k.client.Read(buf)
		if n > 0 && k.passes() {
			_, _ = k.server.Write(buf[:n])
		}
		if err != nil {
			k.end()
			return
		}
	}
}

// passes reports whether a request passes, and records whether its answer is lost.
func (k *link) passes() bool {
	p := k.p
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.silent {
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
		case k.p.dropsAnswers:
			k.dropped = true
		default:
			k.answers = append(k.answers, answer{append([]byte(nil), buf[:n]...), now})
		}
		lost := k.lost && err != nil
		if err != nil && !lost {
			k.answers = append(k.answers, answer{nil, now})
		}
		k.state.Signal()
		k.p.mu.Unlock()
		if lost {
			k.end()
		}
		if err != nil {
			return
		}
	}
}

// writeAnswers forwards each answer when it is due.
func (k *link) writeAnswers() {
	p := k.p
	p.mu.Lock()
	defer p.mu.Unlock()
	for !k.ended {
		if len(k.answers) == 0 {
			k.state.Wait()
			continue
		}
		a := k.answers[0]
		if wait := p.delay - time.Since(a.read); wait > 0 {
			// The timer ends the Wait when the delay is over. Any other change ends it,
			// too.
			t := time.AfterFunc(wait, func() {
				p.mu.Lock()
				defer p.mu.Unlock()
				k.state.Signal()
			})
			k.state.Wait()
			t.Stop()
			continue
		}
		k.answers = k.answers[1:]
		p.mu.Unlock()
		if a.data == nil {
			k.end()
		} else if _, err := k.client.Write(a.data); err != nil {
			k.end()
		}
		p.mu.Lock()
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
	k.state.Signal()
}

func (p *Proxy) change(f func() error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	err := f()
	p.listens.Signal()
	for k := range p.links {
		k.state.Signal()
	}
	return err
}

// cut ends every connection and refuses new ones. The caller holds p.mu.
func (p *Proxy) cut() {
	if p.listener != nil {
		p.listener.Close()
		p.listener = nil
	}
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
	return fmt.Errorf("servers: a proxy before %s: %w", p.upstream, err)
}

// Cut ends every connection and refuses new ones, until Heal.
func (p *Proxy) Cut() {
	_ = p.change(func() error { p.cut(); return nil })
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

// Delay delays every answer by d after the server has sent it, until Heal. A new Delay
// replaces the old one, and 0 ends it.
func (p *Proxy) Delay(d time.Duration) error {
	return p.change(func() error { p.delay = max(d, 0); return nil })
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
		p.silent, p.dropsAnswers, p.delay, p.lose = false, false, 0, 0
		for k := range p.links {
			if k.dropped || k.lost {
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
		p.upstream = upstream
		if wasCut {
			return nil
		}
		return p.listen()
	})
}

// Lead connects new connections to another address. Established connections keep their
// server, as when a name or an address moves to another server.
func (p *Proxy) Lead(upstream string) {
	_ = p.change(func() error { p.upstream = upstream; return nil })
}

// Close ends the proxy, its connections and its goroutines.
func (p *Proxy) Close() {
	_ = p.change(func() error { p.closed = true; p.cut(); return nil })
	p.tasks.Wait()
}
