// Package sql measures the SQL stores beside the same locks written by hand, on the
// same server in the same run:
//
//	go test -run '^$' -bench . -benchtime 2000x ./bench/sql
//
// SerialPair alternates between the two. It reports the median time of a lock and its
// unlock for each, and their ratio. In FourProcesses four processes wait for one name. It
// reports pairs a second for each, their ratio, and the smallest share of a process; a
// quarter is fair.
package sql

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/holdfast-go/holdfast/e2e/servertest"
	"github.com/holdfast-go/holdfast/internal/must"
	"github.com/holdfast-go/holdfast/internal/servers"
)

const workerEnv = "HOLDFAST_BENCH_SQL"

// job describes the work of a worker process.
type job struct {
	Kind, Address string
	Hand          bool
	For           time.Duration
}

// started are the servers of this run.
var started struct {
	maria *servers.MySQL
	pg    *servers.Postgres
}

func TestMain(m *testing.M) {
	if text := os.Getenv(workerEnv); text != "" {
		if err := work(text); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	code := m.Run()
	if started.maria != nil {
		_ = started.maria.Close()
	}
	if started.pg != nil {
		_ = started.pg.Close()
	}
	os.Exit(code)
}

// address starts the server of a kind unless it runs.
func address(b *testing.B, k kind) string {
	b.Helper()
	var err error
	if k.postgres {
		if started.pg == nil {
			started.pg, err = servers.StartPostgres(context.Background())
		}
	} else if started.maria == nil {
		started.maria, err = servers.StartMariaDB(context.Background())
	}
	servertest.Started(b, err)
	if k.postgres {
		return started.pg.Address
	}
	return started.maria.Address
}

func BenchmarkSerialPair(b *testing.B) {
	for _, k := range kinds {
		b.Run(k.name, func(b *testing.B) {
			at := address(b, k)
			prepare(b, k, at)
			hand, err := k.hand(at, "bench")
			must.Succeed(b, err)
			defer hand.close()
			ours, err := k.ours(at)
			must.Succeed(b, err)
			defer ours.close()
			times := map[*locker][]time.Duration{}
			for range 20 {
				for _, l := range []*locker{hand, ours} { // warm
					must.Succeed(b, l.pair())
				}
			}
			b.ResetTimer()
			for range b.N {
				for _, l := range []*locker{hand, ours} {
					began := time.Now()
					must.Succeed(b, l.pair())
					times[l] = append(times[l], time.Since(began))
				}
			}
			b.StopTimer()
			h, o := median(times[hand]), median(times[ours])
			b.ReportMetric(float64(h.Nanoseconds())/1e3, "hand-µs/pair")
			b.ReportMetric(float64(o.Nanoseconds())/1e3, "holdfast-µs/pair")
			b.ReportMetric(float64(o)/float64(h), "ratio")
			b.ReportMetric(0, "ns/op")
		})
	}
}

func median(all []time.Duration) time.Duration {
	slices.Sort(all)
	return all[len(all)/2]
}

// BenchmarkFreeNames measures 64 callers of one process, each with its own name. Every
// second the benchmark switches between locks by hand, with a connection for each caller,
// and one Locker.
func BenchmarkFreeNames(b *testing.B) {
	const callers, turn = 64, time.Second
	for _, k := range kinds {
		if k.serial {
			continue
		}
		b.Run(k.name, func(b *testing.B) {
			at := address(b, k)
			prepare(b, k, at)
			var hand, ours []func() error
			for i := range callers {
				l, err := k.hand(at, fmt.Sprint("bench", i))
				must.Succeed(b, err)
				defer l.close()
				hand = append(hand, l.pair)
			}
			locker, err := k.open(at)
			must.Succeed(b, err)
			defer locker.Close(b.Context())
			for i := range callers {
				name, last := fmt.Sprint("bench", i), uint64(0)
				ours = append(ours, func() error {
					k, err := locker.Lock(b.Context(), name)
					if err != nil {
						return err
					}
					if k.Token() <= last {
						return fmt.Errorf("%s: token %d after %d", name, k.Token(), last)
					}
					last = k.Token()
					return k.Unlock()
				})
			}
			all := func(pairs []func() error) float64 {
				var n atomic.Int64
				var running errgroup.Group
				end := time.Now().Add(turn)
				for _, pair := range pairs {
					running.Go(func() error {
						for time.Now().Before(end) {
							if err := pair(); err != nil {
								return err
							}
							n.Add(1)
						}
						return nil
					})
				}
				must.Succeed(b, running.Wait())
				return float64(n.Load()) / turn.Seconds()
			}
			var rates [2][]float64
			for range 5 {
				rates[0] = append(rates[0], all(hand))
				rates[1] = append(rates[1], all(ours))
			}
			slices.Sort(rates[0])
			slices.Sort(rates[1])
			b.ReportMetric(rates[0][2], "hand-pairs/s")
			b.ReportMetric(rates[1][2], "holdfast-pairs/s")
			b.ReportMetric(rates[1][2]/rates[0][2], "ratio")
			b.ReportMetric(0, "ns/op")
		})
	}
}

const processes = 4

func BenchmarkFourProcesses(b *testing.B) {
	for _, k := range kinds {
		if k.serial {
			continue
		}
		b.Run(k.name, func(b *testing.B) {
			at := address(b, k)
			prepare(b, k, at)
			each := 2 * time.Second
			var rates [2]float64
			least := 1.0
			for range 2 { // each way has two turns
				for i, hand := range []bool{true, false} {
					counts := runProcesses(b, job{Kind: k.name, Address: at, Hand: hand, For: each})
					sum := 0
					for _, n := range counts {
						sum += n
					}
					rates[i] += float64(sum) / each.Seconds() / 2
					if !hand {
						least = min(least, float64(slices.Min(counts))/float64(sum))
					}
				}
			}
			b.ReportMetric(rates[0], "hand-pairs/s")
			b.ReportMetric(rates[1], "holdfast-pairs/s")
			b.ReportMetric(rates[1]/rates[0], "ratio")
			b.ReportMetric(least, "least-share")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// runProcesses runs the processes and returns how many pairs each completed.
func runProcesses(b *testing.B, j job) []int {
	b.Helper()
	text, err := json.Marshal(j)
	must.Succeed(b, err)
	var all []*exec.Cmd
	var outs []*bufio.Reader
	var ins []io.WriteCloser
	for range processes {
		c := exec.Command(os.Args[0])
		c.Env = append(os.Environ(), workerEnv+"="+string(text))
		c.Stderr = os.Stderr
		in, err := c.StdinPipe()
		must.Succeed(b, err)
		out, err := c.StdoutPipe()
		must.Succeed(b, err)
		must.Succeed(b, c.Start())
		r := bufio.NewReader(out)
		if _, err := r.ReadString('\n'); err != nil { // the process is ready
			b.Fatal(err)
		}
		all, outs = append(all, c), append(outs, r)
		defer in.Close()
		defer func() { _ = c.Process.Kill() }()
		ins = append(ins, in)
	}
	for _, in := range ins { // all processes are ready, and start now
		fmt.Fprintln(in)
	}
	var counts []int
	for i, c := range all {
		var n int
		if _, err := fmt.Fscan(outs[i], &n); err != nil {
			b.Fatal(err)
		}
		counts = append(counts, n)
		must.Succeed(b, c.Wait())
	}
	return counts
}

// work runs a worker process. It reports that it is ready, waits for the start, and counts
// pairs.
func work(text string) error {
	var j job
	if err := json.Unmarshal([]byte(text), &j); err != nil {
		return err
	}
	i := slices.IndexFunc(kinds, func(k kind) bool { return k.name == j.Kind })
	begin := kinds[i].ours
	if j.Hand {
		begin = func(address string) (*locker, error) { return kinds[i].hand(address, "bench") }
	}
	l, err := begin(j.Address)
	if err != nil {
		return err
	}
	defer l.close()
	if err := l.pair(); err != nil {
		return err
	}
	fmt.Println("ready")
	if _, err := bufio.NewReader(os.Stdin).ReadString('\n'); err != nil {
		return err
	}
	n := 0
	for end := time.Now().Add(j.For); time.Now().Before(end); n++ {
		if err := l.pair(); err != nil {
			return err
		}
	}
	fmt.Println(n)
	return nil
}
