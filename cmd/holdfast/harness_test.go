//go:build linux || darwin

package main_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/cli"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/proc"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/memstore"
)

// The test binary has three roles: the tests, the command under a lock, and holdfast itself
// with a store of scripted faults.
const (
	roleEnv      = "HOLDFAST_TEST_ROLE"
	roleCommand  = "command"
	roleScripted = "scripted"

	// binaryEnv is the variable with the path of a built holdfast.
	binaryEnv = "HOLDFAST_TEST_BINARY"
)

// binary is the path of holdfast, which TestMain builds once. testBinary is the path of this program.
var binary, testBinary string

// waitLimit limits the wait for an event that must come. No test passes because of it. After the
// first failure it is short, so that a failing run ends soon.
func waitLimit() time.Duration {
	if failed.Load() {
		return 10 * time.Second
	}
	return time.Minute
}

// failed is set when a test has failed.
var failed atomic.Bool

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == proc.StepArg {
		os.Exit(cli.Main(os.Args[1:])) // the step between fork and exec of a scripted run
	}
	if len(os.Args) > 1 && os.Args[1] == proc.GuardianArg {
		registerScripted()
		os.Exit(cli.Main(os.Args[1:]))
	}
	switch os.Getenv(roleEnv) {
	case roleCommand:
		os.Exit(runTestCommand())
	case roleTestProcess:
		os.Exit(runTestProcess(os.Args[1:]))
	case roleLister:
		os.Exit(printMarked(os.Args[1]))
	case roleScripted:
		registerScripted()
		os.Unsetenv(roleEnv)
		os.Exit(cli.Main(os.Args[1:]))
	}
	os.Exit(testMain(m))
}

func testMain(m *testing.M) int {
	resetIgnoredSignals()
	built := os.Getenv(binaryEnv)
	// The variables of the user's environment must not reach the tests.
	for _, v := range os.Environ() {
		if key, _, _ := strings.Cut(v, "="); strings.HasPrefix(key, "HOLDFAST_") {
			os.Unsetenv(key)
		}
	}
	dir, err := os.MkdirTemp("", "holdfast-command-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	if testBinary, err = os.Executable(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if binary = built; binary != "" {
		return m.Run()
	}
	binary = filepath.Join(dir, "holdfast")
	args := []string{"build", "-o", binary}
	if raceEnabled {
		args = append(args, "-race")
	}
	build := exec.Command("go", append(args, ".")...)
	if !raceEnabled {
		build.Env = append(os.Environ(), "CGO_ENABLED=0") // as make build does
	}
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "building holdfast: %v\n%s", err, out)
		return 1
	}
	return m.Run()
}

// resetIgnoredSignals gives HUP and INT their default action in the programs that this one
// starts, also under nohup or in a script's background. When a program is executed, the kernel
// resets handled signals but not ignored ones. So this program handles both and discards them.
func resetIgnoredSignals() {
	for _, s := range []os.Signal{syscall.SIGHUP, syscall.SIGINT} {
		if signal.Ignored(s) {
			signal.Notify(make(chan os.Signal, 1), s)
		}
	}
}

// runTestCommand is a command that executes its input, one instruction per line, and prints every
// signal that it gets. It ends at the end of its input.
func runTestCommand() int {
	sigs := make(chan os.Signal, 64)
	signal.Notify(sigs, syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM,
		syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGCONT)
	lines := make(chan string)
	go func() {
		in := bufio.NewScanner(os.Stdin)
		for in.Scan() {
			lines <- in.Text()
		}
		close(lines)
	}()
	fmt.Println("ready", os.Getpid())
	for {
		select {
		case s := <-sigs:
			fmt.Println("signal", s)
			if slices.Contains(os.Args[1:], "exit-on-term") && s == syscall.SIGTERM {
				return 5
			}
		case line, ok := <-lines:
			word, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
			switch {
			case !ok:
				return 0
			case word == "exit":
				n, _ := strconv.Atoi(rest)
				return n
			case word == "say":
				fmt.Println("said", rest)
			}
		}
	}
}

