package redis

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	redsyncgoredis "github.com/go-redsync/redsync/v4/redis/goredis/v9"
	goredis "github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"

	"github.com/holdfast-go/holdfast"
)

// One hot name: every goroutine of every process takes the same lock again and again, as
// each library comes, with no option but a TTL of 30 s.

// worker is a client of one process. lock returns the fencing token, 0 if the library has
// none, and how to unlock.
type worker struct {
	lock  func(ctx context.Context, name string) (token uint64, unlock func() error, err error)
	close func()
}

// hotWorkers makes the contenders, the store's default first.
var hotWorkers = []struct {
	name string
	open func(address string) (worker, error)
}{
	{"holdfast", func(address string) (worker, error) { return holdfastWorker(address) }},
	{"holdfast, handoff off", func(address string) (worker, error) {
		return holdfastWorker(address, holdfast.LocalHandoff(0))
	}},
	{"redislock", func(address string) (worker, error) {
		c := goredis.NewClient(&goredis.Options{Addr: address, PoolSize: 64})
		l := redislock.New(c)
		// It does not wait by itself. The shortest pause between two tries is the fastest
		// for it, and costs the most processor time.
		o := &redislock.Options{RetryStrategy: redislock.LinearBackoff(time.Microsecond)}
		return worker{close: func() { _ = c.Close() }, lock: func(ctx context.Context, name string) (uint64, func() error, error) {
			k, err := l.Obtain(ctx, "redislock:"+name, 30*time.Second, o)
			if err != nil {
				return 0, nil, err
			}
			return 0, func() error { return k.Release(context.Background()) }, nil
		}}, nil
	}},
	{"redsync", func(address string) (worker, error) {
		c := goredis.NewClient(&goredis.Options{Addr: address, PoolSize: 64})
		rs := redsync.New(redsyncgoredis.NewPool(c))
		return worker{close: func() { _ = c.Close() }, lock: func(ctx context.Context, name string) (uint64, func() error, error) {
			m := rs.NewMutex("redsync:"+name, redsync.WithExpiry(30*time.Second), redsync.WithTries(1<<30))
			if err := m.LockContext(ctx); err != nil {
				return 0, nil, err
			}
			return 0, func() error { _, err := m.UnlockContext(context.Background()); return err }, nil
		}}, nil
	}},
	{"rueidislock", func(address string) (worker, error) {
		l, err := rueidislock.NewLocker(rueidislock.LockerOption{
			ClientOption: rueidis.ClientOption{InitAddress: []string{address}}, KeyMajority: 1, KeyValidity: 30 * time.Second, NoLoopTracking: true,
		})
		if err != nil {
			return worker{}, err
		}
		return worker{close: l.Close, lock: func(ctx context.Context, name string) (uint64, func() error, error) {
			_, release, err := l.WithContext(ctx, name)
			return 0, func() error { release(); return nil }, err
		}}, nil
	}},
}

func holdfastWorker(address string, o ...holdfast.Option) (worker, error) {
	l, err := holdfast.Open(context.Background(), "redis://"+address, o...)
	if err != nil {
		return worker{}, err
	}
	return worker{close: func() { _ = l.Close(context.Background()) }, lock: func(ctx context.Context, name string) (uint64, func() error, error) {
		k, err := l.Lock(ctx, name)
		if err != nil {
			return 0, nil, err
		}
		return k.Token(), k.Unlock, nil
	}}, nil
}

// turnResult is what one process did in one turn. Holds are [from, to, token], in
// nanoseconds of the system's monotonic clock.
type turnResult struct {
	Served []int // by goroutine
	Holds  [][3]int64
	Err    string
}

const hotTurn = time.Second

// hotProcess runs the goroutines of one process for one turn.
func hotProcess(w *worker, goroutines int) turnResult {
	ctx, cancel := context.WithTimeout(context.Background(), hotTurn+200*time.Millisecond)
	defer cancel()
	res := turnResult{Served: make([]int, goroutines)}
	var mu sync.Mutex
	var inside atomic.Int32
	var all sync.WaitGroup
	fail := func(err error) {
		mu.Lock()
		res.Err = err.Error()
		mu.Unlock()
	}
	began := time.Now()
	for i := range goroutines {
		all.Go(func() {
			var holds [][3]int64
			for time.Since(began) < hotTurn {
				token, unlock, err := w.lock(ctx, "hot")
				if err != nil {
					if ctx.Err() == nil {
						fail(err)
					}
					break
				}
				from := monotonic()
				if inside.Add(1) != 1 {
					fail(errors.New("two holders in one process"))
				}
				inside.Add(-1)
				holds = append(holds, [3]int64{from, monotonic(), int64(token)})
				if err := unlock(); err != nil {
					fail(err)
				}
			}
			mu.Lock()
			res.Served[i] = len(holds)
			res.Holds = append(res.Holds, holds...)
			mu.Unlock()
		})
	}
	all.Wait()
	return res
}

// verdict is what one turn of one contender came to: pairs a second, the least to the
// most served process and goroutine, and the time between one hold and the next in us.
type verdict struct{ rate, processes, goroutines, p50, p99, longest float64 }

