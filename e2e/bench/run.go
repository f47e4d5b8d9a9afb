package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"sync"
	"time"
)

// turnResult is the result of one process in one turn.
type turnResult struct {
	Served []int  // pairs of each goroutine within the turn
	Holds  []hold // also those after the turn
	Err    string
}

// hold is the time during which a client held a name, with its token, or 0 without one. The
// time is in nanoseconds of a clock that all processes of the machine share.
type hold struct {
	Name     int
	From, To int64
	Token    uint64
}

// verdict is the result of one turn of one contender.
type verdict struct {
	rate     float64 // pairs a second
	share    float64 // the least pairs of a process, divided by the most; of goroutines, if there is one process
	p50, p99 float64 // from one unlock to the next lock, in microseconds
	broken   []string
}

// judge requires that no two clients hold a name at the same time, in any process. The
// tokens of a name must rise strictly in the order of its holds.
func judge(results []turnResult, w work, turn time.Duration) (v verdict) {
	byName := make([][]hold, w.names)
	var served []int
	total := 0
	for _, r := range results {
		if r.Err != "" {
			v.broken = append(v.broken, r.Err)
		}
		for _, h := range r.Holds {
			byName[h.Name] = append(byName[h.Name], h)
		}
		mine := 0
		for _, n := range r.Served {
			mine += n
		}
		total += mine
		if w.processes > 1 {
			served = append(served, mine)
		} else {
			served = append(served, r.Served...)
		}
	}
	gaps := []float64{0}
	for _, holds := range byName {
		slices.SortFunc(holds, func(x, y hold) int { return int(x.From - y.From) })
		for i := 1; i < len(holds); i++ {
			before, now := holds[i-1], holds[i]
			gaps = append(gaps, float64(now.From-before.To)/1e3)
			if now.From < before.To {
				v.broken = append(v.broken, fmt.Sprintf("two holders: one until %d, the next from %d", before.To, now.From))
			}
			if now.Token <= before.Token && now.Token != 0 {
				v.broken = append(v.broken, fmt.Sprintf("token %d after %d", now.Token, before.Token))
			}
		}
	}
	slices.Sort(gaps)
	v.rate = float64(total) / turn.Seconds()
	v.share = float64(slices.Min(served)) / float64(max(slices.Max(served), 1))
	v.p50, v.p99 = gaps[len(gaps)/2], gaps[len(gaps)*99/100]
	return v
}

// grace is the time after its turn during which a contender may still wait for a lock. A
// peer whose wait is cut short may leave its key for the rest of the TTL, and lose its
// later turns. Some peers wait for a notification that never comes.
const grace = 2 * time.Second

// takeTurnHere runs the goroutines of this process for one turn.
func takeTurnHere(c *client, j job) turnResult {
	ctx, cancel := context.WithTimeout(context.Background(), j.Turn+grace)
	defer cancel()
	res := turnResult{Served: make([]int, j.Goroutines)}
	var mu sync.Mutex
	var all sync.WaitGroup
	fail := func(err error) {
		mu.Lock()
		res.Err = err.Error()
		mu.Unlock()
	}
	began := time.Now()
	for i := range j.Goroutines {
		all.Go(func() {
			var holds []hold
			counted := 0
			number := i % j.Names
			name := fmt.Sprint("bench-", number)
			for time.Since(began) < j.Turn {
				token, unlock, err := c.lock(ctx, name)
				if err != nil {
					if ctx.Err() == nil {
						fail(err)
					}
					break
				}
				if time.Since(began) < j.Turn {
					counted++
				}
				from := monotonic()
				holds = append(holds, hold{number, from, monotonic(), token})
				if err := unlock(); err != nil {
					fail(err)
				}
			}
			mu.Lock()
			res.Served[i] = counted
			res.Holds = append(res.Holds, holds...)
			mu.Unlock()
		})
	}
	all.Wait()
	return res
}

const childEnv = "HOLDFAST_BENCH_CHILD"

// job describes the work of a process in each turn.
type job struct {
	Store, Contender, Address string
	Goroutines, Names         int
	Turn                      time.Duration
}

// child runs one process of a contender. It takes a turn for each line that it reads.
func child() error {
	var j job
	if err := json.Unmarshal([]byte(os.Getenv(childEnv)), &j); err != nil {
		return err
	}
	c := find(j.Store, j.Contender)
	if c == nil {
		return fmt.Errorf("no contender %q of %q", j.Contender, j.Store)
	}
	w, err := c.open(j.Address)
	if err != nil {
		return err
	}
	defer w.close()
	in, out := bufio.NewScanner(os.Stdin), json.NewEncoder(os.Stdout)
	for in.Scan() {
		if err := out.Encode(takeTurnHere(&w, j)); err != nil {
			return err
		}
	}
	return nil
}

// process is a child process, as its parent controls it.
type process struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *json.Decoder
}

func startProcess(store, contender, address string, w work) (*process, error) {
	text, err := json.Marshal(job{store, contender, address, w.goroutines, w.names, *turn})
	if err != nil {
		return nil, err
	}
	c := command()
	c.Env = append(os.Environ(), childEnv+"="+string(text))
	c.Stderr = os.Stderr
	in, err := c.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := c.StdoutPipe()
	if err != nil {
		return nil, err
	}
	return &process{c, in, json.NewDecoder(out)}, c.Start()
}

func (p *process) turn() (r turnResult, err error) {
	if _, err = p.in.Write([]byte("\n")); err == nil {
		err = p.out.Decode(&r)
	}
	return r, err
}

func (p *process) end() {
	_ = p.in.Close()
	_ = p.cmd.Wait()
}

// takeTurn lets all processes of a contender take a turn at the same time.
func takeTurn(crew []*process) ([]turnResult, error) {
	results := make([]turnResult, len(crew))
	errs := make([]error, len(crew))
	var all sync.WaitGroup
	for i, p := range crew {
		all.Go(func() { results[i], errs[i] = p.turn() })
	}
	all.Wait()
	for _, err := range errs {
		if err != nil {
			return nil, err
		}
	}
	return results, nil
}
