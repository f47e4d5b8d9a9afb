package redis

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/e2e/interop/register"
	"github.com/holdfast-go/holdfast/redisstore/layouts"
)

var handoffs = flag.Int("handoffs", 60, "how often TestRedissonReleaseNotifiesWaiter passes a lock from Java to Go and back")

// TestRedissonExcludesAndNotifies: for each kind of lock, Java holds it while Go waits, and then Go holds it while Java
// waits. The leases outlast the test, so the test fails if a waiter is not notified.
func TestRedissonExcludesAndNotifies(t *testing.T) {
	for _, mode := range modes {
		t.Run(mode, func(t *testing.T) {
			d := start(t, mode)
			java := d.java(t, endless)
			each(t, func(t *testing.T, k kind) {
				q := newQueued()
				l := d.open(t, k.layout, endless, holdfast.WithHooks(q))
				name := k.java + "-shared"
				other := java.lock(k.java, name)
				if k.java == "semaphore" || k.java == "permits" {
					other.does("set", 1)
				}
				other.does("acquire")
				busy(t, l, name, k.option...)
				w := wait(t, l, q, name, k.option...)
				other.does("release")
				mine := w.granted()
				if got := other.does("try"); got != "false" {
					t.Errorf("Java gets the lock that Go holds: %s", got)
				}
				other.send("acquire")
				time.Sleep(rand.N(50 * time.Millisecond)) // so that Java sometimes waits already, and sometimes not
				must(t, mine.Unlock())
				other.await("acquire")
				busy(t, l, name, k.option...)
				other.does("release")
			})
			t.Run("readers", func(t *testing.T) { readers(t, d, java) })
			t.Run("order", func(t *testing.T) { fairOrder(t, d, java) })
			t.Run("tokens", func(t *testing.T) { fencedTokens(t, d, java) })
			t.Run("reentrancy", func(t *testing.T) { reentrancy(t, d, java) })
			t.Run("several permits", func(t *testing.T) { severalPermits(t, d, java) })
			t.Run("operators", func(t *testing.T) { operators(t, d, java) })
			if mode == "single" { // the names of a multi lock may be in different hash slots
				t.Run("multi lock", func(t *testing.T) { multiLock(t, d, java) })
				t.Run("between try and wait", func(t *testing.T) { betweenTryAndWait(t, d, java) })
			}
			d.remains(t)
		})
	}
}

// readers: readers of Java and Go hold the lock together. A writer of each waits for the
// other's readers.
func readers(t *testing.T, d *deployment, java *peer) {
	java.t = t
	q := newQueued()
	l := d.open(t, layouts.RedissonReadWrite, endless, holdfast.WithHooks(q))
	const name = "write-readers"
	read, write := java.lock("read", name), java.lock("write", name)
	read.does("acquire")
	k, err := l.Lock(t.Context(), name, holdfast.Shared())
	must(t, err)
	if got := write.does("try"); got != "false" {
		t.Errorf("a writer of Java beside a reader of Go: %s", got)
	}
	w := wait(t, l, q, name)
	must(t, k.Unlock())
	busy(t, l, name)
	read.does("release")
	k = w.granted()
	if got := read.does("try"); got != "false" {
		t.Errorf("a reader of Java beside a writer of Go: %s", got)
	}
	read.send("acquire")
	must(t, k.Unlock())
	read.await("acquire")
	read.does("release")
	// A writer of Java waits for a reader of Go, and excludes it.
	one, err := l.Lock(t.Context(), name, holdfast.Shared())
	must(t, err)
	write.send("acquire")
	must(t, one.Unlock())
	write.await("acquire")
	busy(t, l, name, holdfast.Shared())
	w = wait(t, l, q, name, holdfast.Shared())
	write.does("release")
	must(t, w.granted().Unlock())
	java.lock("write", name).does("acquire")
	java.lock("write", name).does("release")
}

