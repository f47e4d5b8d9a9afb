// Package etcd tests that holdfast shares locks on etcd with other clients: etcdctl,
// clientv3/concurrency and jetcd, in both directions.
//
// If the program of a peer is missing, its tests are skipped. With
// HOLDFAST_REQUIRE_SERVERS=1 they fail.
package etcd

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/e2e/interop/register"
	"github.com/holdfast-go/holdfast/e2e/servertest"
	_ "github.com/holdfast-go/holdfast/etcdstore"
	"github.com/holdfast-go/holdfast/internal/must"
	"github.com/holdfast-go/holdfast/internal/servers"
)

func find(t *testing.T, program string) string {
	t.Helper()
	path, err := servers.Find(program)
	if err != nil {
		servertest.Missing(t, err)
	}
	return path
}

func start(t *testing.T) string {
	t.Helper()
	find(t, "etcd")
	members, err := servers.StartEtcd(t.Context(), servers.EtcdConfig{Dir: t.TempDir(), NoSync: true})
	must.Succeed(t, err)
	t.Cleanup(members[0].Kill)
	return members[0].Client
}

func open(t *testing.T, endpoint string) *holdfast.Locker {
	t.Helper()
	l, err := holdfast.Open(t.Context(), "etcd://"+endpoint)
	must.Succeed(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		must.Report(t, l.Close(ctx))
	})
	return l
}

// holdfasts starts Lockers that each add to the register the given number of times. The
// caller waits for them with wg.
func holdfasts(t *testing.T, wg *sync.WaitGroup, endpoint, name string, r register.Register, lockers, times int) {
	for range lockers {
		l := open(t, endpoint)
		wg.Go(func() {
			for range times {
				if err := l.Do(t.Context(), name, func(context.Context) error { return r.Add() }); err != nil {
					t.Errorf("holdfast: %v", err)
				}
			}
		})
	}
}