// judgeHot requires that no two holds overlap, in any process, and that tokens rise
// strictly in the order of the holds.
func judgeHot(b *testing.B, name string, results []turnResult) (v verdict) {
	b.Helper()
	var holds [][3]int64
	var byProcess, byGoroutine []int
	for _, r := range results {
		if r.Err != "" {
			b.Errorf("%s: %s", name, r.Err)
		}
		holds = append(holds, r.Holds...)
		byProcess = append(byProcess, len(r.Holds))
		byGoroutine = append(byGoroutine, r.Served...)
	}
	slices.SortFunc(holds, func(x, y [3]int64) int { return int(x[0] - y[0]) })
	gaps := []float64{0}
	for i := 1; i < len(holds); i++ {
		before, now := holds[i-1], holds[i]
		gaps = append(gaps, float64(now[0]-before[1])/1e3)
		if now[0] < before[1] {
			b.Fatalf("%s: two holders: one until %d, the next from %d", name, before[1], now[0])
		}
		if now[2] != 0 && now[2] <= before[2] {
			b.Fatalf("%s: token %d after %d", name, now[2], before[2])
		}
	}
	least := func(n []int) float64 { return float64(slices.Min(n)) / float64(max(slices.Max(n), 1)) }
	slices.Sort(gaps)
	return verdict{
		float64(len(holds)) / hotTurn.Seconds(), least(byProcess), least(byGoroutine),
		gaps[len(gaps)/2], gaps[len(gaps)*99/100], gaps[len(gaps)-1],
	}
}

// hotChild is one of several processes: it makes a turn for each line that it reads.
func hotChild(address, contender string, goroutines int) error {
	for _, c := range hotWorkers {
		if c.name != contender {
			continue
		}
		w, err := c.open(address)
		if err != nil {
			return err
		}
		defer w.close()
		in, out := bufio.NewScanner(os.Stdin), json.NewEncoder(os.Stdout)
		for in.Scan() {
			if err := out.Encode(hotProcess(&w, goroutines)); err != nil {
				return err
			}
		}
		return nil
	}
	return fmt.Errorf("no contender %q", contender)
}

func TestMain(m *testing.M) {
	if c := os.Getenv("HOLDFAST_BENCH_CHILD"); c != "" {
		var n int
		_, _ = fmt.Sscan(os.Getenv("HOLDFAST_BENCH_GOROUTINES"), &n)
		if err := hotChild(os.Getenv("HOLDFAST_BENCH_ADDRESS"), c, n); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

type hotProc struct {
	turn func() (turnResult, error)
	end  func()
}

func startHot(b *testing.B, address, contender string, goroutines int) hotProc {
	b.Helper()
	c := exec.Command(os.Args[0])
	c.Env = append(os.Environ(), "HOLDFAST_BENCH_CHILD="+contender, "HOLDFAST_BENCH_ADDRESS="+address, fmt.Sprintf("HOLDFAST_BENCH_GOROUTINES=%d", goroutines))
	c.Stderr = os.Stderr
	in, err := c.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	pipe, err := c.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := c.Start(); err != nil {
		b.Fatal(err)
	}
	out := json.NewDecoder(pipe)
	return hotProc{
		turn: func() (r turnResult, err error) {
			if _, err = in.Write([]byte("\n")); err == nil {
				err = out.Decode(&r)
			}
			return r, err
		},
		end: func() {
			_ = in.Close()
			_ = c.Wait()
		},
	}
}

// BenchmarkHotName: one name, with 16 goroutines in one process, 4 processes of 4, and 16
// processes of 1. The contenders take turns of a second, and every turn is judged.
func BenchmarkHotName(b *testing.B) {
	for _, shape := range []struct{ processes, goroutines int }{{1, 16}, {4, 4}, {16, 1}} {
		b.Run(fmt.Sprintf("%dx%d", shape.processes, shape.goroutines), func(b *testing.B) {
			r := start(b)
			crews := make([][]hotProc, len(hotWorkers))
			for i, c := range hotWorkers {
				for range shape.processes {
					p := startHot(b, r.Address(), c.name, shape.goroutines)
					defer p.end()
					crews[i] = append(crews[i], p)
				}
			}
			for b.Loop() {
				turns := map[string][]verdict{}
				for round := range rounds + 1 {
					for i, c := range hotWorkers {
						results := make([]turnResult, shape.processes)
						var all sync.WaitGroup
						for j, p := range crews[i] {
							all.Go(func() {
								var err error
								if results[j], err = p.turn(); err != nil {
									b.Errorf("%s: %v", c.name, err)
								}
							})
						}
						all.Wait()
						v := judgeHot(b, c.name, results)
						if round > 0 { // the first is to warm up
							turns[c.name] = append(turns[c.name], v)
						}
					}
				}
				for _, c := range hotWorkers {
					of := func(part func(v verdict) float64) []float64 {
						var x []float64
						for _, v := range turns[c.name] {
							x = append(x, part(v))
						}
						slices.Sort(x)
						return x
					}
					middle := func(part func(v verdict) float64) float64 { return of(part)[rounds/2] }
					rates := of(func(v verdict) float64 { return v.rate })
					b.Logf("%-22s %8.0f pairs/s (%.0f to %.0f), least to most served: process %.2f, goroutine %.2f; handover p50 %.0f us, p99 %.0f us, longest %.0f us",
						c.name, rates[rounds/2], rates[0], rates[rounds-1],
						middle(func(v verdict) float64 { return v.processes }), middle(func(v verdict) float64 { return v.goroutines }),
						middle(func(v verdict) float64 { return v.p50 }), middle(func(v verdict) float64 { return v.p99 }), of(func(v verdict) float64 { return v.longest })[rounds-1])
				}
			}
		})
	}
}