// betweenTryAndWait releases a write lock as soon as the server has refused Redisson's last try before
// its wait. While no thread waits, Redisson drops the messages of its own writers.
func betweenTryAndWait(t *testing.T, d *deployment, java *peer) {
	java.t = t
	l := d.open(t, layouts.RedissonReadWrite, endless)
	other := java.lock("write", "write-between")
	other.does("acquire") // loads Redisson's scripts
	other.does("release")
	try := fmt.Sprintf(` "1" %q "%d" "`, other.name, endless.Milliseconds())
	monitor, err := net.Dial("tcp", d.address)
	must(t, err)
	defer monitor.Close()
	_, err = io.WriteString(monitor, "MONITOR\r\n")
	must(t, err)
	commands := bufio.NewScanner(monitor)
	scan := func(part string) { // scan reads until a line contains part
		must(t, monitor.SetReadDeadline(time.Now().Add(testTimeout)))
		for commands.Scan() {
			if strings.Contains(commands.Text(), part) {
				return
			}
		}
		t.Fatalf("MONITOR ends without %q: %v", part, commands.Err())
	}
	scan("+OK") // from now on the server shows each command
	for range 300 {
		k, err := l.Lock(t.Context(), other.name)
		must(t, err)
		other.send("acquire")
		scan(try) // before Redisson subscribes
		scan(try) // after
		must(t, k.Unlock())
		other.await("acquire")
		scan(try) // succeeds
		other.does("release")
	}
}

// fairOrder: Redisson's queue serves the waiters of Java and Go in the order of their
// entries.
func fairOrder(t *testing.T, d *deployment, java *peer) {
	java.t = t
	q := newQueued()
	first, later := d.open(t, layouts.RedissonFair, endless), d.open(t, layouts.RedissonFair, endless, holdfast.WithHooks(q))
	const name = "fair-order"
	k, err := first.Lock(t.Context(), name)
	must(t, err)
	one, two := java.lock("fair", name), java.lock("fair", name)
	two.thread += "/2"
	one.send("acquire")
	d.queue(t, name, 1)
	w := wait(t, later, q, name)
	d.queue(t, name, 2)
	two.send("acquire")
	d.queue(t, name, 3)
	must(t, k.Unlock())
	one.await("acquire")
	select {
	case <-w.got:
		t.Fatal("a later waiter was served with the first")
	default:
	}
	one.does("release")
	k = w.granted()
	if got := one.does("try"); got != "false" {
		t.Errorf("Java overtakes: %s", got)
	}
	must(t, k.Unlock())
	two.await("acquire")
	two.does("release")
	// A waiter of Go is cancelled, and the waiter behind it is granted.
	k, err = first.Lock(t.Context(), name)
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	left := make(chan error, 1)
	go func() {
		_, err := later.Lock(ctx, name)
		left <- err
	}()
	d.queue(t, name, 1)
	one.send("acquire")
	d.queue(t, name, 2)
	cancel()
	if err := <-left; err == nil {
		t.Error("granted beside its holder")
	}
	must(t, k.Unlock())
	one.await("acquire")
	one.does("release")
}

// queue waits until a fair lock has n waiters.
func (d *deployment) queue(t *testing.T, name string, n int) {
	t.Helper()
	for end := time.Now().Add(testTimeout); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		for _, r := range d.nodes {
			if got, err := r.Do(t.Context(), "LLEN", "redisson_lock_queue:{"+name+"}"); err == nil && got == int64(n) {
				return
			}
		}
	}
	t.Fatalf("%s: not %d waiters", name, n)
}

