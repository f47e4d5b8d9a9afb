//go:build linux || darwin

// Package servers runs real servers as child processes, for tests and for the faults of a
// check. They use free ports and directories of their own. The package can stop, kill,
// pause and restart them, with or without their data.
//
// A server has all its files in its Dir. It is a process group, so that its helpers end
// with it. If this process ends without ending its servers, because of a SIGKILL or a
// panic, a watcher process kills them.
package servers

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Config configures a server.
type Config struct {
	// Name is the name in messages.
	Name string
	// Command starts the server, in Dir.
	Command []string
	Env     []string
	// Credential is the server's user. Nil selects this process's user.
	Credential *syscall.Credential
	// Dir is the server's directory. It is created if it is missing.
	Dir string
	// Ready returns nil when the server serves. Start calls it again until then, each time
	// with a timeout of a second.
	Ready func(ctx context.Context) error
	// Timeout limits how long Start waits for Ready, and how long Stop waits for the
	// server's end. Default 30 s.
	Timeout time.Duration
	// Disk gives the server a Disk. If this machine has none, the error of Start matches
	// ErrNoDisk.
	Disk bool
}

// Server is a child process.
type Server struct {
	cfg   Config
	clock string   // the path of the file that SetClock writes, after FakeClock
	env   []string // before FakeClock
	disk  *Disk    // nil without Config.Disk

	// mu admits one start or end at a time.
	mu     sync.Mutex
	cmd    *exec.Cmd
	done   chan struct{} // closed when the process has ended
	paused bool
	output output
}

// ErrNotRunning is the error of a server that has ended or was never started.
var ErrNotRunning = errors.New("servers: not running")

// Start starts a server and waits until it serves. If it does not serve in time, Start
// kills it and returns an error with the end of its output.
func Start(ctx context.Context, c Config) (*Server, error) {
	if len(c.Command) == 0 || c.Dir == "" || c.Ready == nil {
		return nil, errors.New("servers: Command, Dir and Ready are needed")
	}
	c.Name = cmp.Or(c.Name, filepath.Base(c.Command[0]))
	c.Timeout = cmp.Or(c.Timeout, 30*time.Second)
	s := &Server{cfg: c}
	if c.Disk {
		var err error
		if s.disk, err = NewDisk(); err != nil {
			return nil, err
		}
		s.cfg.Command = s.disk.Command(c.Command)
	}
	if err := s.Restart(ctx); err != nil {
		s.End()
		return nil, err
	}
	return s, nil
}

// FreePort returns a free TCP port of this machine. The port is outside the range for
// outgoing connections: such a connection could take the port of a server that is killed
// and started again. FreePort also takes the UDP port of the same number, until this process
// ends. So no other call returns the port, here or in another process, while the server
// starts or is down. A process that does not use FreePort may take it. Then Start fails, and
// its caller tries another port.
func FreePort() (port int, err error) {
	for range 100 {
		port = 10000 + rand.IntN(22000) // outgoing connections use ports from 32768 on, on some systems only higher ones
		address := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
		var l net.Listener
		if l, err = net.Listen("tcp", address); err != nil {
			continue
		}
		_ = l.Close()
		var taken net.PacketConn
		if taken, err = net.ListenPacket("udp", address); err == nil {
			reserved.Store(port, taken)
			return port, nil
		}
	}
	return 0, err
}

// reserved contains the UDP sockets of FreePort by port. A socket that is not referenced would be closed.
var reserved sync.Map

// freePorts returns n free ports.
func freePorts(n int) (ports []int, err error) {
	for range n {
		port, err := FreePort()
		if err != nil {
			return nil, err
		}
		ports = append(ports, port)
	}
	return ports, nil
}

// retryStart calls start up to three times, because another process may take a port before the server does.
func retryStart[S any](ctx context.Context, start func() (S, error)) (s S, err error) {
	for range 3 {
		if s, err = start(); err == nil || errors.Is(err, ErrNotInstalled) || ctx.Err() != nil {
			break
		}
	}
	return s, err
}

