// Package capacity measures what held and awaited locks cost: the figures of
// docs/capacity.md.
//
//	go test -run '^$' -bench Capacity -benchtime 1x ./bench/capacity
package capacity

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	_ "github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	_ "github.com/holdfast-go/holdfast/etcdstore"
	_ "github.com/holdfast-go/holdfast/filestore"
	"github.com/holdfast-go/holdfast/internal/must"
	"github.com/holdfast-go/holdfast/internal/servers"
	_ "github.com/holdfast-go/holdfast/mysqlstore"
	_ "github.com/holdfast-go/holdfast/pgstore"
	_ "github.com/holdfast-go/holdfast/redisstore"
	_ "github.com/holdfast-go/holdfast/zkstore"
)

// The numbers of locks that are held, and then awaited. Databases get fewer locks, and fewer
// again if each lock needs a connection.
const (
	locks    = 2000
	rows     = 500
	sessions = 50
)

// client returns the memory of this process: heap and stacks.
func client() float64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc + m.StackInuse)
}

// resident returns the memory of a server and its children, or 0 without a server. Pages
// that several processes share count once.
func resident(b *testing.B, pid int) float64 {
	if pid == 0 {
		return 0
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
		return 0 // a child that has ended
	}
	must.Succeed(b, err)
	_, rest, _ := strings.Cut(string(text), "\nPss:")
	kib, err := strconv.Atoi(strings.Fields(rest)[0])
	must.Succeed(b, err)
	sum := float64(kib) * 1024
	children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ESRCH) {
		b.Fatal(err)
	}
	for _, child := range strings.Fields(string(children)) {
		pid, err := strconv.Atoi(child)
		must.Succeed(b, err)
		sum += resident(b, pid)
	}
	return sum
}

// queued counts the locks that a Locker waits for.
type queued struct{ n atomic.Int64 }

func (q *queued) Start(ctx context.Context, _ holdfast.Event) context.Context { return ctx }

func (q *queued) Event(_ context.Context, e holdfast.Event) {
	if e.Kind == holdfast.EventQueued {
		q.n.Add(1)
	}
}

func measure(b *testing.B, url string, pid, locks int) {
	var waiting queued
	holder, waiter := open(b, url), open(b, url, holdfast.WithHooks(&waiting))
	// ahead limits the requests under way to 16, because some stores have a pool of
	// connections.
	ahead := func(i int, done *atomic.Int64) {
		for int64(i) >= done.Load()+16 && !b.Failed() {
			time.Sleep(time.Millisecond)
		}
	}
	lock := func(l *holdfast.Locker, ctx context.Context, i int) error {
		_, err := l.Lock(ctx, "capacity-"+strconv.Itoa(i), holdfast.TTL(2*time.Minute))
		return err
	}
	// The first locks open connections and fill caches.
	for _, l := range []*holdfast.Locker{holder, waiter} {
		var first sync.WaitGroup
		for i := range 16 {
			first.Go(func() {
				for n := range 8 {
					must.Report(b, l.Do(b.Context(), fmt.Sprintf("first-%d-%d", i, n), func(context.Context) error { return nil }))
				}
			})
		}
		first.Wait()
	}
	mine, server := client(), resident(b, pid)
	var held atomic.Int64
	var all sync.WaitGroup
	for i := range locks {
		ahead(i, &held)
		all.Go(func() {
			must.Report(b, lock(holder, b.Context(), i))
			held.Add(1)
		})
	}
	all.Wait()
	b.ReportMetric((client()-mine)/float64(locks), "client-B/held")
	b.ReportMetric((resident(b, pid)-server)/float64(locks), "server-B/held")
	mine, server = client(), resident(b, pid)
	ctx, cancel := context.WithCancel(b.Context())
	for i := range locks {
		ahead(i, &waiting.n)
		all.Go(func() { _ = lock(waiter, ctx, i) })
	}
	for waiting.n.Load() < int64(locks) && !b.Failed() {
		time.Sleep(10 * time.Millisecond)
	}
	time.Sleep(time.Second) // so that the last queue entries are at the server
	b.ReportMetric((client()-mine)/float64(locks), "client-B/awaited")
	b.ReportMetric((resident(b, pid)-server)/float64(locks), "server-B/awaited")
	cancel()
	all.Wait()
}

func open(b *testing.B, url string, o ...holdfast.Option) *holdfast.Locker {
	l, err := holdfast.Open(b.Context(), url, o...)
	must.Succeed(b, err)
	b.Cleanup(func() { _ = l.Close(context.Background()) })
	return l
}

// prepare makes the tables of a store.
func prepare(b *testing.B, raw string) {
	u, err := url.Parse(raw)
	must.Succeed(b, err)
	open, _ := driver.OpenerOf(u.Scheme)
	s, err := open(b.Context(), u, "")
	must.Succeed(b, err)
	defer s.Close(context.Background())
	must.Succeed(b, s.(interface{ Init(context.Context) error }).Init(b.Context()))
}

func BenchmarkCapacity(b *testing.B) {
	b.Run("file", func(b *testing.B) { measure(b, "file://"+b.TempDir(), 0, locks) })
	b.Run("redis", func(b *testing.B) {
		s, err := servers.StartRedis(b.Context(), b.TempDir())
		must.Succeed(b, err)
		b.Cleanup(func() { _ = s.Stop() })
		measure(b, "redis://"+s.Address(), s.PID(), locks)
	})
	b.Run("etcd", func(b *testing.B) {
		s, err := servers.StartEtcd(b.Context(), servers.EtcdConfig{Dir: b.TempDir()})
		must.Succeed(b, err)
		b.Cleanup(func() { _ = s[0].Stop() })
		measure(b, "etcd://"+s[0].Client, s[0].PID(), locks)
	})
	b.Run("zookeeper", func(b *testing.B) {
		s, err := servers.StartZooKeeper(b.Context(), filepath.Join(b.TempDir(), "zookeeper"), servers.ZooKeeperConfig{})
		must.Succeed(b, err)
		b.Cleanup(s.Kill)
		measure(b, "zk://"+s.Address(), s.PID(), locks)
	})
	for recipe, n := range map[string]int{"optimistic": rows, "named": sessions} {
		b.Run("mariadb-"+recipe, func(b *testing.B) {
			s, err := servers.StartMariaDB(b.Context())
			must.Succeed(b, err)
			b.Cleanup(func() { _ = s.Close() })
			url := "mysql://root@" + s.Address + "/test?recipe=" + recipe
			prepare(b, url)
			measure(b, url, s.PID(), n)
		})
	}
	for recipe, n := range map[string]int{"optimistic": rows, "advisory": sessions} {
		b.Run("postgres-"+recipe, func(b *testing.B) {
			s, err := servers.StartPostgres(b.Context())
			must.Succeed(b, err)
			b.Cleanup(func() { _ = s.Close() })
			url := s.URL("postgres", "&recipe="+recipe)
			prepare(b, url)
			measure(b, url, s.PID(), n)
		})
	}
}
