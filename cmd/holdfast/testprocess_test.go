//go:build linux || darwin

package main_test

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// A test process is the command under a lock, or a process that the command has started. Unless its
// arguments end it earlier, it ends when no process has the FIFO named hold open for writing. The
// first argument selects its behaviour:
//
//	ends     ends with status 5 on HUP, INT and TERM
//	ignores  ignores HUP, INT and TERM
//	closes   closes the inherited files and its standard streams, as a daemon does
//	leaves   starts a child, whose arguments follow, and ends with status 3 when it reads a
//	         line; if its input ends first, it waits for the end of the FIFO
//	daemon   like leaves, but the arguments are those of a grandchild in a new session
//	child    the child of daemon: starts the grandchild, and ends when that is ready
//
// A test process prints "ready" when it has opened the FIFO. If it starts another process, it prints
// the line of that process instead.
//
// A lister prints which test processes of one test are alive. It finds them by the mark in their
// environment.
const (
	roleTestProcess = "test-process"
	roleLister      = "lister"
	markEnv         = "TEST_PROCESS_MARK"
)

func runTestProcess(words []string) int {
	if len(words) == 0 {
		return 1
	}
	switch word, rest := words[0], words[1:]; word {
	case "ends":
		c := make(chan os.Signal, 1)
		signal.Notify(c, syscall.SIGHUP, syscall.SIGINT, syscall.SIGTERM)
		go func() { <-c; os.Exit(5) }()
	case "ignores":
		signal.Ignore(syscall.SIGHUP, syscall.SIGINT, syscall.SIGTERM)
	case "closes":
		closeOthers(3)
	case "leaves", "daemon":
		return leave(rest, word == "daemon")
	case "child":
		return leave(rest, false)
	}
	hold, err := os.Open("hold") // opened before "ready", so that the test cannot close the other end first
	if err != nil {
		return 1
	}
	fmt.Println("ready", os.Getpid())
	if words[0] == "closes" {
		// Like a daemon, this test process also closes its standard streams.
		null, _ := os.OpenFile(os.DevNull, os.O_RDWR, 0)
		for fd := range 3 {
			_ = unix.Dup2(int(null.Fd()), fd)
		}
	}
	_, _ = io.Copy(io.Discard, hold)
	return 0
}

// leave starts another test process. It returns when this process reads a line, or, in the child of a
// daemon, when the other one is ready.
func leave(words []string, daemon bool) int {
	c := exec.Command(os.Args[0], words...)
	if daemon {
		// The child starts the grandchild, and ends as soon as the grandchild is ready.
		c.Args = append([]string{os.Args[0], "child"}, words...)
		c.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	}
	c.Stderr = os.Stderr
	for fd := 3; fd < 20; fd++ { // the child inherits the descriptor that flock passes to its command
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil && !isCloseOnExec(fd) {
			for len(c.ExtraFiles) < fd-3 {
				c.ExtraFiles = append(c.ExtraFiles, nil)
			}
			c.ExtraFiles = append(c.ExtraFiles, os.NewFile(uintptr(fd), "inherited"))
		}
	}
	out, err := c.StdoutPipe()
	if err != nil {
		return 1
	}
	if err := c.Start(); err != nil {
		return 1
	}
	line, _ := bufio.NewReader(out).ReadString('\n')
	if daemon {
		_ = c.Wait() // before the line is printed, so that no test counts the child
	}
	fmt.Print(line)
	if os.Args[1] == "child" {
		return 0
	}
	if _, err := bufio.NewReader(os.Stdin).ReadString('\n'); err != nil {
		// The input has ended without a line. This process waits for the end of the FIFO.
		if hold, err := os.Open("hold"); err == nil {
			_, _ = io.Copy(io.Discard, hold)
		}
	}
	return 3
}

func isCloseOnExec(fd int) bool {
	flags, _ := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
	return flags&unix.FD_CLOEXEC != 0
}

// closeOthers closes the inherited descriptors, starting with from. Go's own are close-on-exec.
func closeOthers(from int) {
	for fd := from; fd < 100; fd++ {
		if !isCloseOnExec(fd) {
			_ = unix.Close(fd)
		}
	}
}

// printMarked prints which processes with a mark are alive.
func printMarked(mark string) int {
	alive := marked(mark)
	fmt.Printf("alive: %d %v\n", len(alive), alive)
	return 0
}

// marked returns the IDs of the processes with the mark in their environment. It finds none except on
// Linux.
func marked(mark string) (alive []string) {
	files, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, f := range files {
		b, err := os.ReadFile(f) // empty if the process has ended
		if err == nil && strings.Contains("\x00"+string(b), "\x00"+markEnv+"="+mark+"\x00") {
			alive = append(alive, filepath.Base(filepath.Dir(f)))
		}
	}
	return alive
}
