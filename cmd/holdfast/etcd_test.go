//go:build linux

package main_test

import (
	"context"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/holdfast-go/holdfast"
	_ "github.com/holdfast-go/holdfast/etcdstore"
	"github.com/holdfast-go/holdfast/internal/servers"
)

// etcdSandbox is a sandbox with an etcd server. A grant at this store expires after its TTL, and the
// next waiter then gets the lock.
type etcdSandbox struct {
	*processSandbox
	server, proxy string // the URLs: direct, and through the proxy
	cut, heal     func()
	locker        *holdfast.Locker
}

func newEtcdSandbox(t *testing.T) *etcdSandbox {
	t.Helper()
	if _, err := servers.Find("etcd"); err != nil {
		missing(t, "etcd")
	}
	members, err := servers.StartEtcd(t.Context(), servers.EtcdConfig{Dir: t.TempDir()})
	must(t, err)
	t.Cleanup(func() { _ = members[0].Stop() })
	proxy, err := servers.NewProxy(members[0].Client)
	must(t, err)
	t.Cleanup(proxy.Close)
	l := &etcdSandbox{processSandbox: newProcessSandbox(t), server: "etcd://" + members[0].Client, proxy: "etcd://" + proxy.Address(), cut: proxy.Cut, heal: func() {
		if err := proxy.Heal(); err != nil {
			t.Error(err)
		}
	}}
	if l.locker, err = holdfast.Open(t.Context(), l.server); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.locker.Close(context.Background()) })
	return l
}

// begin starts a holder whose command is a test process with these words, and a waiter for its lock.
func (l *etcdSandbox) begin(words ...string) (holder, next *process) {
	l.t.Helper()
	holder = l.start(append([]string{"run", "--store", l.proxy, "--ttl", "3s", "--grace", "1s", "x", "--"}, l.testProcess(words...)...)...)
	holder.ready()
	next = l.start(append([]string{"run", "--store", l.server, "x", "--"}, l.lister()...)...)
	awaitQueue(l.t, l.locker, 1)
	return holder, next
}

// awaitExpiry waits until a lease of the holder that was not renewed has expired.
func (l *etcdSandbox) awaitExpiry() {
	l.t.Helper()
	l.run("run", "y", "--", "sleep", "6").expectStatus(l.t, 0)
}

// TestLeaseStoreNeverHasTwoCommands: on a store with leases, the waiter gets the lock only when
// no process of the holder is left. The test kills or stops each process of the holder, and
// cuts the connection.
func TestLeaseStoreNeverHasTwoCommands(t *testing.T) {
	for name, test := range map[string]func(t *testing.T, l *etcdSandbox){
		"the front is killed": func(t *testing.T, l *etcdSandbox) {
			holder, next := l.begin("daemon", "ignores")
			holder.signal(syscall.SIGKILL)
			next.expectGrantedAlone()
		},
		"the front is stopped": func(t *testing.T, l *etcdSandbox) {
			holder, next := l.begin("ends")
			holder.signal(syscall.SIGSTOP)
			l.awaitExpiry()
			awaitQueue(t, l.locker, 1)
			l.endTestProcesses()
			next.expectGrantedAlone()
			holder.signal(syscall.SIGCONT)
			holder.expectStatus(0)
		},
		"the guardian is killed": func(t *testing.T, l *etcdSandbox) {
			holder, next := l.begin("daemon", "closes")
			must(t, syscall.Kill(holder.guardian(), syscall.SIGKILL))
			holder.expectStatus(74)
			next.expectGrantedAlone()
		},
		"the guardian is stopped": func(t *testing.T, l *etcdSandbox) {
			holder, next := l.begin("daemon", "ignores")
			holder.stopGuardian()
			next.expectGrantedAlone()
			holder.continueGuardian()
			holder.expectStatus(74)
		},
		"the store is lost": func(t *testing.T, l *etcdSandbox) {
			holder, next := l.begin("daemon", "ignores")
			l.cut()
			next.expectGrantedAlone()
			holder.stderr.expect("cannot be renewed")
			holder.expectStatus(74)
			for line := range strings.Lines(holder.stderr.all()) {
				if !strings.HasPrefix(line, "holdfast: ") {
					t.Errorf("a line of the store's client library: %q", line)
				}
			}
		},
		// This case shows the limit: no process is left that could end the command in time.
		"the front and the guardian are stopped": func(t *testing.T, l *etcdSandbox) {
			holder, next := l.begin("ignores")
			holder.signal(syscall.SIGSTOP)
			holder.stopGuardian()
			if got := next.stdout.expect("alive: "); !strings.HasPrefix(got, "alive: 1 ") {
				t.Errorf("processes that were alive at the grant: %s, want 1", got)
			}
			holder.continueGuardian()
			holder.signal(syscall.SIGCONT)
			holder.expectStatus(74)
			if alive := marked(l.mark); len(alive) > 0 {
				t.Errorf("test processes are still alive: %v", alive)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, newEtcdSandbox(t))
		})
	}
}

// TestBreakOnLeaseStoreEndsCommand: a store with leases can take a grant away. Break does so, and
// the holder's command ends.
func TestBreakOnLeaseStoreEndsCommand(t *testing.T) {
	t.Parallel()
	for _, flags := range [][]string{nil, {"--force"}} {
		l := newEtcdSandbox(t)
		watch := l.start("watch", "--store", l.server)
		holder, next := l.begin("ends")
		watch.stdout.expect("\twaiting\t")
		st, err := l.locker.Inspect(t.Context(), "x")
		if err != nil || len(st.Holders) != 1 {
			t.Fatalf("%+v, %v", st, err)
		}
		token := strconv.FormatUint(st.Holders[0].Token, 10)
		stale := strconv.FormatUint(st.Holders[0].Token+1<<40, 10)
		args := append([]string{"break", "--store", l.server, "--token"}, stale)
		l.run(append(append(args, flags...), "x")...).expectStatus(t, 75)
		args[len(args)-1] = token
		l.run(append(append(args, flags...), "x")...).expectStatus(t, 0)
		holder.stderr.expect("is lost (taken")
		holder.expectStatus(74)
		next.expectStatus(0)
		watch.stdout.expect("\treleased\t")
	}
}