// registerScripted registers the scheme scripted: a memory store with a fault. The URL's
// path names the fault, which begins when a line arrives at the FIFO in its query.
func registerScripted() {
	driver.Register("scripted", func(_ context.Context, u *url.URL, namespace string) (driver.Store, error) {
		s := memstore.New().Namespace(namespace)
		script := s.Script()
		var store driver.Store = s
		if longest := u.Query().Get("max-ttl"); longest != "" {
			d, err := time.ParseDuration(longest)
			if err != nil {
				return nil, err
			}
			store = limitedStore{s, d}
		}
		action := map[string]func(){
			"works":        func() {},
			"lose":         func() { _ = script.Lose("x", driver.CauseGone) },
			"forget":       func() { script.Forget("x") },
			"fail-renewal": func() { script.FailRenewals("", 1<<30, nil) },
			"fail-renewal-password": func() {
				script.FailRenewals("", 1<<30, driver.Errorf(driver.CodeUnavailable, "AUTH %s: timed out; %s", "s3cr3t-pw", u))
			},
			"unavailable": func() {
				script.FailAcquire("", 1<<30, driver.Errorf(driver.CodeUnavailable, "connection refused"))
			},
			"refused":     func() { script.FailAcquire("", 1<<30, driver.Errorf(driver.CodeRefused, "no rights")) },
			"unsupported": func() { script.FailAcquire("", 1<<30, driver.Errorf(driver.CodeUnsupported, "no such lock")) },
			"password": func() {
				script.FailAcquire("", 1<<30, driver.Errorf(driver.CodeRefused, "AUTH %s: wrong pass; %s", "s3cr3t-pw", u))
			},
		}[u.Host]
		if action == nil {
			return nil, driver.Errorf(driver.CodeUnavailable, "dialling %s: no such host", u.Host)
		}
		fifo := u.Query().Get("on")
		if fifo == "" {
			action()
			return store, nil
		}
		go func() {
			// Open returns when a writer opens the FIFO, and Read returns when the line arrives.
			f, err := os.Open(fifo)
			if err != nil {
				panic(err)
			}
			defer f.Close()
			if _, err := f.Read(make([]byte, 1)); err == nil {
				action()
			}
		}()
		return store, nil
	})
}

// limitedStore is a store whose longest TTL is maxTTL.
type limitedStore struct {
	*memstore.Store
	maxTTL time.Duration
}

func (s limitedStore) Guarantees(ctx context.Context) (driver.Guarantees, error) {
	g, err := s.Store.Guarantees(ctx)
	g.MaxTTL = s.maxTTL
	return g, err
}

// sandbox is the separate environment of one test: a home without locks, and no variables of
// holdfast.
type sandbox struct {
	t    *testing.T
	dir  string // for files
	home string
	env  []string
}

func newSandbox(t *testing.T) *sandbox {
	t.Helper()
	dir := t.TempDir()
	t.Cleanup(func() {
		if t.Failed() {
			failed.Store(true)
		}
	})
	w := &sandbox{t: t, dir: dir, home: filepath.Join(dir, "home")}
	must(t, os.Mkdir(w.home, 0o700))
	w.env = []string{"HOME=" + w.home, "PATH=" + os.Getenv("PATH"), "TERM=xterm",
		"GORACE=atexit_sleep_ms=0"} // otherwise each process under the race detector ends a second late
	if dir := os.Getenv("GOCOVERDIR"); dir != "" {
		w.env = append(w.env, "GOCOVERDIR="+dir)
	}
	return w
}

// withStore returns a sandbox with a store, so that holdfast prints no note about the default store.
func withStore(t *testing.T) *sandbox {
	w := newSandbox(t)
	w.env = append(w.env, "HOLDFAST_STORE="+w.storeURL())
	return w
}

func (w *sandbox) storeURL() string { return "file://" + filepath.Join(w.dir, "locks") }

func (w *sandbox) path(name string) string { return filepath.Join(w.dir, name) }

// locker opens the store in the test's own process.
func (w *sandbox) locker() *holdfast.Locker {
	w.t.Helper()
	l, err := holdfast.Open(w.t.Context(), w.storeURL())
	must(w.t, err)
	w.t.Cleanup(func() { _ = l.Close(context.Background()) })
	return l
}

