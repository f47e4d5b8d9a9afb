package capacity

import (
	"bufio"
	"context"
	"database/sql"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/must"
	"github.com/holdfast-go/holdfast/internal/servers"
)

var (
	scaleClients = flag.Int("clients", 100, "how many clients BenchmarkScale has")
	scaleGroup   = flag.Int("group", 1, "how many clients of BenchmarkScale want one name; one of them holds it")
)

const (
	scaleSteady = 20 * time.Second
	scaleOutage = 15 * time.Second
	scaleAfter  = 30 * time.Second
)

// scaled is a server that counts. count returns the requests and the bytes, in both directions, since its start.
type scaled struct {
	url     string
	pid     func() int
	count   func() (requests, bytes float64)
	kill    func()
	restart func(context.Context) error
}

// processor returns the processor time that a server and its children have used.
func processor(b *testing.B, pid int) float64 {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0 // a child that has ended
	}
	_, rest, _ := strings.Cut(string(text), ") ")
	fields := strings.Fields(rest)
	sum := 0.0
	for _, field := range fields[11:15] { // user and system time, and that of children that have ended
		ticks, err := strconv.Atoi(field)
		must.Succeed(b, err)
		sum += float64(ticks) / 100
	}
	children, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	for _, child := range strings.Fields(string(children)) {
		pid, err := strconv.Atoi(child)
		must.Succeed(b, err)
		sum += processor(b, pid)
	}
	return sum
}

// sumOf adds the values of the lines that begin with one of the names. field returns the value in the rest of a line.
func sumOf(text string, field func(string) string, names ...string) (sum float64) {
	for lines := bufio.NewScanner(strings.NewReader(text)); lines.Scan(); {
		for _, name := range names {
			if rest, ok := strings.CutPrefix(lines.Text(), name); ok {
				n, _ := strconv.ParseFloat(field(rest), 64)
				sum += n
			}
		}
	}
	return sum
}

func scaledRedis(b *testing.B) scaled {
	s, err := servers.StartRedis(b.Context(), b.TempDir(), "--appendonly", "yes", "--maxclients", "50000")
	must.Succeed(b, err)
	b.Cleanup(s.Kill)
	return scaled{"redis://" + s.Address(), s.PID, func() (float64, float64) {
		info, err := s.Do(b.Context(), "INFO", "all")
		must.Succeed(b, err)
		calls := func(rest string) string {
			_, rest, _ = strings.Cut(rest, "calls=")
			n, _, _ := strings.Cut(rest, ",")
			return n
		}
		text := strings.ReplaceAll(info.(string), "\r", "")
		return sumOf(text, calls, "cmdstat_evalsha:", "cmdstat_eval:", "cmdstat_evalsha_ro:", "cmdstat_hello:", "cmdstat_subscribe:", "cmdstat_ping:", "cmdstat_info:"),
			sumOf(text, strings.TrimSpace, "total_net_input_bytes:", "total_net_output_bytes:")
	}, s.Kill, s.Restart}
}

func scaledEtcd(b *testing.B) scaled {
	s, err := servers.StartEtcd(b.Context(), servers.EtcdConfig{Dir: b.TempDir()})
	must.Succeed(b, err)
	b.Cleanup(s[0].Kill)
	return scaled{"etcd://" + s[0].Client, s[0].PID, func() (float64, float64) {
		resp, err := http.Get("http://" + s[0].Client + "/metrics")
		must.Succeed(b, err)
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		must.Succeed(b, err)
		last := func(rest string) string { return rest[strings.LastIndex(rest, " ")+1:] }
		return sumOf(string(text), last, "grpc_server_msg_received_total{"),
			sumOf(string(text), last, "etcd_network_client_grpc_received_bytes_total", "etcd_network_client_grpc_sent_bytes_total")
	}, s[0].Kill, s[0].Restart}
}

