// The program bench measures every store of holdfast beside its peers, on real servers that
// it starts:
//
//	go run ./bench
//	go run ./bench -stores redis -works "hot 16x1" -rounds 9
//	go run ./bench -stores redis -contenders "holdfast,rueidislock" -turn 400ms
//	go run ./bench -svg ../docs/images
//	go run ./bench -scale ./bench/scale.txt -svg ../docs/images
//
// The pairs of one goroutine alternate in one loop. In the other works the contenders of a store run in turn, each for a
// second, in several rounds. So other work on the machine slows all of them. The first turn of each is a warm-up. The
// program prints the median of each contender, its spread and its ratio to the best peer. It checks after every turn
// that no two clients held a name at the same time, and that tokens rose strictly. After a turn that breaks a rule the
// program continues, and exits with status 1.
//
// Where a name goes round between processes, the limit is a row of its own: the least requests of a handoff with
// rising tokens, without protection against a process that dies. On free names the bare requests are those of holdfast,
// sent by a client library alone.
//
// Every library has a TTL of 30 s, and its defaults for all other options. The server has
// its defaults.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/internal/servers"
)

var (
	storesFlag     = flag.String("stores", "", "the stores, separated by commas: redis, etcd, zookeeper, nats, mariadb, postgres, file (default all whose server is installed)")
	worksFlag      = flag.String("works", "", "the works, separated by commas (default all)")
	contendersFlag = flag.String("contenders", "", "the contenders, separated by commas (default all)")
	rounds         = flag.Int("rounds", 5, "turns of each contender after the warm-up")
	turn           = flag.Duration("turn", time.Second, "how long a turn takes")
	pairs          = flag.Int("pairs", 2000, "lone pairs of each contender")
	svg            = flag.String("svg", "", "directory for the charts, bench-STORE.svg; none if empty")
	scale          = flag.String("scale", "", "measure nothing, and draw scale.svg from this file")
)

// work describes the clients of a turn, and the names that they lock.
type work struct {
	name                         string
	processes, goroutines, names int
}

var works = []work{
	{"64 free names", 1, 64, 64},
	{"512 free names", 1, 512, 512},
	{"hot 1x16", 1, 16, 1},
	{"hot 4x4", 4, 4, 1},
	{"hot 16x1", 16, 1, 1},
}

func (w work) String() string {
	switch {
	case w.names > 1:
		return fmt.Sprintf("%d goroutines, one name each", w.goroutines)
	case w.processes == 1:
		return fmt.Sprintf("one name, %d goroutines in one process", w.goroutines)
	case w.goroutines == 1:
		return fmt.Sprintf("one name, %d processes of one goroutine", w.processes)
	}
	return fmt.Sprintf("one name, %d processes of %d goroutines", w.processes, w.goroutines)
}

// contested reports whether several clients contend for one name.
func (w work) contested() bool { return w.processes*w.goroutines > w.names }

func main() {
	log.SetFlags(0)
	if os.Getenv(childEnv) != "" {
		if err := child(); err != nil {
			log.Fatal(err)
		}
		return
	}
	flag.Parse()
	if *scale != "" {
		if err := drawScale(*scale, *svg); err != nil {
			log.Fatal(err)
		}
		return
	}
	violated := false
	for _, s := range stores {
		if *storesFlag != "" && !slices.Contains(strings.Split(*storesFlag, ","), s.name) {
			continue
		}
		switch ok, err := measureStore(s); {
		case errors.Is(err, servers.ErrNotInstalled) && *storesFlag == "":
			log.Printf("%s is not measured: %v", s.name, err)
		case err != nil:
			log.Fatalf("%s: %v", s.name, err)
		case !ok:
			violated = true
		}
	}
	if violated {
		os.Exit(1)
	}
}

// result has the turns of one contender in one work.
type result struct {
	contender contender
	turns     []verdict
}

// statistics returns the median, the smallest and the largest of one value of the verdicts.
func (r *result) statistics(value func(verdict) float64) (median, smallest, largest float64) {
	var x []float64
	for _, v := range r.turns {
		x = append(x, value(v))
	}
	slices.Sort(x)
	return x[len(x)/2], x[0], x[len(x)-1]
}

func (r *result) rate() float64 {
	median, _, _ := r.statistics(func(v verdict) float64 { return v.rate })
	return median
}

