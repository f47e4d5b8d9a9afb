//go:build linux || darwin

package check

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/storeurl"
)

// workerEnv marks a worker process. Its value is the assignment.
const workerEnv = "HOLDFAST_CHECK_WORKER"

// assignment is the coordinator's input for a worker process.
type assignment struct {
	Config             Config
	URL                string
	Round, Index, Life int
	Dir, Registers     string
	Gateway            string // see Target
}

// MaybeWorker runs this process as a worker, and never returns, if a check has started the
// process for that. Otherwise it returns at once. A main or TestMain that runs checks calls
// MaybeWorker first.
func MaybeWorker() {
	text := os.Getenv(workerEnv)
	if text == "" {
		return
	}
	if text == gatewayMark {
		_ = os.Unsetenv(workerEnv) // the command calls MaybeWorker, too
		os.Exit(Holdfast(os.Args[1:]))
	}
	var a assignment
	err := json.Unmarshal([]byte(text), &a)
	if err == nil {
		err = a.run()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "check: worker:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// run works until the coordinator sends stop. It also ends when standard input ends,
// because then the coordinator has died.
func (a *assignment) run() error {
	log, err := newLog(filepath.Join(a.Dir, workerName(a.Index, a.Life)+".jsonl"), workerName(a.Index, a.Life))
	if err != nil {
		return err
	}
	w := a.Config.newWorker(a.Round, a.Index, a.Life, log, inFiles(a.Registers), opener(a.URL, a.Config.Namespace))
	if a.Gateway != "" {
		w.gateway = newGateway(a.Gateway)
	}
	ctx := context.Background()
	if err := labelled(ctx, a.Dir, w.start); err != nil {
		return err
	}
	fmt.Println("ready")
	orders := json.NewDecoder(bufio.NewReader(os.Stdin))
	for {
		var f Fault
		if err := orders.Decode(&f); err != nil {
			return fmt.Errorf("the coordinator has ended: %w", err)
		}
		if f.Kind == orderStop {
			break
		}
		if err := w.inject(ctx, f); err != nil {
			return err
		}
	}
	w.finish()
	for _, g := range leftGoroutines(a.Dir) {
		log.Add(Event{K: kindLeft, Note: "a goroutine of the library still runs after all Lockers were closed: " + g})
	}
	return log.Close()
}

// orderStop is the kind of the order that ends a worker process. All other orders are faults.
const orderStop = "stop"

// opener returns a function that opens the store of a URL, in a namespace.
func opener(raw, namespace string) func(context.Context) (driver.Store, error) {
	return func(ctx context.Context) (driver.Store, error) {
		u, err := storeurl.Read(raw)
		if err != nil {
			return nil, badConfig("", "the store's URL cannot be read")
		}
		open, ok := driver.OpenerOf(u.Scheme)
		if !ok {
			return nil, badConfig("", "scheme %q is not linked in", u.Scheme)
		}
		return open(ctx, u, namespace)
	}
}

// outputMost limits roughly how many bytes of a worker's output are kept. They are enough
// for the stacks of some hundred goroutines.
const outputMost = 1 << 18

// process is a worker process, as the coordinator sees it.
type process struct {
	cmd    *exec.Cmd
	orders io.WriteCloser
	done   chan struct{}
	err    error
	mu     sync.Mutex   // guards text
	text   bytes.Buffer // the output
}

func (p *process) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.text.Len() < outputMost {
		p.text.Write(b)
	}
	return len(b), nil
}

func (p *process) output() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.text.String()
}

// begin starts a worker process, of this executable, and waits until it works.
func (a *assignment) begin(ctx context.Context) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(a)
	if err != nil {
		return nil, err
	}
	p := &process{cmd: exec.Command(self), done: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), workerEnv+"="+string(text))
	p.cmd.Stderr = p
	if p.orders, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	ready, says, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer ready.Close()
	p.cmd.Stdout = says
	err = p.cmd.Start()
	says.Close()
	if err != nil {
		return nil, err
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	stop := context.AfterFunc(ctx, func() { ready.SetReadDeadline(time.Now()) })
	defer stop()
	ready.SetReadDeadline(time.Now().Add(2*startTime + 10*time.Second))
	line := make([]byte, 6)
	if _, err := io.ReadFull(ready, line); err != nil || string(line) != "ready\n" {
		_ = p.cmd.Process.Kill()
		<-p.done
		return nil, fmt.Errorf("check: a worker did not start (%w): %s", errors.Join(err, p.err), p.output())
	}
	return p, nil
}

func (p *process) order(f Fault) error {
	b, err := json.Marshal(f)
	if err != nil {
		return err
	}
	_, err = p.orders.Write(append(b, '\n'))
	return err
}

func (p *process) signal(s syscall.Signal) error { return p.cmd.Process.Signal(s) }

// dump ends a hanging process after it has written the stacks of its goroutines.
func (p *process) dump() {
	_ = p.signal(syscall.SIGQUIT) // it may already be dead
	select {
	case <-p.done:
	case <-time.After(startTime):
	}
}

func (p *process) kill() {
	_ = p.signal(syscall.SIGKILL) // it may already be dead
	<-p.done
}
