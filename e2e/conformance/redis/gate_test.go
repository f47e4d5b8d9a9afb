package redis

import (
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/holdfast-go/holdfast/check/servers"
)

// gate is a proxy that delays requests and delivers them later, even if their sender has ended.
type gate struct {
	l  net.Listener
	to string

	mu     sync.Mutex
	closed chan struct{} // closed when requests may pass
	held   bool
	conns  []net.Conn
}

func newGate(t *testing.T, to string) *gate {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := &gate{l: l, to: to, closed: make(chan struct{})}
	close(g.closed)
	var all sync.WaitGroup
	all.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() { g.serve(c) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		g.release()
		g.mu.Lock()
		for _, c := range g.conns {
			_ = c.Close()
		}
		g.mu.Unlock()
		all.Wait()
	})
	return g
}

func (g *gate) Address() string { return g.l.Addr().String() }

func (g *gate) hold() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.held {
		g.held, g.closed = true, make(chan struct{})
	}
}

func (g *gate) release() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.held {
		g.held = false
		close(g.closed)
	}
}

func (g *gate) serve(c net.Conn) {
	s, err := net.Dial("tcp", g.to)
	if err != nil {
		_ = c.Close()
		return
	}
	g.mu.Lock()
	g.conns = append(g.conns, c, s)
	g.mu.Unlock()
	var both sync.WaitGroup
	both.Go(func() { // requests
		buf := make([]byte, 64<<10)
		for {
			n, err := c.Read(buf)
			g.mu.Lock()
			pass := g.closed
			g.mu.Unlock()
			<-pass
			if n > 0 {
				if _, err := s.Write(buf[:n]); err != nil {
					break
				}
			}
			if err != nil {
				break
			}
		}
		_ = s.(*net.TCPConn).CloseWrite()
	})
	both.Go(func() { // answers
		_, _ = io.Copy(c, s)
		_ = c.Close()
	})
	both.Wait()
	_ = s.Close()
}

// calls returns how often the server has executed a command.
func calls(t testing.TB, r *servers.Redis, command string) int {
	t.Helper()
	stats, _ := do(t, r, "INFO", "commandstats").(string)
	for line := range strings.Lines(stats) {
		if rest, ok := strings.CutPrefix(line, "cmdstat_"+command+":calls="); ok {
			n, _, _ := strings.Cut(rest, ",")
			v, err := strconv.Atoi(n)
			if err != nil {
				t.Fatal(err)
			}
			return v
		}
	}
	return 0
}
