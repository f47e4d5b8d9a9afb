//go:build linux || darwin || freebsd || netbsd || openbsd || dragonfly

package fence_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/fence"
	"github.com/holdfast-go/holdfast/internal/must"
)

// The variables that start the test binary as a writer in a process of its own.
const (
	childPath  = "HOLDFAST_FENCE_TEST_PATH"
	childToken = "HOLDFAST_FENCE_TEST_TOKEN"
	childPause = "HOLDFAST_FENCE_TEST_PAUSE"

	exitStale = 3
)

func TestMain(m *testing.M) {
	if path := os.Getenv(childPath); path != "" {
		os.Exit(child(path))
	}
	os.Exit(m.Run())
}

// child writes until it is refused or killed.
func child(path string) int {
	token, _ := strconv.ParseUint(os.Getenv(childToken), 10, 64)
	if os.Getenv(childPause) == "" {
		// Children end with a test that was killed.
		go func() { _, _ = io.Copy(io.Discard, os.Stdin); os.Exit(1) }()
	}
	f, err := guardOf(path)
	for seq := 0; err == nil; seq++ {
		err = f.WriteFunc(context.Background(), token, func(w io.Writer) error {
			if _, err := w.Write(content(token, seq)); err != nil {
				return err
			}
			if os.Getenv(childPause) != "" && seq > 0 {
				fmt.Println("paused")
				_, err := bufio.NewReader(os.Stdin).ReadString('\n')
				return err
			}
			return nil
		})
		if seq == 0 && err == nil {
			fmt.Println("wrote")
		}
	}
	if errors.Is(err, fence.ErrStale) {
		return exitStale
	}
	fmt.Fprintln(os.Stderr, err)
	return 1
}

type process struct {
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	stdout *bufio.Reader
}

func start(t *testing.T, path string, token uint64, env ...string) *process {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childPath+"="+path, childToken+"="+strconv.FormatUint(token, 10))
	cmd.Env = append(cmd.Env, env...)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	must.Succeed(t, err)
	stdout, err := cmd.StdoutPipe()
	must.Succeed(t, err)
	must.Succeed(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	return &process{cmd, stdin, bufio.NewReader(stdout)}
}

func (p *process) expect(t *testing.T, word string) {
	t.Helper()
	if line, err := p.stdout.ReadString('\n'); strings.TrimSpace(line) != word {
		t.Fatalf("the child printed %q, %v; want %q", line, err, word)
	}
}

// TestFilesSurviveKilledWriters: the writers are processes that are killed at any moment, each
// with a larger token than the one before. The content is always complete, belongs to one
// holder, and never goes back.
func TestFilesSurviveKilledWriters(t *testing.T) {
	f, path := newFile(t)
	stop, watched := make(chan struct{}), make(chan error, 1)
	go func() { watched <- watch(path, stop) }()
	rounds := 60
	if testing.Short() {
		rounds = 10
	}
	var last *process
	for token := uint64(1); token <= uint64(rounds); token++ {
		p := start(t, path, token)
		// The previous writer continues beside the newer one, until it is refused or killed.
		time.Sleep(time.Duration(rand.IntN(8)) * time.Millisecond)
		if last != nil {
			_ = last.cmd.Process.Kill()
			var exit *exec.ExitError
			if err := last.cmd.Wait(); !errors.As(err, &exit) || (exit.ExitCode() != exitStale && exit.ExitCode() != -1) {
				t.Errorf("token %d: %v", token-1, err)
			}
		}
		// Every third writer, and the last one, is killed after its first write at the
		// earliest. The others may die before theirs.
		if token%3 == 0 || token == uint64(rounds) {
			p.expect(t, "wrote")
		}
		last = p
	}
	_ = last.cmd.Process.Kill()
	_ = last.cmd.Wait()
	close(stop)
	must.Succeed(t, <-watched)
	// No writer waits for a dead one, and the next holder removes its files.
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	newest := uint64(rounds)
	wantStale(t, f.Write(ctx, newest-1, nil), newest-1, newest)
	must.Succeed(t, f.Raise(ctx, newest+1))
	if left := names(t, path); len(left) != 2 {
		t.Errorf("left behind: %v", left)
	}
	if token, err := written([]byte(read(t, path))); token != newest || err != nil {
		t.Errorf("the content is of token %d, %v; want %d", token, err, newest)
	}
}

// TestFilesRefusePausedHolder: a holder is stopped in the middle of its write, and a newer one
// takes over without a wait. The guard refuses the late write of the first holder.
func TestFilesRefusePausedHolder(t *testing.T) {
	f, path := newFile(t)
	old := start(t, path, 1, childPause+"=1")
	old.expect(t, "wrote")
	old.expect(t, "paused")
	must.Succeed(t, old.cmd.Process.Signal(syscall.SIGSTOP))
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	must.Succeed(t, f.Write(ctx, 2, content(2, 0)))
	if _, err := io.WriteString(old.stdin, "go on\n"); err != nil {
		t.Fatal(err)
	}
	must.Succeed(t, old.cmd.Process.Signal(syscall.SIGCONT))
	var exit *exec.ExitError
	if err := old.cmd.Wait(); !errors.As(err, &exit) || exit.ExitCode() != exitStale {
		t.Errorf("the old holder ended with %v, want status %d", err, exitStale)
	}
	if token, err := written([]byte(read(t, path))); token != 2 || err != nil {
		t.Errorf("the content is of token %d, %v", token, err)
	}
}
