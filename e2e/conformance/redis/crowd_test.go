package redis

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/check/servers"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/redisstore"
)

// crowdEnv makes this binary a process full of Lockers.
const crowdEnv = "HOLDFAST_TEST_CROWD"

type crowdJob struct {
	URL, Name string
	Process   int
	Lockers   int
}

type crowdGrant struct {
	Token uint64
	Who   string
}

// crowd waits for one name with many Lockers and tells who got it.
func crowd() {
	var job crowdJob
	fail := func(err error) {
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	fail(json.Unmarshal([]byte(os.Getenv(crowdEnv)), &job))
	ctx := context.Background()
	out := json.NewEncoder(os.Stdout)
	var mu sync.Mutex
	var all sync.WaitGroup
	var lockers []*holdfast.Locker
	for i := range job.Lockers {
		// A machine that starts them all at once may be slow to answer the first.
		l, err := holdfast.Open(ctx, job.URL, holdfast.RequestTimeout(time.Minute))
		for end := time.Now().Add(time.Minute); errors.Is(err, holdfast.ErrUnavailable) && time.Now().Before(end); {
			l, err = holdfast.Open(ctx, job.URL, holdfast.RequestTimeout(time.Minute))
		}
		fail(err)
		lockers = append(lockers, l)
		all.Go(func() {
			who := fmt.Sprintf("%d-%d", job.Process, i)
			k, err := l.Lock(ctx, job.Name, holdfast.Reason(who), holdfast.TTL(5*time.Minute))
			fail(err)
			g := crowdGrant{k.Token(), who}
			fail(k.Unlock())
			mu.Lock()
			fail(out.Encode(g))
			mu.Unlock()
		})
	}
	all.Wait()
	// What closing costs is not counted among the costs of a grant.
	_, _ = os.Stdin.Read(make([]byte, 1))
	for _, l := range lockers {
		fail(l.Close(ctx))
	}
}

// sent is how many commands clients have sent, by kind. What scripts call counts
// in the same place: these are not called by scripts.
var sentKinds = []string{"evalsha", "eval", "ping", "subscribe", "unsubscribe", "script|load", "wait"}

func sent(t testing.TB, r *servers.Redis) (n int) {
	for _, c := range sentKinds {
		n += calls(t, r, c)
	}
	return n
}

// TestCrowd: Lockers in many processes wait for one name. They are served in the
// order in which they came, with few commands for each.
func TestCrowd(t *testing.T) {
	processes, lockers := 8, 250
	if testing.Short() {
		lockers = 25
	}
	if s := os.Getenv("HOLDFAST_TEST_CROWD_LOCKERS"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil {
			t.Fatal(err)
		}
		lockers = n
	}
	// Thousands connect at a time: with the usual backlog some would be heard only
	// when they have asked again, seconds later.
	r := start(t, "--maxclients", "20000", "--tcp-backlog", "4096")
	url := "redis://" + r.Address()
	l, err := holdfast.Open(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close(context.Background())
	k, err := l.Lock(t.Context(), "hot", holdfast.TTL(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	var got []crowdGrant
	var stdins []io.Closer
	served := make(chan struct{}, processes*lockers)
	var mu sync.Mutex
	var all sync.WaitGroup
	t.Cleanup(all.Wait) // once they are killed
	for p := range processes {
		job, _ := json.Marshal(crowdJob{url, "hot", p, lockers})
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), crowdEnv+"="+string(job))
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cmd.Process.Kill() })
		stdins = append(stdins, in)
		all.Go(func() {
			lines := bufio.NewScanner(out)
			for lines.Scan() {
				var g crowdGrant
				if err := json.Unmarshal(lines.Bytes(), &g); err != nil {
					t.Errorf("%q: %v", lines.Text(), err)
				}
				mu.Lock()
				got = append(got, g)
				mu.Unlock()
				served <- struct{}{}
			}
			if err := cmd.Wait(); err != nil {
				t.Error(err)
			}
		})
	}
	n := processes * lockers
	var st holdfast.State
	for end := time.Now().Add(3 * time.Minute); len(st.Waiters) < n; time.Sleep(100 * time.Millisecond) {
		// They may keep the machine so busy that no answer comes in time.
		if st, err = l.Inspect(t.Context(), "hot"); err != nil && !errors.Is(err, holdfast.ErrUnavailable) {
			t.Fatal(err)
		}
		if t.Failed() || time.Now().After(end) {
			t.Fatalf("%d of %d wait", len(st.Waiters), n)
		}
	}
	before, began := sent(t, r), time.Now()
	if err := k.Unlock(); err != nil {
		t.Fatal(err)
	}
	for i := range n {
		select {
		case <-served:
		case <-time.After(2 * time.Minute):
			t.Fatalf("%d of %d were served", i, n)
		}
	}
	took := time.Since(began)
	drain, whole := float64(sent(t, r)-before)/float64(n), float64(sent(t, r))/float64(n)
	t.Logf("%d waiters of %d Lockers in %d processes: drained in %s, %.2f commands for each grant; with asking and waiting %.2f",
		n, n, processes, took.Round(time.Millisecond), drain, whole)
	// Half of them still wait, on the average, and ask again every two seconds or so. A
	// herd would be a thousand commands for each grant.
	if most := 4 + took.Seconds()/4; drain > most {
		t.Errorf("%.2f commands for each grant, want %.2f at most", drain, most)
	}
	for _, in := range stdins {
		_ = in.Close()
	}
	all.Wait()
	slices.SortFunc(got, func(a, b crowdGrant) int { return int(int64(a.Token) - int64(b.Token)) })
	if len(got) != n {
		t.Fatalf("%d of %d were served", len(got), n)
	}
	for i, w := range st.Waiters {
		if got[i].Who != w.Reason {
			t.Fatalf("place %d was that of %s, and %s was served", i, w.Reason, got[i].Who)
		}
	}
}