// result is the exit status and the output of a process.
type result struct {
	status         int
	stdout, stderr string
}

// run runs holdfast to its end.
func (w *sandbox) run(args ...string) result {
	w.t.Helper()
	return w.runIn(nil, "", args...)
}

// runIn runs holdfast with additional environment variables and an input.
func (w *sandbox) runIn(env []string, stdin string, args ...string) result {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), waitLimit())
	defer cancel()
	c := exec.CommandContext(ctx, binary, args...)
	return w.finish(c, env, stdin)
}

// runScripted runs holdfast on a store with a scripted fault.
func (w *sandbox) runScripted(env []string, args ...string) result {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), waitLimit())
	defer cancel()
	return w.finish(exec.CommandContext(ctx, testBinary, args...), append(env, roleEnv+"="+roleScripted), "")
}

func (w *sandbox) finish(c *exec.Cmd, env []string, stdin string) result {
	w.t.Helper()
	var out, errs bytes.Buffer
	c.Stdin, c.Stdout, c.Stderr = strings.NewReader(stdin), &out, &errs
	c.Env = append(slices.Clone(w.env), env...)
	c.Dir = w.dir
	err := c.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		w.t.Fatalf("%v: %v", c.Args, err)
	}
	return result{c.ProcessState.ExitCode(), out.String(), errs.String()}
}

// process is a running holdfast.
type process struct {
	t              *testing.T
	cmd            *exec.Cmd
	stdin          io.WriteCloser
	stdout, stderr *lines
	wait           func() error
}

// start starts holdfast with the arguments.
func (w *sandbox) start(args ...string) *process {
	w.t.Helper()
	return w.startCmd(exec.Command(binary, args...), nil)
}

// hold starts a run with flags and the name of a lock, and waits until its command runs.
func (w *sandbox) hold(args ...string) *process {
	w.t.Helper()
	p := w.start(slices.Concat([]string{"run"}, args, asTestCommand())...)
	p.ready()
	return p
}

func (w *sandbox) startScripted(args ...string) *process {
	w.t.Helper()
	return w.startCmd(exec.Command(testBinary, args...), []string{roleEnv + "=" + roleScripted})
}

// asTestCommand returns the arguments of holdfast run that run this program as the command.
func asTestCommand(args ...string) []string {
	return append([]string{"--", "env", roleEnv + "=" + roleCommand, testBinary}, args...)
}

func (w *sandbox) startCmd(c *exec.Cmd, env []string) *process {
	w.t.Helper()
	p := &process{t: w.t, cmd: c}
	c.Env = append(slices.Clone(w.env), env...)
	c.Dir = w.dir
	var err error
	if p.stdin, err = c.StdinPipe(); err != nil {
		w.t.Fatal(err)
	}
	// With pipes that the test makes itself, Wait returns when the process ends, although another
	// process may still have the output open.
	outR, outW, err := os.Pipe()
	must(w.t, err)
	errR, errW, err := os.Pipe()
	must(w.t, err)
	c.Stdout = outW
	if c.Stderr == nil {
		c.Stderr = errW
	}
	must(w.t, c.Start())
	outW.Close()
	errW.Close()
	p.stdout, p.stderr = readLines(w.t, "stdout", outR), readLines(w.t, "stderr", errR)
	p.wait = sync.OnceValue(c.Wait)
	w.t.Cleanup(func() {
		// The commands end at the end of their input, also if holdfast is killed.
		p.stdin.Close()
		_ = c.Process.Kill()
		_ = p.wait()
		outR.Close()
		errR.Close()
	})
	return p
}

// status waits until the process has ended, and returns its exit status.
func (p *process) status() int {
	p.t.Helper()
	timer := time.AfterFunc(waitLimit(), func() { _ = p.cmd.Process.Kill() })
	defer timer.Stop()
	var exit *exec.ExitError
	if err := p.wait(); err != nil && !errors.As(err, &exit) {
		p.t.Fatal(err)
	}
	return p.cmd.ProcessState.ExitCode()
}

