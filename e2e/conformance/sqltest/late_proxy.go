package sqltest

import (
	"io"
	"net"
	"sync"
	"time"
)

// lateProxy is a proxy that can hold what its clients have sent, and deliver it long after they
// have gone, as a bad network may.
type lateProxy struct {
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
	gone           bool // the client has ended the connection
}

// newLateProxy starts a proxy for an address, HOST:PORT.
func newLateProxy(upstream string) (*lateProxy, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &lateProxy{l: l, upstream: upstream, conns: map[*lateConn]struct{}{}}
	p.tasks.Go(p.serve)
	return p, nil
}

// Address returns the address for clients.
func (p *lateProxy) Address() string { return p.l.Addr().String() }

func (p *lateProxy) serve() {
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

// Hold holds what clients send over the present connections. New connections pass.
func (p *lateProxy) Hold() { p.each(func(c *lateConn) { c.held = true }) }

// Refuse refuses new connections.
func (p *lateProxy) Refuse() { p.l.Close() }

// Deliver delivers what was held.
func (p *lateProxy) Deliver() {
	p.each(func(c *lateConn) {
		for _, b := range c.kept {
			_, _ = c.server.Write(b)
		}
		c.held, c.kept = false, nil
		if c.gone {
			if t, ok := c.server.(*net.TCPConn); ok {
				_ = t.CloseWrite() // the server answers, and then notices the end
			}
		}
	})
}

func (p *lateProxy) each(f func(*lateConn)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		c.mu.Lock()
		f(c)
		c.mu.Unlock()
	}
}

// Close ends the proxy and its connections.
func (p *lateProxy) Close() {
	p.l.Close()
	p.each(func(c *lateConn) {
		c.client.Close()
		c.server.Close()
	})
	p.tasks.Wait()
}