// TestCostOfPlaces: a grant costs the server the same, however many wait.
func TestCostOfPlaces(t *testing.T) {
	few, many := costOfGrants(t, 10), costOfGrants(t, 10_000)
	t.Logf("server time for each release and grant: %.1f us at 10 places, %.1f us at 10,000, ratio %.2f", few, many, many/few)
	if os.Getenv("HOLDFAST_TEST_COST") == "1" && many > 1.5*few {
		t.Errorf("it grows with the places")
	}
}

// costOfGrants is the server's own time for a release and the claim after it.
func costOfGrants(t *testing.T, places int) float64 {
	r := start(t)
	url := "redis://" + r.Address()
	s := open(t, url)
	g := must(t, s, request("x", driver.Exclusive, time.Hour))
	// The places of one client: its waiters, not the server, would be what is
	// measured if they all went on asking.
	waiting := make([]*waiter, places)
	clients := []*redisstore.Store{open(t, url), open(t, url)}
	for i := range waiting {
		waiting[i] = queue(t, clients[i%2], request("x", driver.Exclusive, time.Hour))
	}
	const grants = 400
	var used, n int
	for i := 0; i < grants; i++ {
		w := waiting[i%places]
		u, c := spent(t, r)
		if err := s.Release(t.Context(), g, 0); err != nil {
			t.Fatal(err)
		}
		g, s = w.granted(), clients[i%places%2]
		u2, c2 := spent(t, r)
		used, n = used+u2-u, n+c2-c
		if places == 10 { // it comes again
			waiting[i%places] = queue(t, s, request("x", driver.Exclusive, time.Hour))
		}
	}
	// Refreshes that fell between are taken off by their share of calls.
	return float64(used) / float64(n) * 2
}

// spent is the microseconds and calls of scripts so far.
func spent(t *testing.T, r *servers.Redis) (micros, n int) {
	t.Helper()
	stats := do(t, r, "INFO", "commandstats").(string)
	var calls, usec int
	for line := range strings.Lines(stats) {
		if _, err := fmt.Sscanf(line, "cmdstat_evalsha:calls=%d,usec=%d,", &calls, &usec); err == nil {
			return usec, calls
		}
	}
	return 0, 0
}
