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
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/servers"
)

// lockersEnv makes this binary a process with many Lockers.
const lockersEnv = "HOLDFAST_TEST_LOCKERS"

type lockersJob struct {
	URL, Name string
	Process   int
	Lockers   int
}

type lockersGrant struct {
	Token  uint64
	Holder string
}

// runLockers waits for one name with many Lockers and prints each grant.
func runLockers() {
	var job lockersJob
	fail := func(err error) {
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	fail(json.Unmarshal([]byte(os.Getenv(lockersEnv)), &job))
	ctx := context.Background()
	out := json.NewEncoder(os.Stdout)
	var mu sync.Mutex
	var all sync.WaitGroup
	var lockers []*holdfast.Locker
	for i := range job.Lockers {
		// While all processes start, a busy machine may answer the first request late.
		l, err := holdfast.Open(ctx, job.URL, holdfast.RequestTimeout(time.Minute))
		for end := time.Now().Add(time.Minute); errors.Is(err, holdfast.ErrUnavailable) && time.Now().Before(end); {
			l, err = holdfast.Open(ctx, job.URL, holdfast.RequestTimeout(time.Minute))
		}
		fail(err)
		lockers = append(lockers, l)
		all.Go(func() {
			id := fmt.Sprintf("%d-%d", job.Process, i)
			k, err := l.Lock(ctx, job.Name, holdfast.Reason(id), holdfast.TTL(5*time.Minute))
			fail(err)
			g := lockersGrant{k.Token(), id}
			fail(k.Unlock())
			mu.Lock()
			fail(out.Encode(g))
			mu.Unlock()
		})
	}
	all.Wait()
	// Closing begins after the test has counted the commands of the grants.
	_, _ = os.Stdin.Read(make([]byte, 1))
	for _, l := range lockers {
		fail(l.Close(ctx))
	}
}

// sentKinds are commands that no script of the store calls. The server counts commands that scripts call
// together with those that clients send.
var sentKinds = []string{"evalsha", "eval", "ping", "subscribe", "unsubscribe", "script|load", "wait"}

// sent returns how many of the commands in sentKinds the clients have sent.
func sent(t testing.TB, r *servers.Redis) (n int) {
	for _, c := range sentKinds {
		n += calls(t, r, c)
	}
	return n
}

// TestManyLockersServedInOrder: Lockers in many processes wait for one name. The server grants it in the
// order of their queue entries, with few commands for each grant.
func TestManyLockersServedInOrder(t *testing.T) {
	processes, lockers := 8, 250
	if testing.Short() {
		lockers = 25
	}
	if s := os.Getenv("HOLDFAST_TEST_LOCKERS_EACH"); s != "" {
		n, err := strconv.Atoi(s)
		check(t, err)
		lockers = n
	}
	// Thousands connect at a time. With the default backlog the kernel drops some connection
	// requests, and repeats them seconds later.
	r := start(t, "--maxclients", "20000", "--tcp-backlog", "4096")
	url := "redis://" + r.Address()
	l, err := holdfast.Open(t.Context(), url)
	check(t, err)
	defer l.Close(context.Background())
	k, err := l.Lock(t.Context(), "hot", holdfast.TTL(time.Hour))
	check(t, err)
	var got []lockersGrant
	var stdins []io.Closer
	served := make(chan struct{}, processes*lockers)
	var mu sync.Mutex
	var all sync.WaitGroup
	t.Cleanup(all.Wait) // runs after the cleanups that kill them
	for p := range processes {
		job, _ := json.Marshal(lockersJob{url, "hot", p, lockers})
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), lockersEnv+"="+string(job))
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		check(t, err)
		in, err := cmd.StdinPipe()
		check(t, err)
		check(t, cmd.Start())
		t.Cleanup(func() { _ = cmd.Process.Kill() })
		stdins = append(stdins, in)
		all.Go(func() {
			lines := bufio.NewScanner(out)
			for lines.Scan() {
				var g lockersGrant
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
		// The Lockers may keep the machine so busy that the answer comes after the timeout.
		if st, err = l.Inspect(t.Context(), "hot"); err != nil && !errors.Is(err, holdfast.ErrUnavailable) {
			t.Fatal(err)
		}
		if t.Failed() || time.Now().After(end) {
			t.Fatalf("%d of %d wait", len(st.Waiters), n)
		}
	}
	before, began := sent(t, r), time.Now()
	check(t, k.Unlock())
	for i := range n {
		select {
		case <-served:
		case <-time.After(2 * time.Minute):
			t.Fatalf("%d of %d were served", i, n)
		}
	}
	took := time.Since(began)
	drain, whole := float64(sent(t, r)-before)/float64(n), float64(sent(t, r))/float64(n)
	t.Logf("%d waiters of %d Lockers in %d processes: drained in %s, %.2f commands for each grant; with requests and waiting %.2f",
		n, n, processes, took.Round(time.Millisecond), drain, whole)
	// On average half of the waiters still wait, and each refreshes its entry every two seconds
	// or so. A Locker whose connection was slow to begin greets the server on another one. If every
	// release woke all of them, there would be a thousand commands for each grant.
	if limit := 6 + took.Seconds()/4; drain > limit {
		t.Errorf("%.2f commands for each grant, want %.2f at most", drain, limit)
	}
	for _, in := range stdins {
		_ = in.Close()
	}
	all.Wait()
	slices.SortFunc(got, func(a, b lockersGrant) int { return int(int64(a.Token) - int64(b.Token)) })
	if len(got) != n {
		t.Fatalf("%d of %d were served", len(got), n)
	}
	for i, w := range st.Waiters {
		if got[i].Holder != w.Reason {
			t.Fatalf("position %d was that of %s, and %s was granted", i, w.Reason, got[i].Holder)
		}
	}
}
