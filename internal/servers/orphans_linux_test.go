package servers_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/must"
	"github.com/holdfast-go/holdfast/internal/servers"
)

// TestServersEndWithTheirProcess kills a process that runs servers. It requires that the
// servers and their children end.
func TestServersEndWithTheirProcess(t *testing.T) {
	for name, c := range map[string]struct {
		env  string
		root bool
	}{
		"plain":               {},
		"paused":              {env: "PAUSE=1"},
		"another user's":      {env: "USER=65534", root: true},
		"with a child":        {env: "CHILD=sleep 1000 & echo $! >child"},
		"a child's session":   {env: "CHILD=setsid sleep 1000 & echo $! >child"},
		"a daemon":            {env: "CHILD=(setsid sh -c 'echo $$ >child; exec sleep 1000' &)"},
		"all of them at once": {env: "PAUSE=1\nUSER=65534\nCHILD=(setsid sh -c 'echo $$ >child; exec sleep 1000' &)", root: true},
	} {
		t.Run(name, func(t *testing.T) {
			if c.root && os.Geteuid() != 0 {
				t.Skip("needs root")
			}
			cmd := exec.Command(os.Args[0])
			// Other users must reach the directory, which t.TempDir does not allow.
			dir, err := os.MkdirTemp("", "hf")
			must.Succeed(t, err)
			defer os.RemoveAll(dir)
			cmd.Dir = dir
			must.Succeed(t, os.Chmod(dir, 0o777))
			cmd.Env = append(os.Environ(), parentEnv+"="+cmd.Dir)
			for pair := range strings.Lines(c.env) {
				cmd.Env = append(cmd.Env, parentEnv+"_"+strings.TrimSpace(pair))
			}
			cmd.Stderr = os.Stderr
			out, err := cmd.StdoutPipe()
			must.Succeed(t, err)
			must.Succeed(t, cmd.Start())
			line, err := bufio.NewReader(out).ReadString('\n')
			must.Succeed(t, err)
			pids := strings.Fields(line)
			want := 2
			if strings.Contains(c.env, "CHILD") {
				want = 4
			}
			if len(pids) != want {
				t.Fatalf("the processes are %q", line)
			}
			for _, pid := range pids {
				if !lives(pid) {
					t.Errorf("process %s does not run before the end of its parent", pid)
				}
			}
			must.Succeed(t, cmd.Process.Kill())
			_ = cmd.Wait()
			deadline := time.Now().Add(20 * time.Second)
			for _, pid := range pids {
				awaitEnd(t, pid, deadline)
			}
		})
	}
}

func awaitEnd(t *testing.T, pid string, deadline time.Time) {
	t.Helper()
	for ; lives(pid); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Errorf("process %s runs on after the end of the process that started it", pid)
			n, _ := strconv.Atoi(pid)
			_ = syscall.Kill(n, syscall.SIGKILL)
			return
		}
	}
}

// lives reports whether a process runs. A process that has ended and is not yet reaped does
// not run.
func lives(pid string) bool {
	stat, err := os.ReadFile("/proc/" + pid + "/stat")
	if err != nil {
		return false
	}
	return stat[bytes.LastIndexByte(stat, ')')+2] != 'Z'
}

const parentEnv = "SERVERS_TEST_PARENT"

func init() {
	if dir := os.Getenv(parentEnv); dir != "" {
		fmt.Fprintln(os.Stderr, playParent(dir))
		os.Exit(1)
	}
}

// playParent starts two servers, and a third one that it ends. It prints the numbers of the
// running processes, and waits until it is killed.
func playParent(dir string) error {
	// The servers' user cannot reach the directory of the test program, so playParent
	// copies the program.
	program, err := os.ReadFile(os.Args[0])
	if err != nil {
		return err
	}
	server := filepath.Join(dir, "server")
	if err := os.WriteFile(server, program, 0o755); err != nil {
		return err
	}
	var pids []string
	var ended *servers.Server
	for i := range 3 {
		port, err := servers.FreePort()
		if err != nil {
			return err
		}
		address := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
		script := "exec \"$0\""
		if child := os.Getenv(parentEnv + "_CHILD"); child != "" {
			script = child + "\nuntil [ -s child ]; do :; done\n" + script
		}
		config := servers.Config{
			Command: []string{"sh", "-c", script, server},
			Env:     []string{"SERVERS_TEST_ADDRESS=" + address, parentEnv + "="},
			Dir:     fmt.Sprintf("%s/%d", dir, i), Ready: servers.Dial(address),
		}
		if err := os.Mkdir(config.Dir, 0o777); err != nil {
			return err
		}
		if err := os.Chmod(config.Dir, 0o777); err != nil {
			return err
		}
		if id, err := strconv.ParseUint(os.Getenv(parentEnv+"_USER"), 10, 32); err == nil {
			config.Credential = &syscall.Credential{Uid: uint32(id), Gid: uint32(id)}
		}
		s, err := servers.Start(context.Background(), config)
		if err != nil {
			return err
		}
		if i == 1 {
			ended = s
			continue
		}
		pids = append(pids, strconv.Itoa(s.PID()))
		if os.Getenv(parentEnv+"_CHILD") != "" {
			child, err := os.ReadFile(filepath.Join(config.Dir, "child"))
			if err != nil {
				return err
			}
			pids = append(pids, strings.TrimSpace(string(child)))
		}
		if os.Getenv(parentEnv+"_PAUSE") != "" {
			if err := s.Pause(); err != nil {
				return err
			}
		}
	}
	if err := ended.Stop(); err != nil {
		return err
	}
	fmt.Println(strings.Join(pids, " "))
	select {}
}