func scaledPostgres(b *testing.B) scaled {
	s, err := servers.StartPostgres(b.Context(), "max_connections=2500")
	must.Succeed(b, err)
	b.Cleanup(func() { _ = s.Close() })
	url := s.URL("postgres", "&recipe=optimistic")
	prepare(b, url)
	db, err := sql.Open("pgx", s.URL("postgres", ""))
	must.Succeed(b, err)
	b.Cleanup(func() { _ = db.Close() })
	return scaled{url, s.PID, func() (n, _ float64) {
		_ = db.QueryRow("SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = 'postgres'").Scan(&n)
		return n, 0
	}, s.Kill, s.Restart}
}

// BenchmarkScale measures what the clients of a server cost it: each has a connection of its own, and one name with a TTL
// of 30 s. One client of each group holds the name, and the others wait for it. The server is then away for 15 s. The
// simulation in scale_test.go of the root package has the same numbers of clients.
//
//	go test -run '^$' -bench Scale/redis -benchtime 1x ./bench/capacity -clients 1000 -group 10
func BenchmarkScale(b *testing.B) {
	for name, start := range map[string]func(*testing.B) scaled{"redis": scaledRedis, "etcd": scaledEtcd, "postgres": scaledPostgres} {
		b.Run(name, func(b *testing.B) { measureScale(b, start(b)) })
	}
}

func measureScale(b *testing.B, s scaled) {
	var waiting queued
	var lost losses
	ctx, cancel := context.WithCancel(b.Context())
	clients := make([]*holdfast.Locker, *scaleClients)
	var opened, waiters sync.WaitGroup
	for worker := range 32 {
		opened.Go(func() {
			for i := worker; i < len(clients); i += 32 {
				clients[i] = open(b, s.url, holdfast.WithHooks(&waiting), holdfast.WithHooks(&lost))
				if i%*scaleGroup == 0 {
					_, err := clients[i].Lock(b.Context(), "scale-"+strconv.Itoa(i))
					must.Report(b, err)
				}
			}
		})
	}
	opened.Wait()
	for i, l := range clients {
		if i%*scaleGroup != 0 {
			waiters.Go(func() { _, _ = l.Lock(ctx, "scale-"+strconv.Itoa(i / *scaleGroup * *scaleGroup)) })
		}
	}
	for want := len(clients) - (len(clients)+*scaleGroup-1) / *scaleGroup; waiting.n.Load() < int64(want) && !b.Failed(); {
		time.Sleep(10 * time.Millisecond)
	}
	load, _ := os.ReadFile("/proc/loadavg")
	b.Logf("%s %d clients, groups of %d; load %s", filepath.Base(b.Name()), len(clients), *scaleGroup, strings.TrimSpace(string(load)))
	requests, bytes := s.count()
	used, began := processor(b, s.pid()), time.Now()
	time.Sleep(scaleSteady)
	r, n := s.count()
	seconds := time.Since(began).Seconds()
	cores := (processor(b, s.pid()) - used) / seconds
	steady := (r - requests) / seconds
	b.ReportMetric(steady, "requests/s")
	b.ReportMetric((n-bytes)/seconds, "B/s")
	b.ReportMetric(cores, "cores")
	s.kill()
	time.Sleep(scaleOutage)
	began = time.Now()
	must.Succeed(b, s.restart(b.Context()))
	b.Logf("the restart took %s", time.Since(began))
	began = time.Now()
	requests, used = 0, 0
	var first, later float64
	var each []string
	for last := time.Now(); time.Since(began) < scaleAfter; {
		time.Sleep(time.Second)
		r, _ := s.count()
		now := time.Now()
		rate := (r - requests) / now.Sub(last).Seconds()
		requests, last = r, now
		each = append(each, fmt.Sprintf("%.0f", rate))
		if now.Sub(began) < 8*time.Second {
			first = max(first, rate)
		} else {
			later = max(later, rate)
		}
	}
	b.Logf("requests in each second after the restart: %s; processor %.2f s", strings.Join(each, " "), processor(b, s.pid()))
	b.ReportMetric(first, "storm/s")
	b.ReportMetric(later, "later/s")
	b.ReportMetric(float64(lost.n.Load()), "lost")
	cancel()
	waiters.Wait()
}
