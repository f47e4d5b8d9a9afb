// Package zookeeper tests shared locks on ZooKeeper with other client libraries, in both directions:
// Curator, kazoo and go-zookeeper.
//
// If the program of a peer is missing, its tests are skipped. With
// HOLDFAST_REQUIRE_SERVERS=1 they fail.
package zookeeper

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/e2e/interop/register"
	"github.com/holdfast-go/holdfast/e2e/servertest"
	"github.com/holdfast-go/holdfast/internal/servers"
	"github.com/holdfast-go/holdfast/zkstore"
)

const (
	tick        = 100 * time.Millisecond
	testTimeout = 2 * time.Minute
)

// workerEnv is set in a process of this test binary that is a worker. Its arguments are a
// URL and the name of a lock.
const workerEnv = "HOLDFAST_INTEROP_WORKER"

func TestMain(m *testing.M) {
	if os.Getenv(workerEnv) != "" {
		if err := work(os.Args[1], os.Args[2]); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// work executes commands from standard input, like the peers of other clients.
func work(url, name string) error {
	l, err := holdfast.Open(context.Background(), url)
	if err != nil {
		return err
	}
	fmt.Println("ready")
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		words := strings.Fields(in.Text())
		times, err := strconv.Atoi(words[2])
		if err != nil {
			return err
		}
		r := register.Register(words[1])
		for i := range times {
			if err := l.Do(context.Background(), name, func(context.Context) error { return r.Add() }); err != nil {
				return err
			}
			if os.Getenv("READ") != "" && i%4 == 0 {
				if err := l.Do(context.Background(), name, func(context.Context) error { return r.Still() }, holdfast.Shared()); err != nil {
					return err
				}
			}
		}
		fmt.Println("done count")
	}
	return l.Close(context.Background())
}

var must = servertest.Check

func start(t *testing.T) string {
	t.Helper()
	z, err := servers.StartZooKeeper(t.Context(), filepath.Join(t.TempDir(), "zookeeper"), servers.ZooKeeperConfig{Tick: tick})
	if errors.Is(err, servers.ErrNoZooKeeper) {
		servertest.Missing(t, err)
	}
	must(t, err)
	t.Cleanup(z.Kill)
	return z.Address()
}

func url(address string, layout zkstore.Layout) string {
	return fmt.Sprintf("zk://%s/app?tick=%s&grace=500ms&layout=%s", address, tick, layout)
}

func open(t *testing.T, address string, layout zkstore.Layout) *holdfast.Locker {
	t.Helper()
	l, err := holdfast.Open(t.Context(), url(address, layout))
	must(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := l.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	return l
}

// peer is a process of another client that executes commands from standard input.
type peer struct {
	t     *testing.T
	in    io.WriteCloser
	lines chan string
}

func launch(t *testing.T, cmd *exec.Cmd) *peer {
	t.Helper()
	in, err := cmd.StdinPipe()
	must(t, err)
	out, err := cmd.StdoutPipe()
	must(t, err)
	cmd.Stderr = os.Stderr
	must(t, cmd.Start())
	n := &peer{t: t, in: in, lines: make(chan string, 100)}
	reading := make(chan struct{})
	go func() {
		defer close(reading)
		defer close(n.lines)
		for s := bufio.NewScanner(out); s.Scan(); {
			n.lines <- s.Text()
		}
	}()
	t.Cleanup(func() {
		in.Close()
		stop := time.AfterFunc(20*time.Second, func() { _ = cmd.Process.Kill() })
		defer stop.Stop()
		<-reading
		if err := cmd.Wait(); err != nil {
			t.Errorf("%s: %v", filepath.Base(cmd.Path), err)
		}
	})
	n.expect("ready")
	return n
}

// send sends a command and does not wait.
func (n *peer) send(order ...any) {
	n.t.Helper()
	if _, err := fmt.Fprintln(n.in, order...); err != nil {
		n.t.Fatal(err)
	}
}

// expect waits until the peer prints a line.
func (n *peer) expect(what string) {
	n.t.Helper()
	select {
	case line, open := <-n.lines:
		if !open || line != what {
			n.t.Fatalf("the peer printed %q, want %q", line, what)
		}
	case <-time.After(testTimeout):
		n.t.Fatalf("the peer did not print %q", what)
	}
}

// does sends a command and waits until the peer has executed it.
func (n *peer) does(order string, more ...any) {
	n.t.Helper()
	n.send(append([]any{order}, more...)...)
	n.expect("done " + order)
}

func curator(t *testing.T, address, recipe, name string) *peer {
	t.Helper()
	return curatorOf(t, address, recipe, name, 1)
}

// curatorOf starts a Curator peer. If the recipe is a semaphore, it has this number of permits.
func curatorOf(t *testing.T, address, recipe, name string, permits int) *peer {
	t.Helper()
	classes, err := filepath.Abs("curator/target/classes")
	must(t, err)
	if _, err := os.Stat(classes); err != nil {
		servertest.Missing(t, fmt.Errorf("Curator's peer is not built (make interop): %w", err))
	}
	java, err := exec.LookPath("java")
	if err != nil {
		servertest.Missing(t, err)
	}
	return launch(t, exec.Command(java, "-cp", classes+":"+filepath.Join(filepath.Dir(classes), "dependency/*"),
		"-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "holdfast.Peer", address, recipe, "/app/"+name, strconv.Itoa(permits)))
}

func kazoo(t *testing.T, address, kind, name string) *peer {
	t.Helper()
	for _, python := range []string{"/usr/bin/python3", "python3"} {
		if exec.Command(python, "-c", "import kazoo").Run() == nil {
			return launch(t, exec.Command(python, "kazoo/peer.py", address, kind, "/app/"+name))
		}
	}
	servertest.Missing(t, errors.New("kazoo is not installed (Debian: apt-get install python3-kazoo)"))
	return nil
}

// holdfastProcess starts a holdfast worker in a process of its own.
func holdfastProcess(t *testing.T, address string, layout zkstore.Layout, name string) *peer {
	t.Helper()
	self, err := os.Executable()
	must(t, err)
	cmd := exec.Command(self, url(address, layout), name)
	cmd.Env = append(os.Environ(), workerEnv+"=1")
	if layout == zkstore.ReadWrite {
		cmd.Env = append(cmd.Env, "READ=1")
	}
	return launch(t, cmd)
}

// contend lets all peers add to one register, and requires that the sum is exact.
func contend(t *testing.T, times int, all ...*peer) {
	t.Helper()
	r := register.New(t)
	for _, n := range all {
		n.send("count", string(r), times)
	}
	for _, n := range all {
		n.expect("done count")
	}
	r.Want(t, times*len(all))
}
