//go:build linux || darwin

package filestore_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/filestore"
	"github.com/holdfast-go/holdfast/internal/must"
	"github.com/holdfast-go/holdfast/internal/wakeup"
)

// The test binary runs itself as other processes of the same directory.
const (
	envRole = "FILESTORE_TEST_ROLE"
	envDir  = "FILESTORE_TEST_DIR"
	envName = "FILESTORE_TEST_NAME"
)

// fork makes a child process without exec. It is nil on systems where the tests cannot do that.
var fork func() (pid int, err error)

func TestMain(m *testing.M) {
	if role := os.Getenv(envRole); role != "" {
		if err := play(role, os.Getenv(envDir), os.Getenv(envName)); err != nil {
			fmt.Println("failed:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// play runs the role of a child process. It prints each step on standard output, and ends at the end
// of standard input.
func play(role, dir, name string) error {
	ctx := context.Background()
	var o []filestore.Option
	dir, shared := strings.CutSuffix(dir, "?mode=0777")
	if shared {
		o = append(o, filestore.Mode(0o777))
	}
	s, err := filestore.Open(ctx, dir, o...)
	if err != nil {
		return err
	}
	from := newRequester()
	r := driver.Request{ID: newID(), Name: name, Limit: driver.Exclusive, Wait: true, From: from}
	switch role {
	case "hold", "permit", "release", "parent", "fork":
		if role == "permit" {
			r.Limit = 2
		}
		go func() {
			<-from.queued
			fmt.Println("queued")
		}()
		g, err := s.Acquire(ctx, r)
		if err != nil {
			return err
		}
		if role == "parent" {
			cmd := exec.Command("sleep", "600")
			if err := cmd.Start(); err != nil {
				return err
			}
			fmt.Println("child", cmd.Process.Pid)
		}
		if role == "fork" {
			pid, err := fork()
			if err != nil {
				return err
			}
			fmt.Println("child", pid)
		}
		fmt.Println("granted", g.Token)
		if role == "release" {
			fmt.Println("lost", <-from.lost)
			return s.Release(ctx, g, 0)
		}
	case "work":
		return work(wakeup.WithoutFallback(s), dir, name)
	case "hammer":
		// The list of entries is long, and changes all the time.
		for i := 0; ; i++ {
			r := r
			r.ID, r.From, r.Wait = fmt.Sprintf("%s-%d", r.ID, i), newRequester(), false
			r.Limit = driver.Unlimited
			if r.From.(*requester).owner.Reason = strings.Repeat("x", 100*(i%11)); i == 400 {
				fmt.Println("hammering")
			}
			g, err := s.Acquire(ctx, r)
			if err != nil {
				return err
			}
			if i > 100 {
				if err := s.Release(ctx, g, 0); err != nil {
					return err
				}
			}
		}
	default:
		return fmt.Errorf("no role %q", role)
	}
	io.Copy(io.Discard, os.Stdin)
	return s.Close(ctx)
}

// work takes and releases the lock repeatedly until its standard input ends. It logs each begin and
// end.
func work(s driver.Store, dir, name string) error {
	log, err := os.OpenFile(filepath.Join(dir, "log"), os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	fmt.Println("working")
	for ctx.Err() == nil {
		g, err := s.Acquire(ctx, driver.Request{ID: newID(), Name: name, Limit: driver.Exclusive, Wait: true, From: newRequester()})
		if s.Classify(err) == driver.CodeWithdrawn {
			break
		}
		if err != nil {
			return err
		}
		fmt.Fprintf(log, "begin %d %d\n", g.Token, os.Getpid())
		fmt.Fprintf(log, "end %d %d\n", g.Token, os.Getpid())
		if err := s.Release(context.Background(), g, 0); err != nil {
			return err
		}
	}
	return s.Close(context.Background())
}

// child is another process with a store on the same directory.
type child struct {
	t     testing.TB
	cmd   *exec.Cmd
	in    io.Closer
	lines chan string
}

func start(t testing.TB, role, dir, name string) *child {
	t.Helper()
	return startCommand(t, exec.Command(os.Args[0]), role, dir, name)
}

func startCommand(t testing.TB, cmd *exec.Cmd, role, dir, name string) *child {
	t.Helper()
	cmd.Env = append(os.Environ(), envRole+"="+role, envDir+"="+dir, envName+"="+name)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	must.Succeed(t, err)
	out, err := cmd.StdoutPipe()
	must.Succeed(t, err)
	must.Succeed(t, cmd.Start())
	c := &child{t: t, cmd: cmd, in: in, lines: make(chan string, 64)}
	go func() {
		defer close(c.lines)
		for sc := bufio.NewScanner(out); sc.Scan(); {
			c.lines <- sc.Text()
		}
	}()
	t.Cleanup(c.kill)
	return c
}

// says waits for a line with this beginning, and returns the rest of it.
func (c *child) says(what string) (rest string) {
	c.t.Helper()
	select {
	case line, ok := <-c.lines:
		if !ok || !strings.HasPrefix(line, what) {
			c.t.Fatalf("child says %q (%v), want %q", line, ok, what)
		}
		return strings.TrimSpace(line[len(what):])
	case <-time.After(testTimeout):
		c.t.Fatalf("child does not print %q", what)
	}
	return ""
}

func (c *child) pid() int { return c.cmd.Process.Pid }

func (c *child) signal(sig syscall.Signal) {
	c.t.Helper()
	if err := c.cmd.Process.Signal(sig); err != nil {
		c.t.Fatal(err)
	}
}

// kill kills the child with SIGKILL, and returns when it has ended.
func (c *child) kill() {
	if c.cmd.ProcessState == nil {
		c.cmd.Process.Kill()
		for range c.lines {
		}
		c.cmd.Wait()
	}
}

// finish ends the child's standard input and waits for its end.
func (c *child) finish() {
	c.t.Helper()
	c.in.Close()
	for range c.lines {
	}
	if err := c.cmd.Wait(); err != nil {
		c.t.Fatalf("child: %v", err)
	}
}
