package capacity

import (
	"context"
	"flag"
	"fmt"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/must"
	"github.com/holdfast-go/holdfast/internal/servers"
)

var (
	heldLocks = flag.Int("held", 100_000, "how many locks BenchmarkHeld holds")
	heldFor   = flag.Duration("for", 5*time.Minute, "for how long BenchmarkHeld holds its locks")
)

// losses counts lost locks.
type losses struct{ n atomic.Int64 }

func (l *losses) Start(ctx context.Context, _ holdfast.Event) context.Context { return ctx }

func (l *losses) Event(_ context.Context, e holdfast.Event) {
	if e.Kind == holdfast.EventLost {
		l.n.Add(1)
	}
}

// processorTime returns the processor time that this process has used.
func processorTime(b *testing.B) time.Duration {
	var r syscall.Rusage
	must.Succeed(b, syscall.Getrusage(syscall.RUSAGE_SELF, &r))
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// heap returns the live objects on the heap, in bytes.
func heap() float64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc)
}

func startRedis(b *testing.B) (url string) {
	s, err := servers.StartRedis(b.Context(), b.TempDir())
	must.Succeed(b, err)
	b.Cleanup(s.Kill)
	return "redis://" + s.Address()
}

// BenchmarkHeld measures what many held locks with a TTL of 30 s cost their process on one
// Redis: heap, goroutines, and processor time to renew them and to check for early ends. It
// reports the number of lost locks. No other client may be granted a lock that was not lost.
//
//	go test -run '^$' -bench Held -benchtime 1x -timeout 20m ./bench/capacity -held 100000 -for 5m
func BenchmarkHeld(b *testing.B) {
	url := startRedis(b)
	var lost losses
	l, other := open(b, url, holdfast.WithHooks(&lost)), open(b, url)
	for b.Loop() {
		bytes, goroutines := heap(), runtime.NumGoroutine()
		held := make([]*holdfast.Lock, *heldLocks)
		var all sync.WaitGroup
		for worker := range 64 {
			all.Go(func() {
				for i := worker; i < len(held); i += 64 {
					k, err := l.Lock(b.Context(), "held-"+strconv.Itoa(i))
					if err != nil {
						b.Error(err)
						return
					}
					held[i] = k
				}
			})
		}
		all.Wait()
		if b.Failed() {
			return
		}
		b.ReportMetric((heap()-bytes)/float64(len(held)), "heap-B/lock")
		b.ReportMetric(float64(runtime.NumGoroutine()-goroutines), "goroutines")
		used, began := processorTime(b), time.Now()
		time.Sleep(*heldFor)
		b.ReportMetric((processorTime(b)-used).Seconds()/time.Since(began).Seconds(), "cores")
		b.ReportMetric(float64(lost.n.Load()), "lost")
		for i := 0; i < len(held); i += 1 + len(held)/1000 {
			k, err := other.TryLock(b.Context(), held[i].Name())
			if err == nil && held[i].Context().Err() == nil {
				b.Errorf("%s: a second holder, token %d beside %d", held[i].Name(), k.Token(), held[i].Token())
			}
		}
	}
}

// BenchmarkWaiters measures pairs of lock and unlock of one hot name on Redis. Different
// numbers of goroutines contend for it in one process, by default and without local
// handoffs. No two of them may hold the lock at the same time, and tokens rise strictly.
//
//	go test -run '^$' -bench Waiters -benchtime 2s ./bench/capacity
func BenchmarkWaiters(b *testing.B) {
	url := startRedis(b)
	for name, o := range map[string][]holdfast.Option{"default": nil, "without-handoff": {holdfast.LocalHandoff(0)}} {
		for _, waiters := range []int{10, 100, 1000, 10_000} {
			b.Run(fmt.Sprintf("%s/%d", name, waiters), func(b *testing.B) {
				l := open(b, url, o...)
				var holders atomic.Int32
				var last atomic.Uint64
				var left atomic.Int64
				left.Store(int64(b.N))
				lock := func() {
					k, err := l.Lock(b.Context(), "hot")
					if err != nil {
						b.Error(err)
						return
					}
					if n := holders.Add(1); n != 1 {
						b.Errorf("%d holders", n)
					}
					if before := last.Swap(k.Token()); before >= k.Token() {
						b.Errorf("token %d after %d", k.Token(), before)
					}
					holders.Add(-1)
					must.Report(b, k.Unlock())
				}
				b.ResetTimer()
				var all sync.WaitGroup
				for range waiters {
					all.Go(func() {
						for left.Add(-1) >= 0 {
							lock()
						}
					})
				}
				all.Wait()
			})
		}
	}
}
