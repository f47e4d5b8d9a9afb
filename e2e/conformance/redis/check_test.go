package redis

import (
	"context"
	"net/url"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/holdfast-go/holdfast/check"
	"github.com/holdfast-go/holdfast/check/checktest"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/redisstore"
	adapter "github.com/holdfast-go/holdfast/redisstore/goredis"
)

// TestCheckGoredis runs the check over go-redis on the servers of `holdfast check --local`. The workers
// are Lockers in this process, each with a client of its own.
func TestCheckGoredis(t *testing.T) {
	installed(t)
	for _, local := range []string{"redis", "redis-replicas", "redis-sentinel", "redis-cluster"} {
		t.Run(local, func(t *testing.T) {
			target, err := check.StartLocal(t.Context(), local, t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { // for a test that fails before the run closes the target
				if err := target.Close(); err != nil {
					t.Error(err)
				}
			})
			u, err := url.Parse(target.URL)
			if err != nil {
				t.Fatal(err)
			}
			target.URL = ""
			target.Open = func(context.Context) (driver.Store, error) {
				c, o := byURL(u)
				s, err := adapter.New(c, o...)
				return &closing{Store: s, client: c}, err
			}
			r := checktest.Run(t, check.Config{Target: target, Duration: 6 * time.Second, Dir: t.TempDir()})
			if r.Stats.Grants < 20 {
				t.Errorf("%+v: the run has too few grants to prove anything", r.Stats)
			}
		})
	}
}

// byURL returns a go-redis client for a URL of redisstore.
func byURL(u *url.URL) (goredis.UniversalClient, []redisstore.Option) {
	all := append([]string{u.Host}, u.Query()["addr"]...)
	switch u.Scheme {
	case "redis+sentinel":
		return goredis.NewFailoverClient(&goredis.FailoverOptions{MasterName: strings.Trim(u.Path, "/"), SentinelAddrs: all}), nil
	case "redis+cluster":
		return goredis.NewClusterClient(&goredis.ClusterOptions{Addrs: all}), nil
	}
	var o []redisstore.Option
	if u.Query().Has("replicas") {
		o = append(o, redisstore.WaitReplicas(1, 200*time.Millisecond))
	}
	return goredis.NewClient(&goredis.Options{Addr: u.Host}), o
}
