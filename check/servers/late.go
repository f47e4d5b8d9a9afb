//go:build linux || darwin

package servers

import (
	"io"
	"net"
	"sync"
	"time"
)

// LateProxy stands before a server and can keep what its clients have sent, to let
// it arrive long after they have gone: what a network does at its worst.
type LateProxy struct {
	l        net.Listener
	upstream string
	tasks    sync.WaitGroup

	mu    sync.Mutex
	conns map[*lateConn]struct{}
}

type lateConn struct {
	client, server net.Conn
	mu             sync.Mutex
	held           bool
	kept           [][]byte
	gone           bool // the client has
}

// NewLateProxy starts one before an address, HOST:PORT.
func NewLateProxy(upstream string) (*LateProxy, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &LateProxy{l: l, upstream: upstream, conns: map[*lateConn]struct{}{}}
	p.tasks.Go(p.serve)
	return p, nil
}

// Address is where clients connect instead.
func (p *LateProxy) Address() string { return p.l.Addr().String() }

func (p *LateProxy) serve() {
	for {
		c, err := p.l.Accept()
		if err != nil {
			return
		}
		s, err := net.DialTimeout("tcp", p.upstream, 5*time.Second)
		if err != nil {
			c.Close()
			continue
		}
		lc := &lateConn{client: c, server: s}
		p.mu.Lock()
		p.conns[lc] = struct{}{}
		p.mu.Unlock()
		p.tasks.Go(func() {
			_, _ = io.Copy(c, s)
			c.Close()
		})
		p.tasks.Go(lc.forward)
	}
}

func (c *lateConn) forward() {
	buf := make([]byte, 64<<10)
	for {
		n, err := c.client.Read(buf)
		c.mu.Lock()
		if c.held {
			c.kept = append(c.kept, append([]byte(nil), buf[:n]...))
		} else if n > 0 {
			_, _ = c.server.Write(buf[:n])
		}
		if err != nil {
			if c.gone = true; !c.held {
				c.server.Close()
			}
			c.mu.Unlock()
			return
		}
		c.mu.Unlock()
	}
}

// Hold keeps what comes over the connections that are there now. New ones pass.
func (p *LateProxy) Hold() { p.each(func(c *lateConn) { c.held = true }) }

// Deliver lets what was kept arrive.
func (p *LateProxy) Deliver() {
	p.each(func(c *lateConn) {
		for _, b := range c.kept {
			_, _ = c.server.Write(b)
		}
		c.held, c.kept = false, nil
		if c.gone {
			if t, ok := c.server.(*net.TCPConn); ok {
				_ = t.CloseWrite() // the server answers to nobody, and then sees the end
			}
		}
	})
}

func (p *LateProxy) each(f func(*lateConn)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		c.mu.Lock()
		f(c)
		c.mu.Unlock()
	}
}

// Close ends the proxy and its connections.
func (p *LateProxy) Close() {
	p.l.Close()
	p.each(func(c *lateConn) {
		c.client.Close()
		c.server.Close()
	})
	p.tasks.Wait()
}
