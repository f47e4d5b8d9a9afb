//go:build linux

package main_test

import (
	"context"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/check/servers"
	_ "github.com/holdfast-go/holdfast/etcdstore"
)

// leased is a stage with an etcd server. A grant at this store expires after its TTL, and the
// next waiter then gets the lock.
type leased struct {
	*stage
	server, proxy string // the URLs: direct, and through the proxy
	cut, heal     func()
	locker        *holdfast.Locker
}

func newLeased(t *testing.T) *leased {
	t.Helper()
	if _, err := servers.Find("etcd"); err != nil {
		missing(t, "etcd")
	}
	members, err := servers.StartEtcd(t.Context(), servers.EtcdConfig{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = members[0].Stop() })
	proxy, err := servers.NewProxy(members[0].Client)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(proxy.Close)
	l := &leased{stage: newStage(t), server: "etcd://" + members[0].Client, proxy: "etcd://" + proxy.Address(), cut: proxy.Cut, heal: func() {
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

// begin starts a holder whose command is an actor, and a waiter for its lock.
func (l *leased) begin(words ...string) (holder, next *process) {
	l.t.Helper()
	holder = l.start(append([]string{"run", "--store", l.proxy, "--ttl", "3s", "--grace", "1s", "x", "--"}, l.actor(words...)...)...)
	holder.ready()
	next = l.start(append([]string{"run", "--store", l.server, "x", "--"}, l.witness()...)...)
	awaitQueue(l.t, l.locker, 1)
	return holder, next
}

// wait waits for longer than the holder's lease can last.
func (l *leased) wait() {
	l.t.Helper()
	l.run("run", "--min-hold", "6s", "y", "--", "true").expectStatus(l.t, 0)
}

// TestLeaseStoreNeverHasTwoCommands: on a store with leases, the waiter gets the lock only when
// no process of the holder is left. The test kills or stops each process of the holder, and
// cuts the connection.
func TestLeaseStoreNeverHasTwoCommands(t *testing.T) {
	for name, play := range map[string]func(t *testing.T, l *leased){
		"the front is killed": func(t *testing.T, l *leased) {
			holder, next := l.begin("daemon", "ignores")
			holder.signal(syscall.SIGKILL)
			next.alone()
		},
		"the front is stopped": func(t *testing.T, l *leased) {
			holder, next := l.begin("ends")
			holder.signal(syscall.SIGSTOP)
			l.wait()
			awaitQueue(t, l.locker, 1)
			l.release()
			next.alone()
			holder.signal(syscall.SIGCONT)
			if got := holder.status(); got != 0 {
				t.Errorf("status %d, want 0: %s", got, holder.stderr.all())
			}
		},
		"the guardian is killed": func(t *testing.T, l *leased) {
			holder, next := l.begin("daemon", "closes")
			if err := syscall.Kill(holder.guardian(), syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			if got := holder.status(); got != 74 {
				t.Errorf("status %d, want 74", got)
			}
			next.alone()
		},
		"the guardian is stopped": func(t *testing.T, l *leased) {
			holder, next := l.begin("daemon", "ignores")
			holder.stopGuardian()
			next.alone()
			holder.continueGuardian()
			if got := holder.status(); got != 74 {
				t.Errorf("status %d, want 74", got)
			}
		},
		"the store is lost": func(t *testing.T, l *leased) {
			holder, next := l.begin("daemon", "ignores")
			l.cut()
			next.alone()
			holder.stderr.expect("cannot be renewed")
			if got := holder.status(); got != 74 {
				t.Errorf("status %d, want 74", got)
			}
		},
		// This case shows the limit: no process is left that could end the command in time.
		"both are stopped": func(t *testing.T, l *leased) {
			holder, next := l.begin("ignores")
			holder.signal(syscall.SIGSTOP)
			holder.stopGuardian()
			if got := next.stdout.expect("alive: "); !strings.HasPrefix(got, "alive: 1 ") {
				t.Errorf("when it was granted: %s", got)
			}
			holder.continueGuardian()
			holder.signal(syscall.SIGCONT)
			if got := holder.status(); got != 74 {
				t.Errorf("status %d, want 74", got)
			}
			if alive := witnessed(l.mark); len(alive) > 0 {
				t.Errorf("alive: %v", alive)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			play(t, newLeased(t))
		})
	}
}

// TestBreakOnLeaseStoreEndsCommand: a store with leases can take a grant away. Break does so, and
// the holder's command ends.
func TestBreakOnLeaseStoreEndsCommand(t *testing.T) {
	t.Parallel()
	for _, flags := range [][]string{nil, {"--force"}} {
		l := newLeased(t)
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
		if got := holder.status(); got != 74 {
			t.Errorf("%v: status %d, want 74", flags, got)
		}
		if got := next.status(); got != 0 {
			t.Errorf("%v: the next one's status is %d", flags, got)
		}
		watch.stdout.expect("\treleased\t")
	}
}
