package redlock

import (
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/check/servers"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/redisstore/redlock"
)

// TestFailoverAndBack: a server gives a vote, and then takes over the data of a server without that
// vote, as after two failovers within a TTL. It is still the same process, but has lost the vote. It
// does not vote for another client.
func TestFailoverAndBack(t *testing.T) {
	f := startBare(t, 1, redlock.Config{})
	g, err := servers.StartRedis(t.Context(), filepath.Join(t.TempDir(), "other"), "--replicaof", "127.0.0.1 "+strconv.Itoa(f.all[0].Port))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(g.Kill)
	group := servers.RedisReplicas{Primary: f.all[0], Replicas: []*servers.Redis{g}}
	if err := group.Linked(t.Context()); err != nil {
		t.Fatal(err)
	}
	f.setUp(f.config)
	if _, err := g.Do(t.Context(), "REPLICAOF", "NO", "ONE"); err != nil {
		t.Fatal(err)
	}
	first := must(t, f.open(t), "name", time.Minute)
	f.do(0, "REPLICAOF", "127.0.0.1", strconv.Itoa(g.Port))
	group = servers.RedisReplicas{Primary: g, Replicas: f.all}
	if err := group.Linked(t.Context()); err != nil {
		t.Fatal(err)
	}
	f.do(0, "REPLICAOF", "NO", "ONE")
	if f.do(0, "EXISTS", "holdfast:redlock:l::name") != int64(0) || f.state(0)["run"] == "" {
		t.Fatal("the server has not taken the other's data")
	}
	if second, err := f.open(t).Acquire(t.Context(), request("name", time.Minute)); err == nil {
		t.Fatalf("tokens %d and %d stand", first.Token, second.Token)
	}
}

// TestShorterMaxTTLAdmitsNone: a server has lost the vote for a long lease. A client whose max_ttl
// is shorter than the fleet's does not admit the server.
func TestShorterMaxTTLAdmitsNone(t *testing.T) {
	f := start(t, 3, redlock.Config{})
	f.proxies[2].Cut()
	first := must(t, f.open(t), "name", time.Minute)
	if err := f.proxies[2].Heal(); err != nil {
		t.Fatal(err)
	}
	if err := f.all[1].RestartEmpty(t.Context()); err != nil {
		t.Fatal(err)
	}
	short := f.config
	short.MaxTTL = 100 * time.Millisecond
	s := f.openAs(t, short)
	for end := time.Now().Add(4 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if second, err := s.Acquire(t.Context(), request("name", 100*time.Millisecond)); err == nil {
			t.Fatalf("tokens %d and %d stand", first.Token, second.Token)
		}
	}
}

// TestServerGivenTwice: a URL with two names of one server is refused, because that server would
// have two votes.
func TestServerGivenTwice(t *testing.T) {
	f := start(t, 3, redlock.Config{})
	one := strconv.Itoa(f.all[0].Port)
	s, err := redlock.Open(t.Context(), "redlock://127.0.0.1:"+one+"?node=localhost:"+one+"&node="+f.all[1].Address(), "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close(t.Context()) })
	if g, err := s.Acquire(t.Context(), request("name", time.Minute)); s.Classify(err) != driver.CodeRefused {
		t.Errorf("%+v, %v", g, err)
	}
}
