//go:build linux || darwin

package servers

import (
	"io"
	"net"
	"sync"
	"time"
)

// Router stands before several servers and leads each new connection to the server
// that is its target then. Established connections stay where they are, as behind a
// name or an address that moves to another server.
type Router struct {
	l     net.Listener
	tasks sync.WaitGroup

	mu     sync.Mutex
	target string
	conns  map[net.Conn]struct{}
	closed bool
}

// NewRouter starts a router on a free port; its first target is HOST:PORT.
func NewRouter(target string) (*Router, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	r := &Router{l: l, target: target, conns: map[net.Conn]struct{}{}}
	r.tasks.Go(r.serve)
	return r, nil
}

// Address is where clients connect.
func (r *Router) Address() string { return r.l.Addr().String() }

// Lead sets the target of new connections.
func (r *Router) Lead(target string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.target = target
}

func (r *Router) serve() {
	for {
		client, err := r.l.Accept()
		if err != nil {
			return
		}
		r.mu.Lock()
		target := r.target
		r.mu.Unlock()
		r.tasks.Go(func() { r.connect(client, target) })
	}
}

// connect passes bytes both ways until one side ends.
func (r *Router) connect(client net.Conn, target string) {
	defer client.Close()
	server, err := net.DialTimeout("tcp", target, 5*time.Second)
	if err != nil {
		return
	}
	defer server.Close()
	if !r.add(client, server) {
		return
	}
	defer r.remove(client, server)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = io.Copy(server, client)
		_ = server.Close()
	}()
	_, _ = io.Copy(client, server)
	_ = client.Close()
	<-done
}

func (r *Router) add(conns ...net.Conn) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return false
	}
	for _, c := range conns {
		r.conns[c] = struct{}{}
	}
	return true
}

func (r *Router) remove(conns ...net.Conn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range conns {
		delete(r.conns, c)
	}
}

// Close ends the router and its connections.
func (r *Router) Close() {
	_ = r.l.Close()
	r.mu.Lock()
	r.closed = true
	for c := range r.conns {
		_ = c.Close()
	}
	r.mu.Unlock()
	r.tasks.Wait()
}
