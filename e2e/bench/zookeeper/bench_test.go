// Package zookeeper compares locks on ZooKeeper with go-zookeeper's own Lock. Both
// take turns in one run.
package zookeeper

import (
	"context"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	zookeeper "github.com/go-zookeeper/zk"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/e2e/servertest"
	"github.com/holdfast-go/holdfast/internal/must"
	"github.com/holdfast-go/holdfast/internal/servers"
	"github.com/holdfast-go/holdfast/zkstore"
)

// start starts a server with ZooKeeper's own settings: synced writes, the default compiler,
// and the default size of pieces of the log. Sessions may last long enough for the default
// TTL.
func start(b *testing.B) *servers.ZooKeeper {
	b.Helper()
	z, err := servers.StartZooKeeper(b.Context(), filepath.Join(b.TempDir(), "zookeeper"), servers.ZooKeeperConfig{
		Tick: 2 * time.Second, MaxSession: 40 * time.Second, Synced: true,
		Java: []string{"-XX:TieredStopAtLevel=4", "-Dzookeeper.preAllocSize=65536"},
	})
	servertest.Started(b, err)
	b.Cleanup(z.Kill)
	return z
}

// pair is a function that locks and unlocks once.
type pair func() error

// ours returns a pair of a Locker over a store of its own, in the layout that holdfast
// shares with go-zookeeper's Lock.
func ours(b *testing.B, address, name string) pair {
	b.Helper()
	s, err := zkstore.Open(b.Context(), "zk://"+address+"/bench", zkstore.WithLayout(zkstore.Mutex))
	must.Succeed(b, err)
	return over(b, s, name, true)
}

func over(b *testing.B, s *zkstore.Store, name string, owned bool) pair {
	b.Helper()
	l, err := holdfast.New(s)
	must.Succeed(b, err)
	b.Cleanup(func() {
		_ = l.Close(context.Background())
		if owned {
			_ = s.Close(context.Background())
		}
	})
	return func() error {
		k, err := l.Lock(context.Background(), name)
		if err != nil {
			return err
		}
		return k.Unlock()
	}
}

type quiet struct{}

func (quiet) Printf(string, ...any) {}

func dial(b *testing.B, address string) *zookeeper.Conn {
	b.Helper()
	c, events, err := zookeeper.Connect([]string{address}, 38*time.Second, zookeeper.WithLogger(quiet{}))
	must.Succeed(b, err)
	go func() {
		for range events {
		}
	}()
	b.Cleanup(c.Close)
	return c
}

// theirs returns a pair of go-zookeeper's Lock. With a token it also reads the node's
// czxid, which a guard at the resource needs.
func theirs(c *zookeeper.Conn, name string, token bool) pair {
	l := zookeeper.NewLock(c, "/peer/"+name, zookeeper.WorldACL(zookeeper.PermAll))
	return func() error {
		if err := l.Lock(); err != nil {
			return err
		}
		if token {
			if _, _, err := c.Get("/peer/" + name); err != nil {
				return err
			}
		}
		return l.Unlock()
	}
}

// cost counts the requests that a server has received, and its writes to the disk. One
// write may serve several requests.
type cost struct{ requests, writes float64 }

func costOf(b *testing.B, z *servers.ZooKeeper) (c cost) {
	b.Helper()
	said, err := z.Command(b.Context(), "mntr")
	must.Succeed(b, err)
	for line := range strings.Lines(said) {
		name, text, _ := strings.Cut(strings.TrimSpace(line), "\t")
		n, _ := strconv.ParseFloat(text, 64)
		switch name {
		case "zk_packets_received":
			c.requests = n
		case "zk_cnt_fsynctime":
			c.writes = n
		}
	}
	return c
}

func (c cost) since(before cost) cost {
	return cost{c.requests - before.requests, c.writes - before.writes}
}

func (c cost) plus(o cost) cost {
	return cost{c.requests + o.requests, c.writes + o.writes}
}

