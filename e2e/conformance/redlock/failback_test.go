package redlock

import (
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/servers"
	"github.com/holdfast-go/holdfast/redisstore/redlock"
)

// TestFailoverAndBackGivesNoSecondVote: a server has given its vote. The test replaces its data by
// those of a replica without the vote, like two failovers within a TTL. The server's process is the
// same, but its vote is lost. It must not give another one.
func TestFailoverAndBackGivesNoSecondVote(t *testing.T) {
	f := startBare(t, 1, nil)
	g, err := servers.StartRedis(t.Context(), filepath.Join(t.TempDir(), "other"), "--replicaof", "127.0.0.1 "+strconv.Itoa(f.all[0].Port))
	check(t, err)
	t.Cleanup(g.Kill)
	group := servers.RedisReplicas{Primary: f.all[0], Replicas: []*servers.Redis{g}}
	check(t, group.Linked(t.Context()))
	f.setUp()
	if _, err := g.Do(t.Context(), "REPLICAOF", "NO", "ONE"); err != nil {
		t.Fatal(err)
	}
	first := must(t, f.open(t), "name", time.Minute)
	f.do(0, "REPLICAOF", "127.0.0.1", strconv.Itoa(g.Port))
	group = servers.RedisReplicas{Primary: g, Replicas: f.all}
	check(t, group.Linked(t.Context()))
	f.do(0, "REPLICAOF", "NO", "ONE")
	if f.do(0, "EXISTS", "holdfast:redlock:l::name") != int64(0) || f.state(0)["run"] == "" {
		t.Fatal("the server has not taken the other's data")
	}
	if second, err := f.open(t).Acquire(t.Context(), request("name", time.Minute)); err == nil {
		t.Fatalf("two clients hold the lock, with the tokens %d and %d", first.Token, second.Token)
	}
}

// TestShorterMaxTTLAdmitsNoServer: a server has lost the vote for a long lease. A client whose
// max_ttl is shorter than that of the other clients does not admit the server.
func TestShorterMaxTTLAdmitsNoServer(t *testing.T) {
	f := start(t, 3, nil)
	f.proxies[2].Cut()
	first := must(t, f.open(t), "name", time.Minute)
	check(t, f.proxies[2].Heal())
	check(t, f.all[1].RestartEmpty(t.Context()))
	s := f.open(t, redlock.MaxTTL(100*time.Millisecond))
	for end := time.Now().Add(4 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if second, err := s.Acquire(t.Context(), request("name", 100*time.Millisecond)); err == nil {
			t.Fatalf("two clients hold the lock, with the tokens %d and %d", first.Token, second.Token)
		}
	}
}

// TestServerGivenTwiceIsRefused: the URL has two names of one server, which would have two votes.
// Acquire fails.
func TestServerGivenTwiceIsRefused(t *testing.T) {
	f := start(t, 3, nil)
	one := strconv.Itoa(f.all[0].Port)
	s, err := redlock.Open(t.Context(), "redlock://127.0.0.1:"+one+"?node=localhost:"+one+"&node="+f.all[1].Address())
	check(t, err)
	t.Cleanup(func() { _ = s.Close(t.Context()) })
	if g, err := s.Acquire(t.Context(), request("name", time.Minute)); s.Classify(err) != driver.CodeRefused {
		t.Errorf("Acquire: %+v, %v; want refused", g, err)
	}
}

// TestServerThatRefusesStopsANewClient: one of three servers refuses all scripts. A client that has begun before goes on
// with a quorum. A new client reports the refusal.
func TestServerThatRefusesStopsANewClient(t *testing.T) {
	f := start(t, 3, nil)
	before := f.open(t)
	release(t, before, must(t, before, "name", time.Minute))
	f.do(2, "ACL", "SETUSER", "default", "-eval", "-evalsha")
	release(t, before, must(t, before, "name", time.Minute))
	until(t, "a new client reports the refusal", func() bool { // a slow answer of the server counts as none
		s := f.open(t)
		_, err := s.Guarantees(t.Context())
		return err != nil && s.Classify(err) == driver.CodeRefused
	})
}
