package protect

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/fence"
	"github.com/holdfast-go/holdfast/optimistic"
	"github.com/holdfast-go/holdfast/sequence"
)

// testTimeout limits the wait for an event that must come. It is long for a slow machine.
const testTimeout = 2 * time.Minute

const childEnv = "HOLDFAST_PROTECT_CHILD"

// task describes the work of a child process.
type task struct {
	system
	Mode string // hold, update or draw
	Lock string // the name of the lock, the value and the resource
	TTL  time.Duration
	N    int
}

func TestMain(m *testing.M) {
	raw := os.Getenv(childEnv)
	if raw == "" {
		code := m.Run()
		for _, stop := range started.stop {
			stop()
		}
		os.Exit(code)
	}
	var c task
	if err := json.Unmarshal([]byte(raw), &c); err != nil {
		panic(err)
	}
	ctx := context.Background()
	s, err := open(ctx, c.URL)
	if err == nil {
		err = map[string]func(context.Context, driver.Store) error{"hold": c.hold, "update": c.update, "draw": c.draw}[c.Mode](ctx, s)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// hold takes the lock, and writes once for each line of standard input, without another
// check of the lock. So the test can imitate a holder that stops between its check and its
// write.
func (c task) hold(ctx context.Context, s driver.Store) error {
	l, err := holdfast.New(s)
	if err != nil {
		return err
	}
	r, err := c.resource(ctx, s, c.Lock)
	if err != nil {
		return err
	}
	k, err := l.Lock(ctx, c.Lock, holdfast.TTL(c.TTL))
	for errors.Is(err, holdfast.ErrUnavailable) && ctx.Err() == nil { // on a busy machine an answer takes a TTL
		k, err = l.Lock(ctx, c.Lock, holdfast.TTL(c.TTL))
	}
	if err != nil {
		return err
	}
	fmt.Println("holding", k.Token())
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		switch in.Text() {
		case "guarded":
			err = r.guarded(ctx, k.Token(), "A")
		case "bare":
			err = r.bare(ctx, "A")
		case "unlock":
			err = k.Unlock()
		}
		switch {
		case errors.Is(err, fence.ErrStale):
			fmt.Println("stale")
		case err != nil:
			fmt.Println("error", strings.ReplaceAll(err.Error(), "\n", " "))
		default:
			fmt.Println("done")
		}
	}
	return in.Err()
}

// update adds 1 to a value N times for each line of standard input. The line is "lock" for
// an update under the lock, and another word for one without it.
func (c task) update(ctx context.Context, s driver.Store) error {
	l, err := holdfast.New(s)
	if err != nil {
		return err
	}
	v, err := l.Values()
	if err != nil {
		return err
	}
	if _, err := s.Guarantees(ctx); err != nil { // Guarantees connects to the server
		return err
	}
	add := func(_ context.Context, old []byte) ([]byte, error) {
		n, err := strconv.Atoi("0" + string(old))
		return strconv.AppendInt(nil, int64(n+1), 10), err
	}
	fmt.Println("ready")
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		way, conflicts := in.Text(), 0
		count := optimistic.OnConflict(func(context.Context, optimistic.Conflict) { conflicts++ })
		for range c.N {
			once := func(ctx context.Context) error { return optimistic.Update(ctx, v, c.Lock+way, add, count) }
			if way == "lock" {
				err = l.Do(ctx, c.Lock, once, holdfast.TTL(c.TTL))
			} else {
				err = once(ctx)
			}
			if err != nil {
				return err
			}
		}
		fmt.Println("conflicts", conflicts)
	}
	return in.Err()
}

// draw writes ids to the output until its input ends.
func (c task) draw(ctx context.Context, s driver.Store) error {
	var source sequence.Source
	switch c.Kind {
	case "mysql", "postgres":
		db, dialect, err := openDatabase(c.Kind, c.Address)
		if err != nil {
			return err
		}
		source = sequence.Table{DB: db, Dialect: dialect}
	default:
		source = sequence.Values(s.(driver.Values))
	}
	ids, err := sequence.New(source, c.Lock, sequence.Blocks(16, 1<<14))
	if err != nil {
		return err
	}
	end := make(chan struct{})
	go func() { _, _ = io.Copy(io.Discard, os.Stdin); close(end) }()
	for {
		select {
		case <-end:
			return nil
		default:
		}
		chunk := make([]byte, 0, 8*256)
		for range 256 {
			id, err := ids.Next(ctx)
			if err != nil {
				return err
			}
			chunk = binary.LittleEndian.AppendUint64(chunk, uint64(id))
		}
		if _, err := os.Stdout.Write(chunk); err != nil {
			return err
		}
	}
}

// process is a child of the test.
type process struct {
	cmd    *exec.Cmd
	in     io.WriteCloser
	out    io.Reader
	lines  chan string
	stderr *strings.Builder
}

// run starts a child. The channel lines receives its output, except that of a child that
// draws ids.
func run(t *testing.T, c task) *process {
	t.Helper()
	raw, err := json.Marshal(c)
	check(t, err)
	exe, err := os.Executable()
	check(t, err)
	p := &process{cmd: exec.Command(exe), lines: make(chan string, 16), stderr: &strings.Builder{}}
	p.cmd.Env = append(os.Environ(), childEnv+"="+string(raw))
	p.cmd.Stderr = p.stderr
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if p.out, err = p.cmd.StdoutPipe(); err != nil {
		t.Fatal(err)
	}
	check(t, p.cmd.Start())
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill() // SIGKILL ends a stopped process, too
		_ = p.cmd.Wait()
		if t.Failed() && p.stderr.Len() > 0 {
			t.Logf("a child said: %s", p.stderr)
		}
	})
	if c.Mode != "draw" {
		go func() {
			defer close(p.lines)
			for in := bufio.NewScanner(p.out); in.Scan(); {
				p.lines <- in.Text()
			}
		}()
	}
	return p
}

func (p *process) say(t *testing.T, word string) {
	t.Helper()
	if _, err := fmt.Fprintln(p.in, word); err != nil {
		t.Fatal(err)
	}
}

func (p *process) line(t *testing.T) string {
	t.Helper()
	select {
	case s, ok := <-p.lines:
		if !ok {
			t.Fatal("a child has ended")
		}
		return s
	case <-time.After(testTimeout):
		t.Fatal("a child prints no line")
	}
	return ""
}
