package redis

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/e2e/conformance/requests"
	"github.com/holdfast-go/holdfast/internal/wakeup"
	"github.com/holdfast-go/holdfast/redisstore/layouts"
)

// aThread is an owner as Redisson writes it.
const aThread = "6f0c4a43-0b5c-4a6e-9d53-0d6f4a4c1f57:1"

// TestClusterLayoutHearsPlainAndShardedMessages: Redisson before 3.22 releases with PUBLISH in a Cluster, too, and a
// later one with SPUBLISH. A waiter without a fallback receives either.
func TestClusterLayoutHearsPlainAndShardedMessages(t *testing.T) {
	t.Parallel()
	c := ownCluster(t, false)
	for _, publish := range []string{"PUBLISH", "SPUBLISH"} {
		t.Run(publish, func(t *testing.T) {
			s := openLayout(t, "redis+cluster://"+c.Nodes[0].Address(), layouts.Redisson)
			name := publish
			slot, err := c.Slot(t.Context(), name)
			check(t, err)
			owner, err := c.Owner(t.Context(), slot)
			check(t, err)
			do(t, owner, "HSET", name, aThread, "1")
			do(t, owner, "PEXPIRE", name, "600000")
			w := queue(t, wakeup.WithoutFallback(s), request(name, driver.Exclusive, long))
			do(t, owner, "DEL", name)
			do(t, owner, publish, "redisson_lock__channel:{"+name+"}", "0")
			release(t, s, w.Granted())
		})
	}
}

// TestFairWaiterWakesStalledHead: Redisson loses the message to its waiter at the head of the queue, and the lock is
// free. A waiter of holdfast behind it sends the message again.
func TestFairWaiterWakesStalledHead(t *testing.T) {
	t.Parallel()
	r := start(t)
	const name = "a"
	do(t, r, "HSET", name, aThread+"0", "1")
	do(t, r, "PEXPIRE", name, "600000")
	do(t, r, "ZADD", "redisson_lock_timeout:{a}", "1e15", aThread)
	do(t, r, "RPUSH", "redisson_lock_queue:{a}", aThread)
	client := goredis.NewClient(&goredis.Options{Addr: r.Address()})
	t.Cleanup(func() { _ = client.Close() })
	head := client.Subscribe(t.Context(), "redisson_lock__channel:{a}:"+aThread)
	t.Cleanup(func() { _ = head.Close() })
	if _, err := head.Receive(t.Context()); err != nil {
		t.Fatal(err)
	}
	s := openLayout(t, "redis://"+r.Address(), layouts.RedissonFair, withFairWait(layouts.RedissonFair)...)
	w := queue(t, s, request(name, driver.Exclusive, long))
	do(t, r, "DEL", name)
	if m := requests.Receive(t, "the message to the waiter at the head", head.Channel()); m.Payload != "0" {
		t.Errorf("the message is %q", m.Payload)
	}
	w.Pending()
	do(t, r, "LPOP", "redisson_lock_queue:{a}")
	do(t, r, "ZREM", "redisson_lock_timeout:{a}", aThread)
	release(t, s, w.Granted())
}

// TestFairDeadEntriesLastOneWaitEach: the holder of a long lease releases early, and dead waiters stand before a living
// one. Their deadlines count from the end of that lease, or are gone after an eviction. Each dead entry still keeps the free
// name for one fair wait, and no client has to wait for the lease.
func TestFairDeadEntriesLastOneWaitEach(t *testing.T) {
	t.Parallel()
	const queued, times, wait, lease, dead = "redisson_lock_queue:{a}", "redisson_lock_timeout:{a}", time.Second, 10 * requests.Timeout, 3
	for _, c := range []struct {
		name             string
		evicted, waiting bool
	}{{"waiter", false, true}, {"deadlines evicted", true, true}, {"no waiter", false, false}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := start(t)
			s := openLayout(t, "redis://"+r.Address(), layouts.RedissonFair, layouts.FairWait(wait))
			held := must(t, s, request("a", driver.Exclusive, lease))
			for i := range dead {
				of := aThread + strconv.Itoa(i)
				do(t, r, "ZADD", times, fmt.Sprint(time.Now().Add(lease+time.Duration(i+1)*wait).UnixMilli()), of)
				do(t, r, "RPUSH", queued, of)
			}
			client := goredis.NewClient(&goredis.Options{Addr: r.Address()})
			t.Cleanup(func() { _ = client.Close() })
			last := client.Subscribe(t.Context(), "redisson_lock__channel:{a}:"+aThread+strconv.Itoa(dead-1))
			t.Cleanup(func() { _ = last.Close() })
			if _, err := last.Receive(t.Context()); err != nil {
				t.Fatal(err)
			}
			var w *waiter
			if c.waiting {
				w = queue(t, s, request("a", driver.Exclusive, long))
			}
			if c.evicted {
				do(t, r, "DEL", times)
			}
			released, err := client.Time(t.Context()).Result()
			check(t, err)
			release(t, s, held)
			var g driver.Grant
			if c.waiting {
				g = w.Granted()
			} else {
				eventually(t, "a request without a queue entry is granted", func() bool {
					g, err = s.Acquire(t.Context(), request("a", driver.Exclusive, long))
					return err == nil
				})
			}
			requests.Receive(t, "the message to the last dead waiter", last.Channel())
			if at := time.UnixMicro(int64(g.Token)); at.Sub(released) < dead*wait {
				t.Errorf("granted %s after the release, before each of %d waiters had %s", at.Sub(released), dead, wait)
			}
			release(t, s, g)
		})
	}
}

