// The program etcd measures holdfast on etcd beside clientv3/concurrency.Mutex, on
// one server and in one run, taking turns, and prints ratios.
//
//	go run ./bench/etcd [-pairs 2000] [-contenders 16] [-for 5s] [-rounds 3]
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"os"
	"slices"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/check/servers"
	"github.com/holdfast-go/holdfast/etcdstore"
)

var (
	pairs      = flag.Int("pairs", 2000, "serial pairs of each")
	contenders = flag.Int("contenders", 16, "contenders on one name, each with a client and a session of its own")
	span       = flag.Duration("for", 5*time.Second, "how long each contends in a round")
	rounds     = flag.Int("rounds", 3, "rounds of contention")
)

// locking is one contender of a kind.
type locking struct {
	lock, unlock func(context.Context) error
	close        func()
}

type kind struct {
	name string
	make func(endpoint, name string) (locking, error)
}

var kinds = []kind{{"holdfast", makeHoldfast}, {"concurrency.Mutex", makeMutex}}

func newClient(endpoint string) (*clientv3.Client, error) {
	return clientv3.New(clientv3.Config{Endpoints: []string{endpoint}, Logger: zap.NewNop()})
}

func makeHoldfast(endpoint, name string) (locking, error) {
	client, err := newClient(endpoint)
	if err != nil {
		return locking{}, err
	}
	s, err := etcdstore.New(client)
	if err != nil {
		return locking{}, err
	}
	l, err := holdfast.New(s)
	if err != nil {
		return locking{}, err
	}
	var k *holdfast.Lock
	return locking{
		lock:   func(ctx context.Context) (err error) { k, err = l.Lock(ctx, name); return err },
		unlock: func(context.Context) error { return k.Unlock() },
		close: func() {
			_ = l.Close(context.Background())
			_ = s.Close(context.Background())
			_ = client.Close()
		},
	}, nil
}

func makeMutex(endpoint, name string) (locking, error) {
	client, err := newClient(endpoint)
	if err != nil {
		return locking{}, err
	}
	s, err := concurrency.NewSession(client)
	if err != nil {
		return locking{}, err
	}
	m := concurrency.NewMutex(s, name)
	return locking{lock: m.Lock, unlock: m.Unlock, close: func() { _ = s.Close(); _ = client.Close() }}, nil
}

func main() {
	log.SetFlags(0)
	flag.Parse()
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "holdfast-bench-")
	check(err)
	defer os.RemoveAll(dir)
	members, err := servers.StartEtcd(ctx, servers.EtcdConfig{Dir: dir})
	check(err)
	defer members[0].Kill()
	serial(ctx, members[0].Client)
	contended(ctx, members[0].Client)
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

// serial takes turns pair by pair.
func serial(ctx context.Context, endpoint string) {
	took := make([][]time.Duration, len(kinds))
	var all []locking
	for _, k := range kinds {
		l, err := k.make(endpoint, "serial-"+k.name)
		check(err)
		defer l.close()
		all = append(all, l)
	}
	for i := range *pairs + 100 {
		for n, l := range all {
			began := time.Now()
			check(l.lock(ctx))
			check(l.unlock(ctx))
			if i >= 100 {
				took[n] = append(took[n], time.Since(began))
			}
		}
	}
	fmt.Printf("one after the other, %d pairs each\n", *pairs)
	for n, k := range kinds {
		slices.Sort(took[n])
		fmt.Printf("  %-18s p10 %-9s p50 %-9s p90 %s\n", k.name, at(took[n], 10), at(took[n], 50), at(took[n], 90))
	}
	fmt.Printf("  p50, holdfast to %s: %.2f\n", kinds[1].name, float64(at(took[0], 50))/float64(at(took[1], 50)))
}

func at(sorted []time.Duration, percent int) time.Duration {
	return sorted[len(sorted)*percent/100].Round(time.Microsecond)
}

// contended takes turns round by round.
func contended(ctx context.Context, endpoint string) {
	fmt.Printf("%d contenders for one name, %d rounds of %s\n", *contenders, *rounds, *span)
	handoffs := make([][]time.Duration, len(kinds))
	rates := make([][]float64, len(kinds))
	for round := range *rounds {
		for n, k := range kinds {
			h := contend(ctx, k, endpoint, fmt.Sprintf("hot-%d-%s", round, k.name))
			rates[n] = append(rates[n], float64(len(h))/span.Seconds())
			handoffs[n] = append(handoffs[n], h...)
		}
	}
	for n, k := range kinds {
		slices.Sort(handoffs[n])
		slices.Sort(rates[n])
		fmt.Printf("  %-18s %.0f pairs a second (%.0f to %.0f), hand-over p50 %s p99 %s\n", k.name,
			rates[n][len(rates[n])/2], rates[n][0], rates[n][len(rates[n])-1], at(handoffs[n], 50), at(handoffs[n], 99))
	}
	fmt.Printf("  pairs a second, holdfast to %s: %.1f\n", kinds[1].name, rates[0][len(rates[0])/2]/rates[1][len(rates[1])/2])
}

// contend returns the times from the beginning of an unlock to the next
// contender's lock.
func contend(ctx context.Context, k kind, endpoint, name string) []time.Duration {
	var all []locking
	for range *contenders {
		l, err := k.make(endpoint, name)
		check(err)
		all = append(all, l)
	}
	var mine sync.WaitGroup
	var released time.Time // under the lock
	var took []time.Duration
	end := time.Now().Add(*span)
	for _, l := range all {
		mine.Go(func() {
			for time.Now().Before(end) {
				check(l.lock(ctx))
				now := time.Now()
				if !released.IsZero() {
					took = append(took, now.Sub(released))
				}
				released = time.Now()
				check(l.unlock(ctx))
			}
		})
	}
	mine.Wait()
	for _, l := range all {
		l.close()
	}
	return took
}