// expectStatus waits until the process has ended, and fails the test if the exit status is not want.
func (p *process) expectStatus(want int) {
	p.t.Helper()
	if got := p.status(); got != want {
		p.t.Errorf("%q: status %d, want %d; output:\n%s%s", p.cmd.Args, got, want, p.stdout.soFar(), p.stderr.soFar())
	}
}

func (p *process) signal(s syscall.Signal) {
	p.t.Helper()
	must(p.t, p.cmd.Process.Signal(s))
}

func (p *process) send(line string) {
	p.t.Helper()
	if _, err := io.WriteString(p.stdin, line+"\n"); err != nil {
		p.t.Fatal(err)
	}
}

// ready waits for the command that this program runs as and returns its process number.
func (p *process) ready() int {
	p.t.Helper()
	line := p.stdout.expect("ready ")
	pid, err := strconv.Atoi(strings.Fields(line[strings.Index(line, "ready "):])[1])
	must(p.t, err)
	return pid
}

// guardian returns the process that this holdfast run has started to hold the lock.
func (p *process) guardian() int {
	p.t.Helper()
	return guardianOf(p.t, p.cmd.Process.Pid)
}

func guardianOf(t *testing.T, front int) int {
	t.Helper()
	for began := time.Now(); time.Since(began) < waitLimit(); {
		out, err := exec.Command("ps", "-A", "-o", "pid=", "-o", "ppid=", "-o", "args=").Output()
		must(t, err)
		for line := range strings.Lines(string(out)) {
			if f := strings.Fields(line); len(f) > 3 && f[1] == strconv.Itoa(front) && f[3] == proc.GuardianArg {
				return int(number(t, f[0]))
			}
		}
	}
	t.Fatalf("process %d has no guardian", front)
	return 0
}

// stopGuardian stops the guardian, and returns when it has stopped. The system call kill may
// return before SIGSTOP takes effect.
func (p *process) stopGuardian() {
	p.t.Helper()
	pid := p.guardian()
	must(p.t, syscall.Kill(pid, syscall.SIGSTOP))
	awaitState(p.t, pid, "T")
}

func (p *process) continueGuardian() {
	p.t.Helper()
	must(p.t, syscall.Kill(p.guardian(), syscall.SIGCONT))
}

// awaitState waits until ps reports the state of a process; "" stands for an ended process.
func awaitState(t *testing.T, pid int, state string) {
	t.Helper()
	var out []byte
	for began := time.Now(); time.Since(began) < waitLimit(); {
		out, _ = exec.Command("ps", "-o", "stat=", "-p", strconv.Itoa(pid)).Output()
		if got := strings.TrimSpace(string(out)); strings.HasPrefix(got, state) && (state != "" || got == "" || got[0] == 'Z') {
			return
		}
	}
	t.Fatalf("process %d is %q, not %q", pid, out, state)
}

// lines collects the output of a process. A test can wait for a text in it.
type lines struct {
	t    *testing.T
	name string

	mu   sync.Mutex
	more *sync.Cond
	text bytes.Buffer
	seen int // the end of the last text that expect found
	end  bool
}

