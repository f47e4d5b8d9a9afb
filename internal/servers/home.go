//go:build linux || darwin

package servers

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// home is a server's directory and user. Databases need a user because they refuse to run
// as root.
type home struct {
	dir  string
	cred *syscall.Credential
}

// newHome makes a directory for a server. Its name is short because it contains sockets. If
// this process is root, the directory belongs to the first existing user of users.
func newHome(users ...string) (*home, error) {
	dir, err := os.MkdirTemp("", "hf")
	if err != nil {
		return nil, err
	}
	h := &home{dir: dir}
	if os.Geteuid() != 0 {
		return h, nil
	}
	for _, name := range users {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, _ := strconv.Atoi(u.Uid)
		gid, _ := strconv.Atoi(u.Gid)
		if err := os.Chown(dir, uid, gid); err != nil {
			_ = os.RemoveAll(dir)
			return nil, err
		}
		h.cred = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
		break
	}
	return h, nil
}

// inHome calls start with a new home and a free port, as retryStart does. If this process is
// root, the home belongs to the user. If start fails, inHome removes the home.
func inHome[S any](ctx context.Context, user string, start func(h *home, port int) (S, error)) (S, error) {
	return retryStart(ctx, func() (s S, err error) {
		h, err := newHome(user, "nobody")
		if err != nil {
			return s, err
		}
		port, err := FreePort()
		if err == nil {
			s, err = start(h, port)
		}
		if err != nil {
			h.remove()
		}
		return s, err
	})
}

func (h *home) env() []string { return []string{"HOME=" + h.dir, "TZ=UTC"} }

// command runs a program as the server's user.
func (h *home) command(name string, args ...string) *exec.Cmd {
	c := exec.Command(name, args...)
	c.Dir = h.dir
	c.Env = append(os.Environ(), h.env()...)
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: h.cred}
	return c
}

func (h *home) run(c *exec.Cmd) error {
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("servers: %s: %w: %s", filepath.Base(c.Path), err, out)
	}
	return nil
}

func (h *home) remove() { _ = os.RemoveAll(h.dir) }

// hosted is a server in a home of its own.
type hosted struct {
	*Server
	// Address is HOST:PORT.
	Address string
	home    *home
}

// host returns a server that is not started.
func (h *home) host(port int) hosted {
	return hosted{Address: fmt.Sprintf("127.0.0.1:%d", port), home: h}
}

func (d *hosted) start(ctx context.Context, command []string, ready func(context.Context) error, env ...string) (err error) {
	d.Server, err = Start(ctx, Config{
		Command: command, Env: append(d.home.env(), env...), Credential: d.home.cred, Dir: d.home.dir, Ready: ready,
	})
	return err
}

// Close kills the server, which loses only data that no test needs, and removes its directory.
func (d *hosted) Close() error {
	d.Kill()
	d.home.remove()
	return nil
}

// family returns a process and its children.
func family(pid int) ([]int, error) {
	if pid == 0 {
		return nil, ErrNotRunning
	}
	all := []int{pid}
	out, err := exec.Command("pgrep", "-P", strconv.Itoa(pid)).Output()
	if _, none := errors.AsType[*exec.ExitError](err); err != nil && !none {
		return nil, err
	}
	for _, f := range strings.Fields(string(out)) {
		child, err := strconv.Atoi(f)
		if err != nil {
			return nil, err
		}
		all = append(all, child)
	}
	return all, nil
}
