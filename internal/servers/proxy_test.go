//go:build linux || darwin

package servers_test

import (
	"bufio"
	"errors"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/holdfast-go/holdfast/internal/must"
	"github.com/holdfast-go/holdfast/internal/servers"
)

// lineServer starts a server that answers each line with the result of answer.
func lineServer(t *testing.T, answer func(line string) string) (address string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must.Succeed(t, err)
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				for s := bufio.NewScanner(c); s.Scan(); {
					if _, err := c.Write([]byte(answer(s.Text()) + "\n")); err != nil {
						return
					}
				}
			}()
		}
	}()
	return l.Addr().String()
}

// upper starts a server that answers each line in upper case. The server also sends each
// line that it has read to a channel.
func upper(t *testing.T) (address string, read <-chan string) {
	t.Helper()
	lines := make(chan string, 100)
	return lineServer(t, func(line string) string {
		lines <- line
		return strings.ToUpper(line)
	}), lines
}

// requestLine sends a line and reads the answer. It returns an error if there is no answer within
// the timeout.
func requestLine(t *testing.T, c net.Conn, line string, timeout time.Duration) (string, error) {
	t.Helper()
	if _, err := c.Write([]byte(line + "\n")); err != nil {
		return "", err
	}
	must.Succeed(t, c.SetReadDeadline(time.Now().Add(timeout)))
	return bufio.NewReader(c).ReadString('\n')
}

// dial connects to a proxy.
func dial(t *testing.T, p *servers.Proxy) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", p.Address())
	must.Succeed(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

// TestProxyInjectsFaults injects each fault into the connections, and requires that the proxy works
// again when the fault has ended.
func TestProxyInjectsFaults(t *testing.T) {
	address, read := upper(t)
	p, err := servers.NewProxy(address)
	must.Succeed(t, err)
	defer p.Close()
	const timeout = 20 * time.Second
	requireWorks := func() {
		t.Helper()
		if got, err := requestLine(t, dial(t, p), "hello", timeout); got != "HELLO\n" {
			t.Fatalf("%q, %v", got, err)
		}
		if got := <-read; got != "hello" {
			t.Fatalf("the server read %q", got)
		}
	}
	requireWorks()

	// With dropped answers, the server reads the request and the client receives nothing.
	c := dial(t, p)
	must.Succeed(t, p.DropAnswers())
	if got, err := requestLine(t, c, "one", 50*time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("%q, %v", got, err)
	}
	if got := <-read; got != "one" {
		t.Errorf("the server read %q", got)
	}
	must.Succeed(t, p.Heal())
	requireWorks()

	// With silence, neither end receives anything.
	c = dial(t, p)
	must.Succeed(t, p.Silence())
	if got, err := requestLine(t, c, "two", 50*time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("%q, %v", got, err)
	}
	if len(read) != 0 {
		t.Errorf("the server read %q", <-read)
	}
	must.Succeed(t, p.Heal())
	requireWorks()

	// A proxy that mutes its connections keeps them open, and does not disturb new ones.
	c = dial(t, p)
	if got, err := requestLine(t, c, "one", timeout); got != "ONE\n" || <-read != "one" {
		t.Fatalf("%q, %v", got, err) // the server has accepted it
	}
	p.Mute()
	requireWorks()
	if got, err := requestLine(t, c, "two", 50*time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("%q, %v", got, err)
	}
	must.Succeed(t, p.Heal())

	// A proxy that refuses connections keeps the present ones.
	c = dial(t, p)
	if got, err := requestLine(t, c, "two", timeout); got != "TWO\n" || <-read != "two" {
		t.Fatalf("%q, %v", got, err) // the server has accepted it
	}
	p.Refuse()
	if refused, err := net.Dial("tcp", p.Address()); err == nil {
		refused.Close()
		t.Error("a proxy that refuses connections has accepted one")
	}
	if got, err := requestLine(t, c, "three", timeout); got != "THREE\n" || <-read != "three" {
		t.Errorf("%q, %v", got, err)
	}
	must.Succeed(t, p.Heal())
	requireWorks()

	// A delay delays the answer.
	must.Succeed(t, p.Delay(100*time.Millisecond))
	began := time.Now()
	requireWorks()
	if took := time.Since(began); took < 100*time.Millisecond {
		t.Errorf("the answer came after %s, before the delay had passed", took)
	}
	must.Succeed(t, p.Heal())

	// A second delay replaces the first. A delay of 0 ends it.
	for _, d := range []time.Duration{time.Hour, 50 * time.Millisecond} {
		must.Succeed(t, p.Delay(d))
	}
	began = time.Now()
	requireWorks()
	if took := time.Since(began); took < 50*time.Millisecond {
		t.Errorf("the answer came after %s, before the delay had passed", took)
	}
	c = dial(t, p)
	must.Succeed(t, p.Delay(time.Hour))
	if got, err := requestLine(t, c, "late", 50*time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("%q, %v", got, err)
	}
	must.Succeed(t, p.Delay(0))
	must.Succeed(t, c.SetReadDeadline(time.Now().Add(timeout)))
	if got, err := bufio.NewReader(c).ReadString('\n'); got != "LATE\n" {
		t.Errorf("the answer after the end of the delay is %q, %v", got, err)
	}
	<-read

	// With one lost answer, the server reads the request, and the connection ends. Other
	// connections continue.
	c, other := dial(t, p), dial(t, p)
	must.Succeed(t, p.LoseAnswer(1))
	if got, err := requestLine(t, c, "passes", timeout); got != "PASSES\n" {
		t.Errorf("%q, %v", got, err)
	}
	if got, err := requestLine(t, c, "lost", timeout); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("%q, %v", got, err)
	}
	if got, err := requestLine(t, other, "after", timeout); got != "AFTER\n" {
		t.Errorf("%q, %v", got, err)
	}
	for _, want := range []string{"passes", "lost", "after"} {
		if got := <-read; got != want {
			t.Errorf("the server read %q, want %q", got, want)
		}
	}
	requireWorks()

	// A cut ends the connection and refuses a new one.
	c = dial(t, p)
	p.Cut()
	if got, err := requestLine(t, c, "three", timeout); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("%q, %v", got, err)
	}
	if c, err := net.Dial("tcp", p.Address()); err == nil {
		c.Close()
		t.Error("a cut proxy accepts connections")
	}
	must.Succeed(t, p.Heal())
	requireWorks()
}

