package nats

import (
	"bufio"
	"context"
	"io"
	"net"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/e2e/conformance/requests"
	"github.com/holdfast-go/holdfast/internal/servers"
)

// TestLeaderWithoutQuorumGivesNoAnswer: a leader that cannot reach the others still answers reads, and the store does
// not believe it. A write there has an unknown outcome. The store continues when the others are back.
func TestLeaderWithoutQuorumGivesNoAnswer(t *testing.T) {
	c := start(t, servers.NATSConfig{Members: 3})
	leader := c.leader(t)
	s := c.openOne(t, leader)
	version, err := s.Put(t.Context(), "key", []byte("1"), "")
	check(t, err)
	if _, _, err := s.Get(t.Context(), "key"); err != nil { // the replicas then have a clock
		t.Fatal(err)
	}
	each := func(do func(*servers.NATS) error) {
		t.Helper()
		for i, n := range c.members {
			if i == leader {
				continue
			}
			check(t, do(n))
		}
	}
	each((*servers.NATS).Pause)
	answer, err := c.members[leader].Request(t.Context(), "$JS.API.DIRECT.GET.KV_locks.$KV.locks.value._._key", "")
	if err != nil {
		t.Errorf("the leader does not answer a direct get, so this test shows nothing: %q, %v", answer, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if _, _, err := s.Get(ctx, "key"); driver.CodeOf(err) != driver.CodeUnavailable {
		t.Errorf("Get: %v", err)
	}
	if _, err := s.Put(ctx, "key", []byte("2"), version); driver.CodeOf(err) != driver.CodeUnknown {
		t.Errorf("Put: %v", err)
	}
	each((*servers.NATS).Cont)
	requests.Eventually(t, "the store continues", func() bool {
		_, _, err := s.Get(t.Context(), "key")
		return err == nil
	})
}

// TestLaggingFollowerIsNotBelieved: a follower that has missed a write still answers direct gets with the old record.
// The store then reads again, until a server that has the write answers.
func TestLaggingFollowerIsNotBelieved(t *testing.T) {
	var r replication
	c := start(t, servers.NATSConfig{Members: 3, Route: r.proxy(t)})
	leader := c.leader(t)
	follower := (leader + 1) % len(c.members)
	s, writer := c.openOne(t, follower), c.openOne(t, leader)
	version, err := writer.Put(t.Context(), "key", []byte("1"), "")
	check(t, err)
	if _, _, err := s.Get(t.Context(), "key"); err != nil { // it checks the bucket
		t.Fatal(err)
	}
	requests.Eventually(t, "the follower serves reads", func() bool {
		reads, err := c.members[follower].Reads(t.Context(), "KV_locks")
		check(t, err)
		return reads
	})
	r[follower].Lock()
	defer r[follower].Unlock()
	_, err = writer.Put(t.Context(), "key", []byte("2"), version)
	check(t, err)
	old := 0
	for range 50 { // the servers answer by chance
		answer, err := c.members[follower].Request(t.Context(), "$JS.API.DIRECT.GET.KV_locks.$KV.locks.value._._key", "")
		if err != nil {
			t.Fatal(err)
		} else if !strings.HasSuffix(answer, "2\r\n") {
			old++
		}
		if data, _, err := s.Get(t.Context(), "key"); err != nil || string(data) != "2" {
			t.Fatalf("Get: %q, %v", data, err)
		}
	}
	if old == 0 {
		t.Error("the follower has not answered with the old record, so this test shows nothing")
	}
}

// TestFormerLeaderDoesNotList: a leader from which nothing is replicated still lists the bucket, for some seconds after
// the others have elected another one. The store does not believe it.
func TestFormerLeaderDoesNotList(t *testing.T) {
	var r replication
	c := start(t, servers.NATSConfig{Members: 3, Route: r.proxy(t)})
	former := c.leader(t)
	s := c.openOne(t, former)
	if _, _, err := s.Get(t.Context(), "key"); err != nil { // it checks the bucket
		t.Fatal(err)
	}
	r[former].Lock()
	defer r[former].Unlock()
	requests.Eventually(t, "another server leads", func() bool {
		return c.leads(t, (former+1)%3) || c.leads(t, (former+2)%3)
	})
	var err error
	for _, err = range s.List(t.Context(), "") {
	}
	if driver.CodeOf(err) != driver.CodeUnavailable {
		t.Errorf("List: %v", err)
	}
}

// leads reports whether a server leads the bucket.
func (c *cluster) leads(t *testing.T, server int) bool {
	t.Helper()
	leads, err := c.members[server].Leads(t.Context(), "KV_locks")
	check(t, err)
	return leads
}

// leader returns the number of the server that leads the bucket.
func (c *cluster) leader(t *testing.T) int {
	t.Helper()
	for i := range c.members {
		if c.leads(t, i) {
			return i
		}
	}
	t.Fatal("no server leads the bucket")
	return -1
}

// replication carries the routes of a cluster. While a lock is held, nothing is replicated to its server, nor from it.
// The servers replicate over routes of their own, in the account $SYS. The other routes are not disturbed.
type replication [3]sync.RWMutex

// proxy returns a function that puts a proxy before the route address of a server.
func (r *replication) proxy(t *testing.T) func(int, string) (string, error) {
	return func(server int, address string) (string, error) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return "", err
		}
		t.Cleanup(func() { _ = l.Close() })
		go func() {
			for {
				dialer, err := l.Accept()
				if err != nil {
					return
				}
				go r.carry(dialer, address, server)
			}
		}()
		return l.Addr().String(), nil
	}
}

// replicates matches the INFO of a server that dials for replication.
var replicates = regexp.MustCompile(`^INFO .*"server_name":"n([0-2])".*"route_account":"\$SYS"`)

// carry connects a server to another one.
func (r *replication) carry(dialer net.Conn, address string, server int) {
	defer dialer.Close()
	accepter, err := net.Dial("tcp", address)
	if err != nil {
		return
	}
	defer accepter.Close()
	var locks atomic.Pointer[[]*sync.RWMutex]
	locks.Store(&[]*sync.RWMutex{})
	forward := func(to net.Conn, from io.Reader) {
		defer to.Close()
		for data := make([]byte, 64<<10); ; {
			n, err := from.Read(data)
			both := *locks.Load()
			for _, l := range both {
				l.RLock()
			}
			_, failed := to.Write(data[:n])
			for _, l := range both {
				l.RUnlock()
			}
			if err != nil || failed != nil {
				return
			}
		}
	}
	go forward(dialer, accepter)
	lines := bufio.NewReader(dialer)
	for line := ""; !strings.HasPrefix(line, "INFO "); {
		if line, err = lines.ReadString('\n'); err != nil {
			return
		}
		if m := replicates.FindStringSubmatch(line); m != nil {
			locks.Store(&[]*sync.RWMutex{&r[server], &r[m[1][0]-'0']})
		}
		if _, err := io.WriteString(accepter, line); err != nil {
			return
		}
	}
	forward(accepter, lines)
}