func (c cost) report(b *testing.B, who string, pairs float64) {
	b.ReportMetric(c.requests/pairs, who+"-requests/pair")
	b.ReportMetric(c.writes/pairs, who+"-disk-writes/pair")
}

// BenchmarkSerial locks and unlocks one name again and again. It reports the median time of
// holdfast, of the peer without a token, and of the peer with one, which take turns.
func BenchmarkSerial(b *testing.B) {
	address := start(b).Address()
	c := dial(b, address)
	pairs := map[string]pair{"holdfast": ours(b, address, "serial"), "peer": theirs(c, "serial", false), "peer-with-token": theirs(c, "serial", true)}
	names := []string{"holdfast", "peer", "peer-with-token"}
	took := map[string][]time.Duration{}
	for range 200 { // warm
		for _, n := range names {
			must.Succeed(b, pairs[n]())
		}
	}
	for i := 0; b.Loop(); i++ {
		for j := range names {
			n := names[(i+j)%len(names)]
			began := time.Now()
			must.Succeed(b, pairs[n]())
			took[n] = append(took[n], time.Since(began))
		}
	}
	median := func(n string) float64 {
		slices.Sort(took[n])
		return float64(took[n][len(took[n])/2]) / 1e3
	}
	for _, n := range names {
		b.ReportMetric(median(n), n+"-us")
	}
	b.ReportMetric(median("holdfast")/median("peer"), "ratio")
	b.ReportMetric(0, "ns/op")
}

// BenchmarkHot lets 16 clients contend for one name. Those of holdfast and those of the
// peer take turns.
func BenchmarkHot(b *testing.B) {
	for _, shape := range []string{"sessions", "session"} {
		b.Run("16-"+shape, func(b *testing.B) {
			z := start(b)
			address := z.Address()
			const n = 16
			var mine, peers []pair
			shared, err := zkstore.Open(b.Context(), "zk://"+address+"/bench", zkstore.WithLayout(zkstore.Mutex))
			must.Succeed(b, err)
			b.Cleanup(func() { _ = shared.Close(context.Background()) })
			conn := dial(b, address)
			for range n {
				if shape == "sessions" {
					mine = append(mine, ours(b, address, "hot"))
					peers = append(peers, theirs(dial(b, address), "hot", false))
				} else {
					mine = append(mine, over(b, shared, "hot", false))
					peers = append(peers, theirs(conn, "hot", false))
				}
			}
			const slice = 500 * time.Millisecond
			compete(b, mine, slice)
			compete(b, peers, slice)
			var ourPairs, theirPairs, rounds float64
			var ourCost, theirCost cost
			for b.Loop() {
				began := costOf(b, z)
				ourPairs += compete(b, mine, slice)
				between := costOf(b, z)
				theirPairs += compete(b, peers, slice)
				ourCost, theirCost = ourCost.plus(between.since(began)), theirCost.plus(costOf(b, z).since(between))
				rounds++
			}
			b.ReportMetric(ourPairs/rounds/slice.Seconds(), "holdfast-pairs/s")
			b.ReportMetric(theirPairs/rounds/slice.Seconds(), "peer-pairs/s")
			b.ReportMetric(ourPairs/theirPairs, "ratio")
			ourCost.report(b, "holdfast", ourPairs)
			theirCost.report(b, "peer", theirPairs)
			b.ReportMetric(0, "ns/op")
		})
	}
}

// compete runs all pairs side by side for the time d, and returns how often they were
// completed.
func compete(b *testing.B, all []pair, d time.Duration) float64 {
	var count atomic.Int64
	var wg sync.WaitGroup
	end := time.Now().Add(d)
	for _, p := range all {
		wg.Go(func() {
			for time.Now().Before(end) {
				if err := p(); err != nil {
					b.Error(err)
					return
				}
				count.Add(1)
			}
		})
	}
	wg.Wait()
	return float64(count.Load())
}
