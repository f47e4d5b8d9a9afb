//go:build linux || darwin

package servers_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/must"
	"github.com/holdfast-go/holdfast/internal/servers"
)

// TestMain runs the tests or, in a child process, the server. The server counts its starts
// in a file, and answers each connection with the count.
func TestMain(m *testing.M) {
	address := os.Getenv("SERVERS_TEST_ADDRESS")
	if address == "" {
		os.Exit(m.Run())
	}
	if os.Getenv("SERVERS_TEST_FAIL") != "" {
		fmt.Println("no, not today")
		os.Exit(3)
	}
	if os.Getenv("SERVERS_TEST_DEAF") != "" {
		signal.Ignore(syscall.SIGTERM)
	}
	starts, _ := os.ReadFile("starts")
	starts = append(starts, 'x')
	if err := os.WriteFile("starts", starts, 0o600); err != nil {
		panic(err)
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		panic(err)
	}
	fmt.Println("serving")
	for {
		c, err := l.Accept()
		if err != nil {
			panic(err)
		}
		fmt.Fprintf(c, "%d\n", len(starts))
		c.Close()
	}
}

func start(t *testing.T, env ...string) (s *servers.Server, address string) {
	t.Helper()
	s, address, err := tryStart(t, env...)
	must.Succeed(t, err)
	t.Cleanup(s.Kill)
	return s, address
}

func tryStart(t *testing.T, env ...string) (*servers.Server, string, error) {
	t.Helper()
	port, err := servers.FreePort()
	must.Succeed(t, err)
	address := fmt.Sprintf("127.0.0.1:%d", port)
	s, err := servers.Start(t.Context(), servers.Config{
		Name: "counter", Command: []string{os.Args[0]}, Dir: t.TempDir(), Ready: servers.Dial(address),
		Env: append(env, "SERVERS_TEST_ADDRESS="+address), Timeout: 5 * time.Second,
	})
	return s, address, err
}

func exchange(address string, within time.Duration) (string, error) {
	c, err := net.DialTimeout("tcp", address, within)
	if err != nil {
		return "", err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(within)); err != nil {
		return "", err
	}
	line, err := bufio.NewReader(c).ReadString('\n')
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return strings.TrimSpace(line), err
}

func want(t *testing.T, address, answer string) {
	t.Helper()
	if got, err := exchange(address, 5*time.Second); err != nil || got != answer {
		t.Errorf("it answers %q (%v), want %q", got, err, answer)
	}
}

func TestServerLifecycle(t *testing.T) {
	s, address := start(t)
	want(t, address, "1")
	first := s.PID()

	must.Succeed(t, s.Restart(t.Context()))
	want(t, address, "2") // the restarted server still has its data
	if s.PID() == first || s.PID() == 0 {
		t.Errorf("pid %d after %d", s.PID(), first)
	}
	must.Succeed(t, s.RestartEmpty(t.Context()))
	want(t, address, "1")

	must.Succeed(t, s.Pause())
	if got, err := exchange(address, 300*time.Millisecond); err == nil {
		t.Errorf("a paused server answers %q", got)
	}
	must.Succeed(t, s.Cont())
	want(t, address, "1")

	done := s.Done()
	s.Kill()
	<-done
	if _, err := exchange(address, time.Second); err == nil {
		t.Error("a killed server answers")
	}
	if s.PID() != 0 {
		t.Errorf("a killed server has pid %d", s.PID())
	}
	for what, f := range map[string]func() error{"Pause": s.Pause, "Cont": s.Cont} {
		if err := f(); !errors.Is(err, servers.ErrNotRunning) {
			t.Errorf("%s after Kill: %v", what, err)
		}
	}
	s.Kill() // a second Kill does nothing
	if got := strings.Count(s.Output(), "serving"); got != 3 {
		t.Errorf("the output is of %d starts, want 3: %q", got, s.Output())
	}
}

func TestStopEndsPausedServer(t *testing.T) {
	s, address := start(t)
	must.Succeed(t, s.Pause())
	// Stop also ends a paused server.
	must.Succeed(t, s.Stop())
	if _, err := exchange(address, time.Second); err == nil {
		t.Error("a stopped server answers")
	}
	if err := s.Stop(); err != nil {
		t.Errorf("Stop of one that does not run: %v", err)
	}
}

func TestStopKillsServerThatIgnoresSIGTERM(t *testing.T) {
	s, address := start(t, "SERVERS_TEST_DEAF=1")
	if err := s.Stop(); err == nil || !strings.Contains(err.Error(), "was killed") {
		t.Errorf("Stop of a server that ignores SIGTERM: %v", err)
	}
	if _, err := exchange(address, time.Second); err == nil {
		t.Error("a stopped server answers")
	}
}

func TestStartReportsFailure(t *testing.T) {
	_, _, err := tryStart(t, "SERVERS_TEST_FAIL=1")
	if err == nil || !strings.Contains(err.Error(), "exit status 3") || !strings.Contains(err.Error(), "not today") {
		t.Errorf("a server that ends at once: %v", err)
	}
	if _, err := servers.Start(t.Context(), servers.Config{Command: []string{"/does/not/exist"}, Dir: t.TempDir(), Ready: servers.Dial("127.0.0.1:1")}); err == nil {
		t.Error("a missing program was started")
	}
	if _, err := servers.Start(t.Context(), servers.Config{}); err == nil {
		t.Error("a Config without a command was started")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := servers.Start(ctx, servers.Config{
		Command: []string{os.Args[0]}, Env: []string{"SERVERS_TEST_ADDRESS=127.0.0.1:0"}, Dir: t.TempDir(),
		Ready: func(context.Context) error { return errors.New("never") },
	}); !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled Start: %v", err)
	}
}

// Without the reservation, five of the ports are expected to be drawn twice.
func TestFreePortIsReturnedOnce(t *testing.T) {
	drawn := map[int]bool{}
	for range 500 {
		port, err := servers.FreePort()
		must.Succeed(t, err)
		if drawn[port] {
			t.Fatalf("port %d was returned twice", port)
		}
		drawn[port] = true
	}
}