// fencedTokens: tokens rise strictly when Java and Go hold the lock by turns.
func fencedTokens(t *testing.T, d *deployment, java *peer) {
	java.t = t
	l := d.open(t, layouts.RedissonFenced, endless)
	other := java.lock("fenced", "fenced-tokens")
	last := uint64(0)
	for range 5 {
		token, err := strconv.ParseUint(other.does("acquire"), 10, 64)
		must(t, err)
		other.does("release")
		k, err := l.Lock(t.Context(), other.name)
		must(t, err)
		if token <= last || k.Token() <= token {
			t.Errorf("tokens %d, %d of Java, %d of Go", last, token, k.Token())
		}
		last = k.Token()
		must(t, k.Unlock())
	}
}

// reentrancy: a thread of Java and a context of Go can take a lock again that they hold. No
// other thread or context can.
func reentrancy(t *testing.T, d *deployment, java *peer) {
	java.t = t
	l := d.open(t, layouts.Redisson, endless)
	const name = "lock-reentrancy"
	one, two := java.lock("lock", name), java.lock("lock", name)
	two.thread += "/2"
	one.does("acquire")
	one.does("acquire")
	if got := two.does("try"); got != "false" {
		t.Errorf("another thread of Java enters: %s", got)
	}
	busy(t, l, name)
	one.does("release")
	busy(t, l, name)
	one.does("release")

	k, err := l.Lock(t.Context(), name)
	must(t, err)
	again, err := l.Lock(k.Context(), name, holdfast.Reentrant())
	must(t, err)
	busy(t, l, name) // another context of the same Locker
	busy(t, d.open(t, layouts.Redisson, endless), name)
	for _, thread := range []lock{one, two} {
		if got := thread.does("try"); got != "false" {
			t.Errorf("a thread of Java enters Go's lock: %s", got)
		}
		if got := thread.does("held"); got != "false" {
			t.Errorf("a thread of Java takes Go's lock for its own: %s", got)
		}
	}
	must(t, again.Unlock())
	if got := one.does("try"); got != "false" {
		t.Errorf("Java enters after the inner of two unlocks: %s", got)
	}
	must(t, k.Unlock())
	if got := one.does("try"); got != "true" {
		t.Errorf("Java does not get a free lock: %s", got)
	}
	one.does("release")
}

// severalPermits: permits that Java and Go hold count together towards the limit.
func severalPermits(t *testing.T, d *deployment, java *peer) {
	java.t = t
	for _, of := range kinds[5:] {
		q := newQueued()
		l := d.open(t, of.layout, endless, holdfast.WithHooks(q), holdfast.Defaults())
		name := of.java + "-several"
		one, two := java.lock(of.java, name), java.lock(of.java, name)
		two.thread += "/2"
		one.does("set", 2)
		one.does("acquire")
		k, err := l.Lock(t.Context(), name, holdfast.Limit(2), holdfast.TTL(endless))
		must(t, err)
		busy(t, l, name, holdfast.Limit(2))
		if got := two.does("try"); got != "false" {
			t.Errorf("%s: a third permit of two: %s", of.java, got)
		}
		two.send("acquire")
		must(t, k.Unlock())
		two.await("acquire")
		w := wait(t, l, q, name, holdfast.Limit(2), holdfast.TTL(endless))
		one.does("release")
		must(t, w.granted().Unlock())
		two.does("release")
		if got := one.does("free"); got != "2" {
			t.Errorf("%s: %s permits are free in the end, want 2", of.java, got)
		}
	}
}

