//go:build linux || darwin

package servers

import (
	"crypto/rand"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
)

// watcher is a shell that outlives this process and then kills the servers that this
// process has started and not ended. A program that gets SIGKILL, or a test that panics at
// its timeout, cannot end its servers itself.
//
// The watcher reads the servers' process groups from a pipe. Only this process has the
// other end, so the pipe always ends with this process. A parent-death signal cannot
// replace the watcher. It fires when the thread that started the server exits. It reaches
// no child of the server, and a change of the user clears it.
type watcher struct {
	mu   sync.Mutex
	pipe io.Writer // nil before the first server
	// mark is in the environment of every server. By the mark the watcher finds servers
	// that have left their process group or were never reported.
	mark string
}

var watch watcher

//go:embed orphans.sh
var killOrphans string

// start starts the watcher, unless it runs already. It returns the environment variable that marks
// the servers.
func (w *watcher) start() (mark string, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.pipe != nil {
		return w.mark, nil
	}
	r, pipe, err := os.Pipe()
	if err != nil {
		return "", err
	}
	defer r.Close()
	mark = "HOLDFAST_CHECK_SERVER=" + rand.Text()
	cmd := exec.Command("/bin/sh", "-c", killOrphans, "holdfast-watcher", mark)
	cmd.Dir = "/"
	cmd.Stdin = r
	// In a session of its own the watcher receives no keys of the terminal and no signals
	// for this process's group.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		pipe.Close()
		return "", fmt.Errorf("servers: start the watcher, which ends the servers after this process: %w", err)
	}
	// The watcher ends after this process, so this process cannot Wait for it.
	_ = cmd.Process.Release()
	w.pipe, w.mark = pipe, mark
	return mark, nil
}

// started reports the process group of a server to the watcher.
func (w *watcher) started(group int) error {
	if err := w.send("+", group); err != nil {
		return errors.New("servers: the watcher does not run any more, so no process would end the servers after this one")
	}
	return nil
}

// ended removes the process group of a server that has ended from the watcher's list.
func (w *watcher) ended(group int) { _ = w.send("-", group) }

func (w *watcher) send(op string, group int) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	_, err := io.Copy(w.pipe, strings.NewReader(fmt.Sprintln(op, group)))
	return err
}
