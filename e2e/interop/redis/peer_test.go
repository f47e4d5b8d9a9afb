// Package redis tests that holdfast shares locks on Redis with other clients: Redisson,
// redis-py, redsync and bsm/redislock, in both directions.
//
// If the program of a peer is missing, its tests are skipped. With
// HOLDFAST_REQUIRE_SERVERS=1 they fail.
package redis

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/e2e/interop/register"
	"github.com/holdfast-go/holdfast/e2e/servertest"
	"github.com/holdfast-go/holdfast/internal/servers"
	"github.com/holdfast-go/holdfast/internal/wakeup"
	_ "github.com/holdfast-go/holdfast/redisstore"
	"github.com/holdfast-go/holdfast/redisstore/layouts"
)

const (
	// testTimeout limits every wait for an event that must happen.
	testTimeout = 2 * time.Minute
	// endless is a lease that outlasts every test, so that a test fails if a waiter is not
	// notified.
	endless = 10 * time.Minute
	// lease is so short that a test can hold a lock for several leases.
	lease    = 6 * time.Second
	fairWait = 20 * time.Second
)

// kind is a kind of lock: Redisson's name of it, and holdfast's layout and options for it.
type kind struct {
	java   string
	layout layouts.Layout
	option []holdfast.LockOption
}

var kinds = []kind{
	{"lock", layouts.Redisson, nil},
	{"fair", layouts.RedissonFair, nil},
	{"fenced", layouts.RedissonFenced, nil},
	{"spin", layouts.RedissonSpin, nil},
	{"write", layouts.RedissonReadWrite, nil},
	{"semaphore", layouts.RedissonSemaphore, []holdfast.LockOption{holdfast.Limit(1)}},
	{"permits", layouts.RedissonPermits, []holdfast.LockOption{holdfast.Limit(1)}},
}

// workerEnv has the URL of the server. A process of this test binary with that variable is
// a worker: it reads commands, like the other peers.
const workerEnv = "HOLDFAST_INTEROP_WORKER"

func TestMain(m *testing.M) {
	if url := os.Getenv(workerEnv); url != "" {
		if err := work(url); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func work(url string) error {
	ctx := context.Background()
	lockers, held := map[string]*holdfast.Locker{}, map[string]*holdfast.Lock{}
	fmt.Println("ready")
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		words := strings.Fields(in.Text())
		of, name, verb := words[1], words[2], words[3]
		l := lockers[of]
		if l == nil {
			var err error
			layout, option := url+"?layout=plain", []holdfast.LockOption{holdfast.TTL(lease)}
			for _, k := range kinds {
				if k.java == of {
					layout, option = urlOf(url, k.layout), append(option, k.option...)
				}
			}
			if l, err = holdfast.Open(ctx, layout, holdfast.Defaults(option...)); err != nil {
				return err
			}
			lockers[of] = l
		}
		var err error
		switch verb {
		case "acquire":
			held[of+name], err = l.Lock(ctx, name)
		case "release":
			err = held[of+name].Unlock()
		case "held":
			err = held[of+name].Context().Err()
		case "count":
			var times int
			times, err = strconv.Atoi(words[5])
			for range times {
				if err = l.Do(ctx, name, func(context.Context) error { return register.Register(words[4]).Add() }); err != nil {
					break
				}
			}
		}
		if err != nil {
			return err
		}
		fmt.Println(words[0], verb, "ok")
	}
	for _, l := range lockers {
		if err := l.Close(ctx); err != nil {
			return err
		}
	}
	return nil
}

var must = servertest.Check

// deployment is one server, or a Cluster.
type deployment struct {
	mode, url, address string
	nodes              []*servers.Redis
}

var modes = []string{"single", "cluster"}

func start(t *testing.T, mode string) *deployment {
	t.Helper()
	if _, err := servers.RedisInstalled(); err != nil {
		servertest.Missing(t, err)
	}
	if mode == "cluster" {
		c, err := servers.StartRedisCluster(t.Context(), t.TempDir(), false)
		must(t, err)
		t.Cleanup(c.Kill)
		must(t, c.SetNodeTimeout(t.Context(), time.Minute)) // a slow node is not replaced
		return &deployment{mode, "redis+cluster://" + c.Nodes[0].Address(), c.Nodes[0].Address(), c.Nodes}
	}
	r, err := servers.StartRedis(t.Context(), t.TempDir())
	must(t, err)
	t.Cleanup(r.Kill)
	return &deployment{mode, "redis://" + r.Address(), r.Address(), []*servers.Redis{r}}
}

func urlOf(url string, l layouts.Layout) string {
	url += "?layout=" + string(l)
	if l == layouts.RedissonFair {
		url += "&fair_wait=" + fairWait.String()
	}
	return url
}

// open opens a Locker without a fallback: its waiters are notified, or wait until the
// holder's lease ends. Where the other clients do not notify, its waiters poll.
func (d *deployment) open(t *testing.T, l layouts.Layout, ttl time.Duration, o ...holdfast.Option) *holdfast.Locker {
	t.Helper()
	s, err := layouts.Open(t.Context(), urlOf(d.url, l), l)
	must(t, err)
	var store driver.Store = s
	if l != layouts.Plain && l != layouts.RedissonSpin { // their other clients do not notify
		store = wakeup.WithoutFallback(s)
	}
	locker, err := holdfast.New(store, append(o, holdfast.Defaults(holdfast.TTL(ttl)))...)
	must(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := locker.Close(ctx); err != nil {
			t.Error(err)
		}
		_ = s.Close(ctx)
	})
	return locker
}

