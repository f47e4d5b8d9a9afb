package torture

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/must"
	"github.com/holdfast-go/holdfast/internal/servers"

	_ "github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib"
)

var (
	many      = flag.Int("locks", 0, "how many locks one client holds on each store over a slow link; 0 for none")
	manyDelay = flag.Duration("delay", 20*time.Millisecond, "how long that link takes for an answer")
	manyTTL   = flag.Duration("ttl", 10*time.Second, "TTL of those locks")
)

// TestManyLocksOverASlowLink: one client holds many locks for three TTLs over a link with a delay. The
// client loses none of them.
func TestManyLocksOverASlowLink(t *testing.T) {
	if *many == 0 {
		t.Skip("takes minutes: run it with -locks")
	}
	for name, start := range map[string]func(*testing.T) (address, form string, err error){
		"redis": func(t *testing.T) (string, string, error) {
			s, err := servers.StartRedis(t.Context(), t.TempDir())
			if err != nil {
				return "", "", err
			}
			t.Cleanup(s.Kill)
			return s.Address(), "redis://%s", nil
		},
		"etcd": func(t *testing.T) (string, string, error) {
			program, err := servers.Find("etcd")
			if err != nil {
				return "", "", err
			}
			s, err := servers.StartEtcd(t.Context(), servers.EtcdConfig{Program: program, Dir: t.TempDir(), NoSync: true})
			if err != nil {
				return "", "", err
			}
			t.Cleanup(s[0].End)
			return s[0].Client, "etcd://%s", nil
		},
		"zookeeper": func(t *testing.T) (string, string, error) {
			s, err := servers.StartZooKeeper(t.Context(), t.TempDir(), servers.ZooKeeperConfig{})
			if err != nil {
				return "", "", err
			}
			t.Cleanup(s.Kill)
			return s.Address(), "zk://%s", nil
		},
		"mariadb-optimistic": func(t *testing.T) (string, string, error) {
			s, err := servers.StartMariaDB(t.Context(), "--innodb-flush-log-at-trx-commit=1")
			if err != nil {
				return "", "", err
			}
			t.Cleanup(func() { _ = s.Close() })
			return s.Address, "mysql://root@%s/test?recipe=optimistic", nil
		},
		"postgres-optimistic": func(t *testing.T) (string, string, error) {
			s, err := servers.StartPostgres(t.Context())
			if err != nil {
				return "", "", err
			}
			t.Cleanup(func() { _ = s.Close() })
			return s.Address, "postgres://postgres@%s/postgres?recipe=optimistic", nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			address, form, err := start(t)
			must.Succeed(t, err)
			p, err := servers.NewProxy(address)
			must.Succeed(t, err)
			t.Cleanup(p.Close)
			at := fmt.Sprintf(form, p.Address())
			if strings.Contains(name, "optimistic") {
				initialize(t, at)
			}
			must.Succeed(t, p.Delay(*manyDelay))
			holdMany(t, at)
		})
	}
}

// initialize creates the tables of a database.
func initialize(t *testing.T, raw string) {
	t.Helper()
	u, err := url.Parse(raw)
	must.Succeed(t, err)
	open, _ := driver.OpenerOf(u.Scheme)
	s, err := open(t.Context(), u, "")
	must.Succeed(t, err)
	must.Succeed(t, errors.Join(s.(interface{ Init(context.Context) error }).Init(t.Context()), s.Close(t.Context())))
}

func holdMany(t *testing.T, at string) {
	t.Helper()
	l, err := holdfast.Open(t.Context(), at)
	must.Succeed(t, err)
	defer l.Close(context.Background())
	held := make([]*holdfast.Lock, *many)
	each := func(do func(int) error) time.Duration {
		began, next := time.Now(), make(chan int)
		var running sync.WaitGroup
		for range 200 {
			running.Go(func() {
				for i := range next {
					must.Report(t, do(i))
				}
			})
		}
		for i := range held {
			next <- i
		}
		close(next)
		running.Wait()
		return time.Since(began)
	}
	taking := each(func(i int) (err error) {
		held[i], err = l.Lock(t.Context(), fmt.Sprint("n-", i), holdfast.TTL(*manyTTL))
		for errors.Is(err, holdfast.ErrUnavailable) && t.Context().Err() == nil { // the machine may be busy
			held[i], err = l.Lock(t.Context(), fmt.Sprint("n-", i), holdfast.TTL(*manyTTL))
		}
		return err
	})
	if t.Failed() {
		t.FailNow()
	}
	time.Sleep(3 * *manyTTL)
	lost := 0
	for _, k := range held {
		if k.Context().Err() != nil {
			if lost++; lost == 1 {
				t.Error(context.Cause(k.Context()))
			}
		}
	}
	giving := each(func(i int) error {
		if err := held[i].Unlock(); err != nil && held[i].Context().Err() == nil {
			return err
		}
		return nil
	})
	t.Logf("%d locks over %s, TTL %s: taken in %s, %d lost in three TTLs, released in %s", *many, *manyDelay, *manyTTL, taking.Round(time.Millisecond), lost, giving.Round(time.Millisecond))
}