// operators: holdfast inspects and lists Java's lock. If Java's forceUnlock ends a lock of
// Go, its holder is notified. If holdfast breaks a lock, Java gets it.
func operators(t *testing.T, d *deployment, java *peer) {
	java.t = t
	l := d.operator(t, layouts.Redisson)
	const name = "lock-operators"
	other := java.lock("lock", name)
	other.does("acquire")
	st, err := l.Inspect(t.Context(), name)
	if err != nil || len(st.Holders) != 1 || st.Holders[0].Note == "" || st.Holders[0].Token != 0 {
		t.Errorf("%+v, %v", st, err)
	}
	var listed []string
	for st, err := range l.List(t.Context(), "lock-") {
		must(t, err)
		listed = append(listed, st.Name)
	}
	if !slices.Contains(listed, name) {
		t.Errorf("List shows %q, not %s", listed, name)
	}
	other.does("release")
	k, err := l.Lock(t.Context(), name)
	must(t, err)
	if got := other.does("force"); got != "true" {
		t.Errorf("Java's forceUnlock: %s", got)
	}
	select {
	case <-k.Context().Done():
	case <-time.After(testTimeout):
		t.Error("the holder did not notice Java's forceUnlock")
	}
	_ = k.Unlock()
	k, err = l.Lock(t.Context(), name)
	must(t, err)
	other.send("acquire")
	must(t, l.Break(t.Context(), name, k.Token()))
	other.await("acquire")
	other.does("release")
	_ = k.Unlock()
}

// multiLock: Redisson's multi lock and DoAll exclude each other.
func multiLock(t *testing.T, d *deployment, java *peer) {
	java.t = t
	q := newQueued()
	l := d.open(t, layouts.Redisson, endless, holdfast.WithHooks(q))
	names := []string{"lock-multi-a", "lock-multi-b"}
	other := java.lock("multi", names[0]+","+names[1])
	other.does("acquire")
	for _, name := range names {
		busy(t, l, name)
	}
	got := make(chan error, 1)
	held, end := make(chan struct{}), make(chan struct{})
	go func() {
		got <- l.DoAll(t.Context(), names, func(context.Context) error {
			close(held)
			<-end
			return nil
		})
	}()
	<-q.all
	other.does("release")
	select {
	case <-held:
	case err := <-got:
		t.Fatal(err)
	case <-time.After(testTimeout):
		t.Fatal("DoAll does not get what Java has released")
	}
	if got := other.does("try"); got != "false" {
		t.Errorf("Java gets a multi lock of which Go holds all: %s", got)
	}
	other.send("acquire")
	close(end)
	must(t, <-got)
	other.await("acquire")
	other.does("release")
}

// TestRedissonLocksOfDeadClientsExpire: a Java process and a Go process hold a lock of each kind for several
// leases. The test then kills both. Afterwards Go gets each lock of Java, and Java each
// lock of Go.
func TestRedissonLocksOfDeadClientsExpire(t *testing.T) {
	for _, mode := range modes {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			d := start(t, mode)
			java, victim, worker := d.java(t, lease), d.java(t, lease), d.worker(t)
			// Redisson renews its permits only by calls of the program. The permits of its
			// semaphore have no lease.
			var ofJava, ofGo []lock
			for _, k := range kinds {
				if k.java != "semaphore" && k.java != "permits" {
					ofJava = append(ofJava, victim.lock(k.java, k.java+"-of-java"))
				}
				ofGo = append(ofGo, worker.lock(k.java, k.java+"-of-go"))
			}
			ofJava = append(ofJava, victim.lock("read", "write-of-java-reader"))
			permit := victim.lock("permits", "permits-of-java")
			permit.does("set", 1)
			permit.does("acquire", lease.Milliseconds())
			permit.does("renew", (5 * lease).Milliseconds())
			renewed := time.Now()
			for _, k := range slices.Concat(ofJava, ofGo) {
				k.does("acquire")
			}
			lockers := map[string]*holdfast.Locker{}
			for _, k := range kinds {
				lockers[k.java] = d.operator(t, k.layout, append(k.option, holdfast.TTL(lease))...)
			}
			lockers["read"] = lockers["write"]
			held := func() {
				for _, k := range ofJava {
					busy(t, lockers[k.kind], k.name)
				}
				l, err := lockers["permits"].TryLock(t.Context(), permit.name)
				if err == nil && time.Since(renewed) < 4*lease {
					t.Error("Go gets a permit that Java has prolonged")
				}
				if err == nil {
					must(t, l.Unlock())
				}
				for _, k := range ofGo {
					k.does("held")
					if got := java.lock(k.kind, k.name).does("try"); got != "false" {
						t.Errorf("Java gets %s, which Go holds", k.name)
					}
				}
			}
			time.Sleep(5 * lease / 2) // each lock was renewed, or has expired
			held()
			victim.kill()
			worker.kill()
			got := make(chan error)
			for _, k := range append(ofJava, permit) {
				go func() { got <- lockers[k.kind].Do(t.Context(), k.name, func(context.Context) error { return nil }) }()
			}
			for _, k := range ofGo {
				// The next request of a holdfast client returns the permits of a dead
				// holdfast client.
				if k.kind == "semaphore" {
					must(t, lockers[k.kind].Do(t.Context(), k.name, func(context.Context) error { return nil }))
				}
				java.lock(k.kind, k.name).send("acquire")
			}
			for range append(ofJava, permit) {
				select {
				case err := <-got:
					must(t, err)
				case <-time.After(testTimeout):
					t.Fatal("holdfast does not get the lock of a dead Java process")
				}
			}
			for _, k := range ofGo {
				mine := java.lock(k.kind, k.name)
				mine.await("acquire")
				mine.does("release")
			}
			d.remains(t)
		})
	}
}