// operator opens a Locker that inspects and breaks locks.
func (d *deployment) operator(t *testing.T, l layouts.Layout, o ...holdfast.LockOption) *holdfast.Locker {
	t.Helper()
	locker, err := holdfast.Open(t.Context(), urlOf(d.url, l), holdfast.Defaults(o...))
	must(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := locker.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	return locker
}

// remains waits until only those keys are left that Redisson keeps, too: its tokens, and
// the number of a semaphore's permits. It ignores keys of holdfast that expire within ten
// seconds.
func (d *deployment) remains(t *testing.T) {
	t.Helper()
	var left []string
	for end := time.Now().Add(testTimeout); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		left = nil
		for _, r := range d.nodes {
			answer, err := r.Do(t.Context(), "KEYS", "*")
			must(t, err)
			for _, k := range answer.([]any) {
				key := k.(string)
				kind, err := r.Do(t.Context(), "TYPE", key)
				must(t, err)
				life, err := r.Do(t.Context(), "PTTL", key)
				must(t, err)
				if ms := life.(int64); ms >= 0 && ms <= 10_000 && strings.HasPrefix(key, "holdfast:beside:") {
					continue
				}
				if !strings.HasPrefix(key, "redisson_lock_token:") && kind != "none" && (kind != "string" || !strings.HasPrefix(key, "semaphore") && !strings.HasPrefix(key, "permits")) {
					left = append(left, fmt.Sprint(kind, " ", key))
				}
			}
		}
		if len(left) == 0 {
			return
		}
	}
	t.Errorf("keys are left: %q", left)
}

// peer is a process that executes commands from standard input.
type peer struct {
	t       *testing.T
	cmd     *exec.Cmd
	in      io.WriteCloser
	mu      sync.Mutex
	answers map[string]chan string // by thread and verb
	died    chan struct{}
	killed  bool
}

func launch(t *testing.T, cmd *exec.Cmd) *peer {
	t.Helper()
	in, err := cmd.StdinPipe()
	must(t, err)
	out, err := cmd.StdoutPipe()
	must(t, err)
	cmd.Stderr = os.Stderr
	must(t, cmd.Start())
	p := &peer{t: t, cmd: cmd, in: in, answers: map[string]chan string{}, died: make(chan struct{})}
	go func() {
		defer close(p.died)
		for s := bufio.NewScanner(out); s.Scan(); {
			if s.Text() == "ready" {
				p.answer("ready") <- ""
				continue
			}
			words := strings.SplitN(s.Text(), " ", 3)
			if len(words) < 3 {
				words = []string{"?", "?", s.Text()}
			}
			p.answer(words[0] + " " + words[1]) <- words[2]
		}
	}()
	t.Cleanup(func() {
		_ = in.Close()
		stop := time.AfterFunc(20*time.Second, func() { _ = cmd.Process.Kill() })
		defer stop.Stop()
		<-p.died
		if err := cmd.Wait(); err != nil && !p.killed {
			t.Errorf("%s: %v", filepath.Base(cmd.Path), err)
		}
	})
	p.await("ready")
	return p
}

func (p *peer) answer(what string) chan string {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := p.answers[what]
	if c == nil {
		c = make(chan string, 100)
		p.answers[what] = c
	}
	return c
}

// await returns the next answer of the peer.
func (p *peer) await(what string) string {
	p.t.Helper()
	select {
	case answer := <-p.answer(what):
		if strings.HasPrefix(answer, "failed") {
			p.t.Fatalf("%s: %s", what, answer)
		}
		return answer
	case answer := <-p.answer("? ?"):
		p.t.Fatalf("%s: the peer says %q", what, answer)
	case <-p.died:
		p.t.Fatalf("%s: the peer has ended", what)
	case <-time.After(testTimeout):
		p.t.Fatalf("%s: no answer within %s", what, testTimeout)
	}
	return ""
}

// kill kills the process with SIGKILL.
func (p *peer) kill() {
	p.killed = true
	_ = p.cmd.Process.Kill()
	<-p.died
}

// lock is one lock of one thread of a peer.
type lock struct {
	p                  *peer
	thread, kind, name string
}