func readLines(t *testing.T, name string, r io.Reader) *lines {
	l := &lines{t: t, name: name}
	l.more = sync.NewCond(&l.mu)
	go func() {
		buf := make([]byte, 4096)
		for {
			n, err := r.Read(buf)
			l.mu.Lock()
			l.text.Write(buf[:n])
			l.end = err != nil
			l.more.Broadcast()
			l.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	return l
}

// expect waits for a text after the last one found, and for the end of its line. It returns
// the output from the text on.
func (l *lines) expect(text string) string {
	l.t.Helper()
	return l.await(text, true)
}

// expectPart waits for a text like expect, but does not wait for the end of the line.
func (l *lines) expectPart(text string) {
	l.t.Helper()
	l.await(text, false)
}

func (l *lines) await(text string, line bool) string {
	l.t.Helper()
	late := l.expired()
	l.mu.Lock()
	defer l.mu.Unlock()
	for {
		rest := l.text.String()[l.seen:]
		if i := strings.Index(rest, text); i >= 0 {
			if n := strings.IndexByte(rest[i:], '\n'); n >= 0 || l.end || !line {
				if n < 0 {
					n = len(rest) - i
				}
				l.seen += i + len(text)
				return rest[i : i+n]
			}
		}
		if l.end || late() {
			l.t.Fatalf("%s: waited for %q after byte %d, got:\n%s", l.name, text, l.seen, l.text.String())
		}
		l.more.Wait()
	}
}

// soFar returns the output until now. A process on a terminal has no separate lines of standard error.
func (l *lines) soFar() string {
	if l == nil {
		return ""
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// all waits for the end of the output, and returns the whole output.
func (l *lines) all() string {
	l.t.Helper()
	late := l.expired()
	l.mu.Lock()
	defer l.mu.Unlock()
	for !l.end {
		if late() {
			l.t.Fatalf("%s does not end, got:\n%s", l.name, l.text.String())
		}
		l.more.Wait()
	}
	return l.text.String()
}

// expired wakes the waiting goroutines when waitLimit has passed. The function that it returns
// reports whether waitLimit has passed; its caller holds mu.
func (l *lines) expired() func() bool {
	late := false
	timer := time.AfterFunc(waitLimit(), func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		late = true
		l.more.Broadcast()
	})
	l.t.Cleanup(func() { timer.Stop() })
	return func() bool { return late }
}

// expectStatus fails the test and shows the output if the exit status is not want. It returns r.
func (r result) expectStatus(t *testing.T, want int) result {
	t.Helper()
	if r.status != want {
		t.Errorf("status %d, want %d\nstdout:\n%s\nstderr:\n%s", r.status, want, r.stdout, r.stderr)
	}
	return r
}

// must ends the test if err is not nil.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// contains fails the test if a word is not in the text.
func contains(t *testing.T, text string, words ...string) {
	t.Helper()
	for _, word := range words {
		if !strings.Contains(text, word) {
			t.Errorf("no %q in:\n%s", word, text)
		}
	}
}

// shell returns a command that runs a shell script. The script's $0 is holdfast.
func shell(script string) *exec.Cmd { return exec.Command("sh", "-c", script, binary) }

func number(t *testing.T, s string) uint64 {
	t.Helper()
	n, err := strconv.ParseUint(s, 10, 64)
	must(t, err)
	return n
}

// mustLock takes a lock in the test's own process.
func mustLock(t *testing.T, l *holdfast.Locker, name string, opts ...holdfast.LockOption) *holdfast.Lock {
	t.Helper()
	lock, err := l.Lock(t.Context(), name, opts...)
	must(t, err)
	return lock
}

// awaitQueue waits until the lock x has n waiters.
func awaitQueue(t *testing.T, l *holdfast.Locker, n int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitLimit())
	defer cancel()
	for st, err := range l.Watch(ctx, "x") {
		must(t, err)
		if len(st.Waiters) == n {
			return
		}
	}
	t.Fatalf("the queue never has %d waiters", n)
}

// missing skips the test because a program is not installed.
func missing(t *testing.T, program string) {
	t.Helper()
	unable(t, program+" is not installed")
}

// unable skips the test for a reason. It fails the test if no test may be skipped.
func unable(t *testing.T, reason string) {
	t.Helper()
	if os.Getenv("HOLDFAST_REQUIRE_SERVERS") == "1" {
		t.Fatal(reason)
	}
	t.Skip(reason)
}

// asFirst returns the words of a command that runs as the first process of a PID namespace.
func asFirst(t *testing.T, words ...string) []string {
	t.Helper()
	unshare := []string{"unshare", "--pid", "--fork", "--mount-proc"}
	if out, err := exec.Command(unshare[0], append(unshare[1:], "true")...).CombinedOutput(); err != nil {
		unable(t, fmt.Sprintf("no right to make a namespace: %v: %s", err, out))
	}
	return append(unshare, words...)
}

// firstShell is like shell, for a script that is the first process of a PID namespace.
func firstShell(t *testing.T, script string) *exec.Cmd {
	t.Helper()
	words := asFirst(t, "sh", "-c", script, binary)
	return exec.Command(words[0], words[1:]...)
}