func TestRedissonLosesNoIncrement(t *testing.T) {
	d := start(t, "single")
	contend(t, "lock", 125, d.java(t, 30*time.Second), d.java(t, 30*time.Second), d.worker(t), d.worker(t))
	d.remains(t)
}

// contend lets all peers add to one register, and requires that the sum is exact.
func contend(t *testing.T, kind string, times int, all ...*peer) {
	t.Helper()
	r := register.New(t)
	for _, p := range all {
		p.lock(kind, kind+"-sum").send("count", string(r), times)
	}
	for _, p := range all {
		p.lock(kind, kind+"-sum").await("count")
	}
	r.Want(t, times*len(all))
}

// TestRedissonReleaseNotifiesWaiter hands a lock over from Java to Go and back. A waiter that is not notified waits
// for the end of the lease. So 99 % of the handoffs must take less than a tenth of the lease.
func TestRedissonReleaseNotifiesWaiter(t *testing.T) {
	const lease = 30 * time.Second
	d := start(t, "single")
	java := d.java(t, lease).lock("lock", "lock-handoffs")
	l := d.open(t, layouts.Redisson, lease)
	clock := func() time.Duration { // the same clock as Java's System.nanoTime
		var ts unix.Timespec
		must(t, unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts))
		return time.Duration(ts.Nano())
	}
	java.does("acquire")
	var took []time.Duration
	for range (*handoffs + 1) / 2 {
		at := make(chan time.Duration, 1)
		got := make(chan *holdfast.Lock, 1)
		go func() {
			k, err := l.Lock(t.Context(), java.name)
			at <- clock()
			if err != nil {
				t.Error(err)
			}
			got <- k
		}()
		time.Sleep(rand.N(3 * time.Millisecond)) // in this time Go may begin to wait
		released, err := strconv.ParseInt(java.does("release"), 10, 64)
		must(t, err)
		took = append(took, <-at-time.Duration(released))
		k := <-got
		if k == nil {
			t.FailNow()
		}
		java.send("acquire")
		time.Sleep(rand.N(3 * time.Millisecond))
		began := clock()
		must(t, k.Unlock())
		granted, err := strconv.ParseInt(java.await("acquire"), 10, 64)
		must(t, err)
		took = append(took, time.Duration(granted)-began)
	}
	java.does("release")
	slices.Sort(took)
	p99 := took[len(took)*99/100]
	t.Logf("%d handoffs: p50 %s, p99 %s, most %s", len(took), took[len(took)/2], p99, took[len(took)-1])
	if p99 >= lease/10 {
		t.Errorf("p99 is %s, want less than a tenth of the lease of %s", p99, lease)
	}
	d.remains(t)
}