func (p *peer) lock(kind, name string) lock { return lock{p, kind + "/" + name, kind, name} }

// send sends a command and does not wait.
func (k lock) send(verb string, more ...any) {
	k.p.t.Helper()
	line := []any{k.thread, k.kind, k.name, verb}
	if verb == "acquire" && k.kind == "permits" && len(more) == 0 {
		more = []any{endless.Milliseconds()}
	}
	if _, err := fmt.Fprintln(k.p.in, append(line, more...)...); err != nil {
		k.p.t.Fatal(err)
	}
}

func (k lock) await(verb string) string {
	k.p.t.Helper()
	return k.p.await(k.thread + " " + verb)
}

func (k lock) does(verb string, more ...any) string {
	k.p.t.Helper()
	k.send(verb, more...)
	return k.await(verb)
}

func (d *deployment) java(t *testing.T, watchdog time.Duration) *peer {
	t.Helper()
	classes, err := filepath.Abs("redisson/target/classes")
	must(t, err)
	if _, err := os.Stat(classes); err != nil {
		servertest.Missing(t, fmt.Errorf("the peer of Redisson is not built (make clients): %w", err))
	}
	java, err := exec.LookPath("java")
	if err != nil {
		servertest.Missing(t, err)
	}
	return launch(t, exec.Command(java, "-cp", classes+":"+filepath.Join(filepath.Dir(classes), "dependency/*"), "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto",
		"holdfast.Peer", d.mode, d.address, strconv.FormatInt(watchdog.Milliseconds(), 10), strconv.FormatInt(fairWait.Milliseconds(), 10)))
}

func (d *deployment) python(t *testing.T) *peer {
	t.Helper()
	target, err := filepath.Abs("redispy/target")
	must(t, err)
	if _, err := os.Stat(target); err != nil {
		servertest.Missing(t, fmt.Errorf("redis-py is not installed (make clients): %w", err))
	}
	python, err := exec.LookPath("python3")
	if err != nil {
		servertest.Missing(t, err)
	}
	host, port, _ := strings.Cut(d.address, ":")
	cmd := exec.Command(python, "redispy/peer.py", host, port)
	cmd.Env = append(os.Environ(), "PYTHONPATH="+target)
	return launch(t, cmd)
}

// worker starts a process of this test binary that uses holdfast.
func (d *deployment) worker(t *testing.T) *peer {
	t.Helper()
	self, err := os.Executable()
	must(t, err)
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), workerEnv+"="+d.url)
	return launch(t, cmd)
}

// queued receives the names for which a Locker waits.
type queued struct{ all chan string }

func newQueued() *queued { return &queued{make(chan string, 100)} }

func (q *queued) Start(ctx context.Context, _ holdfast.Event) context.Context { return ctx }

func (q *queued) Event(_ context.Context, e holdfast.Event) {
	if e.Kind == holdfast.EventQueued {
		select {
		case q.all <- e.Name:
		default:
		}
	}
}

// waiting is a call of Lock on a goroutine of its own.
type waiting struct {
	t    *testing.T
	got  chan *holdfast.Lock
	name string
}

// wait calls Lock on a goroutine of its own, and returns when that call waits.
func wait(t *testing.T, l *holdfast.Locker, q *queued, name string, o ...holdfast.LockOption) *waiting {
	t.Helper()
	w := &waiting{t, make(chan *holdfast.Lock, 1), name}
	go func() {
		k, err := l.Lock(t.Context(), name, o...)
		if err != nil {
			t.Errorf("waiting for %s: %v", name, err)
		}
		w.got <- k
	}()
	select {
	case <-q.all:
	case <-w.got:
		t.Fatalf("%s: granted beside its holder", name)
	case <-time.After(testTimeout):
		t.Fatalf("%s: it does not wait", name)
	}
	return w
}

func (w *waiting) granted() *holdfast.Lock {
	w.t.Helper()
	select {
	case k := <-w.got:
		if k == nil {
			w.t.FailNow()
		}
		return k
	case <-time.After(testTimeout):
		w.t.Fatalf("%s: not granted within %s", w.name, testTimeout)
	}
	return nil
}

func busy(t *testing.T, l *holdfast.Locker, name string, o ...holdfast.LockOption) {
	t.Helper()
	k, err := l.TryLock(t.Context(), name, o...)
	if !errors.Is(err, holdfast.ErrBusy) {
		t.Errorf("%s: %v, want ErrBusy", name, err)
	}
	if err == nil {
		_ = k.Unlock()
	}
}

// each runs a test side by side for all kinds but those in without.
func each(t *testing.T, f func(t *testing.T, k kind), without ...string) {
	t.Run("each", func(t *testing.T) {
		for _, k := range kinds {
			if slices.Contains(without, k.java) {
				continue
			}
			t.Run(k.java, func(t *testing.T) {
				t.Parallel()
				f(t, k)
			})
		}
	})
}
