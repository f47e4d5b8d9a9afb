// Package sticky measures locks that a Locker keeps after their Unlock, on each store that supports the option Sticky:
//
//	go test -run '^$' -bench . -benchtime 500x ./bench/sticky
//
// Pair reports the time of a lock and its unlock on a name that only this Locker wants: the median, which has no request,
// and the mean, in which one of 65 pairs releases the grant and requests the next one. Recall reports the median
// time until another client has a lock that the first one keeps and does not use. A request is half of the median of a lock
// and its unlock without the option, in the same run: each of the two is one request to the store.
package sticky

import (
	"context"
	"net/url"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/e2e/servertest"
	_ "github.com/holdfast-go/holdfast/etcdstore"
	_ "github.com/holdfast-go/holdfast/filestore"
	"github.com/holdfast-go/holdfast/internal/must"
	"github.com/holdfast-go/holdfast/internal/servers"
	_ "github.com/holdfast-go/holdfast/mysqlstore"
	_ "github.com/holdfast-go/holdfast/pgstore"
	_ "github.com/holdfast-go/holdfast/redisstore"
	_ "github.com/holdfast-go/holdfast/zkstore"
)

// stores start a server and return the URL of its locks.
var stores = []struct {
	name  string
	start func(b *testing.B) string
}{
	{"file", func(b *testing.B) string { return "file://" + b.TempDir() }},
	{"redis", func(b *testing.B) string {
		r, err := servers.StartRedis(b.Context(), filepath.Join(b.TempDir(), "redis"))
		servertest.Started(b, err)
		b.Cleanup(r.Kill)
		return "redis://" + r.Address()
	}},
	{"etcd", func(b *testing.B) string {
		m, err := servers.StartEtcd(b.Context(), servers.EtcdConfig{Dir: b.TempDir()})
		servertest.Started(b, err)
		b.Cleanup(m[0].End)
		return "etcd://" + m[0].Client
	}},
	{"zookeeper", func(b *testing.B) string {
		z, err := servers.StartZooKeeper(b.Context(), filepath.Join(b.TempDir(), "zookeeper"), servers.ZooKeeperConfig{Synced: true})
		servertest.Started(b, err)
		b.Cleanup(z.Kill)
		return "zk://" + z.Address()
	}},
	{"mariadb-named", mariadb("named")},
	{"mariadb-pessimistic", mariadb("pessimistic")},
	{"postgres-advisory", postgres("advisory")},
	{"postgres-pessimistic", postgres("pessimistic")},
}

func mariadb(recipe string) func(*testing.B) string {
	return func(b *testing.B) string {
		s, err := servers.StartMariaDB(b.Context())
		servertest.Started(b, err)
		b.Cleanup(func() { _ = s.Close() })
		return prepare(b, "mysql://root@"+s.Address+"/test?recipe="+recipe)
	}
}

func postgres(recipe string) func(*testing.B) string {
	return func(b *testing.B) string {
		s, err := servers.StartPostgres(b.Context())
		servertest.Started(b, err)
		b.Cleanup(func() { _ = s.Close() })
		return prepare(b, s.URL("postgres", "&recipe="+recipe))
	}
}

// prepare creates the tables of a store.
func prepare(b *testing.B, raw string) string {
	b.Helper()
	u, err := url.Parse(raw)
	must.Succeed(b, err)
	open, _ := driver.OpenerOf(u.Scheme)
	s, err := open(b.Context(), u, "")
	must.Succeed(b, err)
	defer s.Close(context.WithoutCancel(b.Context()))
	must.Succeed(b, s.(interface{ Init(context.Context) error }).Init(b.Context()))
	return raw
}

// onEach runs a benchmark on each store. It gets two clients of the store.
func onEach(b *testing.B, run func(b *testing.B, l, other *holdfast.Locker)) {
	for _, s := range stores {
		b.Run(s.name, func(b *testing.B) {
			url := s.start(b)
			var lockers [2]*holdfast.Locker
			for i := range lockers {
				l, err := holdfast.Open(b.Context(), url)
				must.Succeed(b, err)
				b.Cleanup(func() { _ = l.Close(context.Background()) })
				lockers[i] = l
			}
			run(b, lockers[0], lockers[1])
		})
	}
}

// pair returns the time until the lock was granted. It has unlocked it.
func pair(b *testing.B, l *holdfast.Locker, name string, o ...holdfast.LockOption) time.Duration {
	began := time.Now()
	k, err := l.Lock(context.Background(), name, o...)
	took := time.Since(began)
	must.Succeed(b, err)
	must.Succeed(b, k.Unlock())
	return took
}

// median returns the median in microseconds.
func median(all []time.Duration) float64 {
	slices.Sort(all)
	return float64(all[len(all)/2].Nanoseconds()) / 1e3
}

// together is the number of pairs that are measured together, because reading the clock takes as long as a part of one.
const together = 10

func BenchmarkPair(b *testing.B) {
	onEach(b, func(b *testing.B, l, _ *holdfast.Locker) {
		sticky := holdfast.Sticky(time.Minute)
		pair(b, l, "own", sticky)
		var all []time.Duration
		for b.Loop() {
			began := time.Now()
			for range together {
				pair(b, l, "own", sticky)
			}
			all = append(all, time.Since(began)/together)
		}
		mean := time.Duration(0)
		for _, d := range all {
			mean += d / time.Duration(len(all))
		}
		b.ReportMetric(float64(mean.Nanoseconds())/1e3, "mean-µs/pair")
		b.ReportMetric(median(all), "µs/pair")
		b.ReportMetric(0, "ns/op")
	})
}

func BenchmarkRecall(b *testing.B) {
	onEach(b, func(b *testing.B, l, other *holdfast.Locker) {
		pause := func() { time.Sleep(5 * time.Millisecond) } // the watch of the kept name is open
		var recalls, requests []time.Duration
		for b.Loop() {
			pause()
			began := time.Now()
			pair(b, other, "free")
			requests = append(requests, time.Since(began)/2)
			pair(b, l, "kept", holdfast.Sticky(time.Hour))
			pause()
			recalls = append(recalls, pair(b, other, "kept"))
		}
		recall, request := median(recalls), median(requests)
		b.ReportMetric(recall, "µs/recall")
		b.ReportMetric(request, "µs/request")
		b.ReportMetric(recall/request, "requests/recall")
		b.ReportMetric(0, "ns/op")
	})
}