// retryIn is retryStart for servers that begin in an empty directory: each attempt after the first one has a directory
// of its own below dir.
func retryIn[S any](ctx context.Context, dir string, start func(dir string) (S, error)) (S, error) {
	try := 0
	return retryStart(ctx, func() (S, error) {
		own := dir
		if try > 0 {
			own = filepath.Join(dir, fmt.Sprint("again", try))
		}
		try++
		return start(own)
	})
}

// startTogether calls start for all members of a cluster at once, because a member serves only with a quorum. After an
// error it ends them.
func startTogether[M interface{ End() }](members []M, start func(i int, m M) error) error {
	errs := make([]error, len(members))
	var starting sync.WaitGroup
	for i, m := range members {
		starting.Go(func() { errs[i] = start(i, m) })
	}
	starting.Wait()
	err := errors.Join(errs...)
	if err != nil {
		for _, m := range members {
			m.End()
		}
	}
	return err
}

// Dial returns a Ready for servers that serve as soon as they accept connections.
func Dial(address string) func(context.Context) error {
	return func(ctx context.Context) error {
		c, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
		if err != nil {
			return err
		}
		return c.Close()
	}
}

// Serves returns a Ready for servers of HTTP. It returns nil when a request is answered with one of the statuses.
func Serves(method, url string, statuses ...int) func(context.Context) error {
	return func(ctx context.Context) error {
		req, err := http.NewRequestWithContext(ctx, method, url, nil)
		if err != nil {
			return err
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return err
		}
		_ = resp.Body.Close()
		if !slices.Contains(statuses, resp.StatusCode) {
			return fmt.Errorf("%s %s: %s", method, url, resp.Status)
		}
		return nil
	}
}

// oneRequest returns a client that uses each connection once.
func oneRequest(t *tls.Config) *http.Client {
	return &http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: t}}
}

// get reads a page, and decodes it from JSON.
func get(ctx context.Context, t *tls.Config, url string, into any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := oneRequest(t).Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", url, resp.Status)
	}
	return json.NewDecoder(resp.Body).Decode(into)
}

// Restart kills the server if it runs, starts it again on its data, and waits until it serves.
func (s *Server) Restart(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.killLocked()
	if err := os.MkdirAll(s.cfg.Dir, 0o700); err != nil {
		return err
	}
	mark, err := watch.start()
	if err != nil {
		return err
	}
	cmd := exec.Command(s.cfg.Command[0], s.cfg.Command[1:]...)
	cmd.Dir = s.cfg.Dir
	cmd.Env = append(append(os.Environ(), s.cfg.Env...), mark)
	cmd.Stdout, cmd.Stderr = &s.output, &s.output
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: s.cfg.Credential}
	// A helper that outlives the server may keep its output open.
	cmd.WaitDelay = time.Second
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("servers: %s: %w", s.cfg.Name, err)
	}
	done := make(chan struct{})
	s.cmd, s.done, s.paused = cmd, done, false
	err = watch.started(cmd.Process.Pid)
	go func() {
		_ = cmd.Wait() // ProcessState has the exit code
		watch.ended(cmd.Process.Pid)
		close(done)
	}()
	if err == nil {
		err = s.await(ctx)
	}
	if err != nil {
		s.killLocked()
		return fmt.Errorf("servers: %s does not serve: %w; its output:\n%s", s.cfg.Name, err, s.output.tail())
	}
	return nil
}

// RestartEmpty kills the server if it runs, removes everything in Dir, and starts it again.
func (s *Server) RestartEmpty(ctx context.Context) error {
	s.Kill()
	entries, err := os.ReadDir(s.cfg.Dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if err := os.RemoveAll(filepath.Join(s.cfg.Dir, e.Name())); err != nil {
			return err
		}
	}
	return s.Restart(ctx)
}