// measureStore measures one store, prints its tables and writes its chart. It returns
// false if a rule was broken.
func measureStore(s store) (bool, error) {
	dir, err := os.MkdirTemp("", "holdfast-bench-")
	if err != nil {
		return false, err
	}
	defer os.RemoveAll(dir)
	address, stop, err := s.start(context.Background(), dir)
	if err != nil {
		return false, err
	}
	defer stop()
	ok := true
	var all [][]result
	var done []work
	before := load()
	fmt.Printf("\n## %s (load %s)\n", s.name, before)
	chosen := func(name string) bool {
		return *worksFlag == "" || slices.Contains(strings.Split(*worksFlag, ","), name)
	}
	if chosen(loneWork) {
		if err := measureLone(s, address); err != nil {
			return false, fmt.Errorf("%s: %w", loneWork, err)
		}
	}
	for _, w := range works {
		if !chosen(w.name) {
			continue
		}
		results, good, err := measureWork(s, address, w)
		if err != nil {
			return false, fmt.Errorf("%s: %w", w.name, err)
		}
		ok = ok && good
		printWork(w, results)
		all, done = append(all, results), append(done, w)
	}
	after := load()
	fmt.Printf("\nload at the end: %s\n", after)
	if *svg == "" {
		return ok, nil
	}
	return ok, os.WriteFile(filepath.Join(*svg, "bench-"+s.name+".svg"), []byte(chart(s.name, done, all, before, after)), 0o644)
}

func measureWork(s store, address string, w work) (results []result, ok bool, err error) {
	ok = true
	var processes [][]*process // by contender
	defer func() {
		for _, some := range processes {
			for _, p := range some {
				p.end()
			}
		}
	}()
	for _, c := range s.contenders {
		if !c.chosen() || c.lone {
			continue
		}
		if c.bare && w.contested() {
			continue // a bare contender excludes no other client
		}
		if c.limit && (w.processes == 1 || w.goroutines > 1) {
			continue
		}
		results = append(results, result{contender: c})
		var own []*process
		for range w.processes {
			p, err := startProcess(s.name, c.name, address, w)
			if err != nil {
				return nil, false, err
			}
			own = append(own, p)
		}
		processes = append(processes, own)
	}
	for round := range *rounds + 1 {
		for i := range results {
			r := &results[i]
			turns, err := takeTurn(processes[i])
			if err != nil {
				return nil, false, fmt.Errorf("%s: %w", r.contender.name, err)
			}
			v := judge(turns, w, *turn)
			if n := len(v.broken); n > 0 {
				ok = false
				fmt.Printf("VIOLATION: %s: %s: %d times, first: %s\n", w.name, r.contender.name, n, v.broken[0])
			}
			if round > 0 {
				r.turns = append(r.turns, v)
			}
		}
	}
	return results, ok, nil
}

// printWork prints a table in Markdown. Each ratio is to the best peer.
func printWork(w work, results []result) {
	best := 0.0
	for _, r := range results {
		if r.contender.peer {
			best = max(best, r.rate())
		}
	}
	fmt.Printf("\n%s, pairs a second:\n\n| | median (spread) | ratio to the best peer |", w)
	extra := 0
	if w.contested() {
		extra = 2
		fmt.Print(" least to most served | handoff p50, p99 |")
	}
	fmt.Printf("\n| --- | --- | --- |%s\n", strings.Repeat(" --- |", extra))
	for i := range results {
		r := &results[i]
		rate, smallest, largest := r.statistics(func(v verdict) float64 { return v.rate })
		fmt.Printf("| %s | %.0f (%.0f to %.0f) | %.2f |", r.contender.name, rate, smallest, largest, rate/best)
		if w.contested() {
			share, _, _ := r.statistics(func(v verdict) float64 { return v.share })
			p50, _, _ := r.statistics(func(v verdict) float64 { return v.p50 })
			p99, _, _ := r.statistics(func(v verdict) float64 { return v.p99 })
			fmt.Printf(" %.2f | %.0f us, %.0f us |", share, p50, p99)
		}
		fmt.Println()
	}
}

// load returns the load of the machine, where the system reports it.
func load() string {
	b, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	text, _, _ := strings.Cut(string(b), " ")
	return text
}

// command returns this program again, as a process of a contender.
func command() *exec.Cmd { return exec.Command(os.Args[0]) }