func client(t *testing.T, endpoint string) *clientv3.Client {
	t.Helper()
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{endpoint}, Logger: zap.NewNop()})
	must.Succeed(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// TestConcurrencyMutexLosesNoIncrement: concurrency.Mutex and holdfast add to one register, and no increment is
// lost.
func TestConcurrencyMutexLosesNoIncrement(t *testing.T) {
	endpoint, r := start(t), register.New(t)
	const lockers, times = 3, 100
	var wg sync.WaitGroup
	holdfasts(t, &wg, endpoint, "shared/name", r, lockers, times)
	for range lockers {
		s, err := concurrency.NewSession(client(t, endpoint))
		must.Succeed(t, err)
		t.Cleanup(func() { _ = s.Close() })
		m := concurrency.NewMutex(s, "shared/name")
		wg.Go(func() {
			for range times {
				if err := m.Lock(t.Context()); err != nil {
					t.Error(err)
					return
				}
				must.Report(t, r.Add())
				must.Report(t, m.Unlock(t.Context()))
			}
		})
	}
	wg.Wait()
	r.Want(t, 2*lockers*times)
}

// TestConcurrencyMutexIsExcludedAndShown: concurrency.Mutex and holdfast exclude each other. Holdfast reports the
// mutex as the holder.
func TestConcurrencyMutexIsExcludedAndShown(t *testing.T) {
	endpoint := start(t)
	l := open(t, endpoint)
	s, err := concurrency.NewSession(client(t, endpoint))
	must.Succeed(t, err)
	defer s.Close()
	m := concurrency.NewMutex(s, "n")

	must.Succeed(t, m.Lock(t.Context()))
	var busy *holdfast.BusyError
	if _, err := l.TryLock(t.Context(), "n"); !errors.As(err, &busy) || len(busy.Holders) != 1 || !strings.Contains(busy.Holders[0].Instance, fmt.Sprintf("%x", s.Lease())) {
		t.Errorf("TryLock beside a peer: %v", err)
	}
	for name, o := range map[string]holdfast.LockOption{"shared": holdfast.Shared(), "limit": holdfast.Limit(2)} {
		if _, err := l.TryLock(t.Context(), "n", o); !errors.Is(err, holdfast.ErrBusy) {
			t.Errorf("%s beside a peer: %v", name, err)
		}
	}
	st, err := l.Inspect(t.Context(), "n")
	if err != nil || len(st.Holders) != 1 || st.Holders[0].Token != 64*uint64(m.Header().Revision) {
		t.Errorf("Inspect: %+v, %v", st, err)
	}
	must.Succeed(t, m.Unlock(t.Context()))

	for name, o := range map[string][]holdfast.LockOption{"exclusive": nil, "shared": {holdfast.Shared()}, "limit": {holdfast.Limit(2)}} {
		k, err := l.TryLock(t.Context(), "n", o...)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if err := m.TryLock(t.Context()); !errors.Is(err, concurrency.ErrLocked) {
			t.Errorf("a peer beside holdfast, %s: %v", name, err)
		}
		must.Report(t, k.Unlock())
	}
}

// TestEtcdctlLosesNoIncrement: `etcdctl lock NAME COMMAND` and holdfast add to one register, and no
// increment is lost.
func TestEtcdctlLosesNoIncrement(t *testing.T) {
	endpoint, r := start(t), register.New(t)
	etcdctl := find(t, "etcdctl")
	const loops, times, ours = 2, 25, 100
	var wg sync.WaitGroup
	holdfasts(t, &wg, endpoint, "shared", r, 2, ours)
	script := filepath.Join(t.TempDir(), "add")
	if err := os.WriteFile(script, fmt.Appendf(nil, "n=$(cat %[1]q); echo $((n+1)) > %[1]q\n", string(r)), 0o600); err != nil {
		t.Fatal(err)
	}
	for range loops {
		wg.Go(func() {
			for range times {
				cmd := exec.CommandContext(t.Context(), etcdctl, "--endpoints", endpoint, "lock", "shared", "sh", script)
				cmd.Env = append(os.Environ(), "ETCDCTL_API=3")
				if out, err := cmd.CombinedOutput(); err != nil {
					t.Errorf("etcdctl: %v: %s", err, out)
					return
				}
			}
		})
	}
	wg.Wait()
	r.Want(t, loops*times+2*ours)
}

// TestJetcdLosesNoIncrement: jetcd's Lock client uses the lock service of the server. The client and
// holdfast add to one register, and no increment is lost.
func TestJetcdLosesNoIncrement(t *testing.T) {
	java, err := exec.LookPath("java")
	if err != nil {
		servertest.Missing(t, err)
	}
	classes, err := filepath.Abs("jetcd/target/classes")
	must.Succeed(t, err)
	if _, err := os.Stat(classes); err != nil {
		servertest.Missing(t, fmt.Errorf("jetcd's peer is not built (make interop): %w", err))
	}
	endpoint, r := start(t), register.New(t)
	const processes, times, ours = 2, 125, 125
	classpath := classes + string(os.PathListSeparator) + filepath.Join(filepath.Dir(classes), "dependency", "*")
	var wg sync.WaitGroup
	var ready sync.WaitGroup
	ready.Add(processes)
	for range processes {
		cmd := exec.CommandContext(t.Context(), java, "-Xmx128m", "-cp", classpath, "holdfast.Peer", "http://"+endpoint, "shared", string(r), strconv.Itoa(times))
		out, err := cmd.StdoutPipe()
		must.Succeed(t, err)
		var output strings.Builder
		cmd.Stderr = &output
		must.Succeed(t, cmd.Start())
		wg.Go(func() {
			lines := bufio.NewScanner(out)
			lines.Scan()
			ready.Done()
			for lines.Scan() {
			}
			if err := cmd.Wait(); err != nil {
				t.Errorf("jetcd: %v: %s", err, output.String())
			}
		})
	}
	ready.Wait() // all processes run, and contend with holdfast
	holdfasts(t, &wg, endpoint, "shared", r, 2, ours)
	wg.Wait()
	r.Want(t, processes*times+2*ours)
}