// TestFairRefreshOutlivesLease: while another client holds the name, each request of a waiter gives its entry the deadline of
// one made now, so that a waiter that is late for a moment keeps its position.
func TestFairRefreshOutlivesLease(t *testing.T) {
	t.Parallel()
	r := start(t)
	const name, times = "a", "redisson_lock_timeout:{a}"
	do(t, r, "HSET", name, aThread, "1")
	do(t, r, "PEXPIRE", name, "600000")
	s := openLayout(t, "redis://"+r.Address(), layouts.RedissonFair, withFairWait(layouts.RedissonFair)...)
	w := queue(t, s, request(name, driver.Exclusive, long))
	own := fmt.Sprint(do(t, r, "LINDEX", "redisson_lock_queue:{a}", "0"))
	do(t, r, "ZADD", times, fmt.Sprint(time.Now().Add(2*testTimeout).UnixMilli()), own)
	eventually(t, "the entry outlives the lease", func() bool {
		deadline, err := strconv.ParseInt(fmt.Sprint(do(t, r, "ZSCORE", times, own)), 10, 64)
		check(t, err)
		expires, err := strconv.ParseInt(fmt.Sprint(do(t, r, "PEXPIRETIME", name)), 10, 64)
		check(t, err)
		return deadline > expires
	})
	do(t, r, "DEL", name)
	release(t, s, w.Granted())
}

// TestFairGrantKeepsLivingEntries: in a queue that never empties, the deadlines of Redisson's entries fall behind the
// clock. A grant to holdfast leaves each entry behind it a whole wait, and no more than that, although deadlines exist whose
// entries are gone.
func TestFairGrantKeepsLivingEntries(t *testing.T) {
	t.Parallel()
	r := start(t)
	const name, queued, times, second = "a", "redisson_lock_queue:{a}", "redisson_lock_timeout:{a}", aThread + "1"
	do(t, r, "HSET", name, aThread+"0", "1")
	do(t, r, "PEXPIRE", name, "600000")
	s := openLayout(t, "redis://"+r.Address(), layouts.RedissonFair, withFairWait(layouts.RedissonFair)...)
	w := queue(t, s, request(name, driver.Exclusive, long))
	now := time.Now()
	for i, of := range []string{aThread, second} {
		do(t, r, "ZADD", times, fmt.Sprint(now.Add(time.Duration(i+1)*fairWait+time.Second).UnixMilli()), of)
		do(t, r, "RPUSH", queued, of)
	}
	for i := range 5 {
		do(t, r, "ZADD", times, "1", fmt.Sprint("gone:", i))
	}
	do(t, r, "DEL", name)
	do(t, r, "PUBLISH", "redisson_lock__channel:{a}:"+fmt.Sprint(do(t, r, "LINDEX", queued, "0")), "0")
	g := w.Granted()
	for i, of := range []string{aThread, second} {
		deadline, err := strconv.ParseInt(fmt.Sprint(do(t, r, "ZSCORE", times, of)), 10, 64)
		if least := now.Add(time.Duration(i+1) * fairWait); err != nil || time.UnixMilli(deadline).Before(least) {
			t.Errorf("entry %d ends at %d, %v, before %d", i, deadline, err, least.UnixMilli())
		}
		if most := time.Now().Add(long + time.Duration(i+1)*fairWait); time.UnixMilli(deadline).After(most) {
			t.Errorf("entry %d ends at %d, after %d", i, deadline, most.UnixMilli())
		}
	}
	release(t, s, g)
}
