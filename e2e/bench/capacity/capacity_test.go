// Package capacity measures what held and awaited locks cost: the figures of
// docs/capacity.md.
//
//	go test -run '^$' -bench . -benchtime 1x ./bench/capacity
package capacity

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/check/servers"
	_ "github.com/holdfast-go/holdfast/etcdstore"
	_ "github.com/holdfast-go/holdfast/filestore"
	_ "github.com/holdfast-go/holdfast/redisstore"
)

// locks is how many are held, and then awaited.
const locks = 500

// client is the memory of this process: heap and stacks.
func client() float64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc + m.StackInuse)
}

// resident is the memory of a server, 0 without one.
func resident(b *testing.B, pid int) float64 {
	if pid == 0 {
		return 0
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		b.Fatal(err)
	}
	pages, err := strconv.Atoi(strings.Fields(string(text))[1])
	if err != nil {
		b.Fatal(err)
	}
	return float64(pages * os.Getpagesize())
}

func measure(b *testing.B, url string, pid int) {
	holder, waiter := open(b, url), open(b, url)
	each := func(l *holdfast.Locker, ctx context.Context, done func(*holdfast.Lock, error)) *sync.WaitGroup {
		var all sync.WaitGroup
		for i := range locks {
			all.Go(func() { done(l.Lock(ctx, "capacity-"+strconv.Itoa(i))) })
		}
		return &all
	}
	// A first lock opens connections.
	for _, l := range []*holdfast.Locker{holder, waiter} {
		if err := l.Do(b.Context(), "first", func(context.Context) error { return nil }); err != nil {
			b.Fatal(err)
		}
	}
	mine, server := client(), resident(b, pid)
	each(holder, b.Context(), func(_ *holdfast.Lock, err error) {
		if err != nil {
			b.Error(err)
		}
	}).Wait()
	b.ReportMetric((client()-mine)/locks, "client-B/held")
	b.ReportMetric((resident(b, pid)-server)/locks, "server-B/held")
	mine, server = client(), resident(b, pid)
	ctx, cancel := context.WithCancel(b.Context())
	all := each(waiter, ctx, func(*holdfast.Lock, error) {})
	for n := 0; n < locks && !b.Failed(); {
		n = 0
		for st, err := range holder.List(b.Context(), "capacity-") {
			if err != nil {
				b.Fatal(err)
			}
			n += len(st.Waiters)
		}
	}
	b.ReportMetric((client()-mine)/locks, "client-B/awaited")
	b.ReportMetric((resident(b, pid)-server)/locks, "server-B/awaited")
	cancel()
	all.Wait()
}

func open(b *testing.B, url string) *holdfast.Locker {
	l, err := holdfast.Open(b.Context(), url)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = l.Close(context.Background()) })
	return l
}

func BenchmarkCapacity(b *testing.B) {
	b.Run("file", func(b *testing.B) { measure(b, "file://"+b.TempDir(), 0) })
	b.Run("redis", func(b *testing.B) {
		s, err := servers.StartRedis(b.Context(), b.TempDir())
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { _ = s.Stop() })
		measure(b, "redis://"+s.Address(), s.PID())
	})
	b.Run("etcd", func(b *testing.B) {
		s, err := servers.StartEtcd(b.Context(), servers.EtcdConfig{Dir: b.TempDir()})
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { _ = s[0].Stop() })
		measure(b, "etcd://"+s[0].Client, s[0].PID())
	})
}