func (s *Server) await(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	pause := time.NewTicker(10 * time.Millisecond)
	defer pause.Stop()
	for {
		try, cancel := context.WithTimeout(ctx, time.Second)
		err := s.cfg.Ready(try)
		cancel()
		if err == nil {
			return nil
		}
		select {
		case <-s.done:
			return fmt.Errorf("it has ended (%s)", s.cmd.ProcessState)
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ctx.Err(), err)
		case <-pause.C:
		}
	}
}

// PID returns the process number, 0 if the server does not run.
func (s *Server) PID() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.running() {
		return 0
	}
	return s.cmd.Process.Pid
}

// Done returns a channel that is closed when the present process has ended.
func (s *Server) Done() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.done
}

// Disk returns the server's Disk, or nil without Config.Disk.
func (s *Server) Disk() *Disk { return s.disk }

// Output returns the end of the output of all processes of the server.
func (s *Server) Output() string { return s.output.tail() }

func (s *Server) running() bool {
	if s.cmd == nil {
		return false
	}
	select {
	case <-s.done:
		return false
	default:
		return true
	}
}

// signal sends a signal to the process group. It sends nothing to a process that has ended,
// because its number may belong to another process.
func (s *Server) signal(sig syscall.Signal) error {
	if !s.running() {
		return fmt.Errorf("%w: %s", ErrNotRunning, s.cfg.Name)
	}
	return syscall.Kill(-s.cmd.Process.Pid, sig)
}

// Pause stops the server with SIGSTOP until Cont, and waits until it has stopped.
func (s *Server) Pause() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.signal(syscall.SIGSTOP)
	if s.paused = err == nil; s.paused {
		awaitStopped(s.cmd.Process.Pid)
	}
	return err
}

// Cont continues a paused server.
func (s *Server) Cont() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.paused = false
	return s.signal(syscall.SIGCONT)
}

// Kill ends the server with SIGKILL, and waits for its end. It does nothing if the server does
// not run.
func (s *Server) Kill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.killLocked()
}

func (s *Server) killLocked() {
	if s.signal(syscall.SIGKILL) == nil {
		<-s.done
	}
}

// End kills the server, and ends its Disk. It does nothing for a nil Server, such as that of a cluster's member
// that was not started.
func (s *Server) End() {
	if s == nil {
		return
	}
	s.Kill()
	if s.disk != nil {
		s.disk.Close()
	}
}

// Stop ends the server with SIGTERM. If it has not ended within the timeout, it is killed, and
// Stop returns an error.
func (s *Server) Stop() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.paused {
		_ = s.signal(syscall.SIGCONT) // a paused process does not handle SIGTERM
	}
	if s.signal(syscall.SIGTERM) != nil {
		return nil
	}
	t := time.NewTimer(s.cfg.Timeout)
	defer t.Stop()
	select {
	case <-s.done:
		return nil
	case <-t.C:
		s.killLocked()
		return fmt.Errorf("servers: %s did not end within %s of SIGTERM and was killed; its output:\n%s", s.cfg.Name, s.cfg.Timeout, s.output.tail())
	}
}

// output keeps only the end of a server's output.
type output struct {
	mu   sync.Mutex
	text []byte
}

const (
	keepOutput = 8 << 10
	cutMark    = "[...]\n"
)

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.text = append(o.text, b...)
	if extra := len(o.text) - keepOutput; extra > 0 {
		o.text = append([]byte(cutMark), o.text[extra+len(cutMark):]...)
	}
	return len(b), nil
}

func (o *output) tail() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return strings.ToValidUTF8(string(o.text), "?")
}

// dial connects to a server. The deadline of ctx, if any, is the connection's.
func dial(ctx context.Context, address string) (net.Conn, error) {
	c, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	if deadline, ok := ctx.Deadline(); ok {
		if err := c.SetDeadline(deadline); err != nil {
			_ = c.Close()
			return nil, err
		}
	}
	return c, nil
}