// TestProxyDeliversLate: a client loses its connection with a request that is held back. New connections
// pass, and the server reads the request when it is delivered.
func TestProxyDeliversLate(t *testing.T) {
	address, read := upper(t)
	p, err := servers.NewProxy(address)
	must.Succeed(t, err)
	defer p.Close()
	const timeout = 20 * time.Second
	served := func() net.Conn {
		t.Helper()
		c := dial(t, p)
		if got, err := requestLine(t, c, "hello", timeout); got != "HELLO\n" || <-read != "hello" {
			t.Fatalf("%q, %v", got, err)
		}
		return c
	}
	c := served()
	p.Hold()
	if got, err := requestLine(t, c, "late", timeout); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a request that is held back: %q, %v", got, err)
	}
	served()
	if n := p.Held(); n != 1 || len(read) != 0 {
		t.Errorf("%d connections are held, and the server has read %d requests", n, len(read))
	}
	p.Deliver(timeout)
	if got := <-read; got != "late" {
		t.Errorf("the server read %q", got)
	}

	// A delayed request reaches the server when the delay ends.
	c = served()
	must.Succeed(t, p.DelayRequests(time.Hour))
	if got, err := requestLine(t, c, "delayed", 50*time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) || len(read) != 0 {
		t.Errorf("%q, %v", got, err)
	}
	must.Succeed(t, p.DelayRequests(0))
	if got := <-read; got != "delayed" {
		t.Errorf("the server read %q", got)
	}
}

// TestProxyLeavesNoGoroutine requires that a leak check finds no goroutine of the proxy's
// connections after they have ended. That holds also if the proxy was cut, healed and
// redirected. After Close the check finds nothing of the proxy.
func TestProxyLeavesNoGoroutine(t *testing.T) {
	address, _ := upper(t)
	before := goleak.IgnoreCurrent() // ignores goroutines of the server and of other tests
	p, err := servers.NewProxy(address)
	must.Succeed(t, err)
	open := goleak.IgnoreCurrent()
	use := func() {
		t.Helper()
		c, err := net.Dial("tcp", p.Address())
		must.Succeed(t, err)
		defer c.Close()
		if got, err := requestLine(t, c, "x", time.Minute); got != "X\n" {
			t.Fatalf("%q, %v", got, err)
		}
	}
	use()
	p.Cut()
	must.Succeed(t, p.Heal())
	use()
	must.Succeed(t, p.Redirect(address))
	use()
	ofServer := goleak.IgnoreAnyFunction("github.com/holdfast-go/holdfast/internal/servers_test.lineServer.func2.1")
	must.Report(t, goleak.Find(open, ofServer))
	p.Close()
	must.Report(t, goleak.Find(before, ofServer))
}
