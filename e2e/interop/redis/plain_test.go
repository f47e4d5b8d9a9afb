package redis

import (
	"context"
	"testing"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	pool "github.com/go-redsync/redsync/v4/redis/goredis/v9"
	goredis "github.com/redis/go-redis/v9"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/redisstore/layouts"
)

// TestPlainExcludesOtherClients: holdfast and each client that stores a lock as one string per name exclude one
// another. Each gets the lock after the other has released it.
func TestPlainExcludesOtherClients(t *testing.T) {
	d := start(t, "single")
	client := goredis.NewClient(&goredis.Options{Addr: d.address})
	t.Cleanup(func() { _ = client.Close() })
	rs, rl := redsync.New(pool.NewPool(client)), redislock.New(client)
	python, java := d.python(t), d.java(t, endless)
	type other struct {
		try              func(t *testing.T, name string) bool
		acquire, release func(t *testing.T, name string)
		renew            func(t *testing.T, name string)
	}
	mutexes, locks := map[string]*redsync.Mutex{}, map[string]*redislock.Lock{}
	mutex := func(name string) *redsync.Mutex {
		if mutexes[name] == nil {
			mutexes[name] = rs.NewMutex(name, redsync.WithExpiry(endless), redsync.WithTries(100000), redsync.WithRetryDelay(5*time.Millisecond))
		}
		return mutexes[name]
	}
	process := func(p *peer) other {
		return other{
			try:     func(_ *testing.T, name string) bool { return p.lock("plain", name).does("try") == "true" },
			acquire: func(_ *testing.T, name string) { p.lock("plain", name).does("acquire") },
			release: func(_ *testing.T, name string) { p.lock("plain", name).does("release") },
			renew:   func(_ *testing.T, name string) { p.lock("plain", name).does("renew") },
		}
	}
	for name, o := range map[string]other{
		"redsync": {
			try:     func(t *testing.T, name string) bool { return mutex(name).TryLockContext(t.Context()) == nil },
			acquire: func(t *testing.T, name string) { must(t, mutex(name).LockContext(t.Context())) },
			renew: func(t *testing.T, name string) {
				if ok, err := mutex(name).ExtendContext(t.Context()); !ok {
					t.Error(err)
				}
			},
			release: func(t *testing.T, name string) {
				if ok, err := mutex(name).UnlockContext(t.Context()); !ok {
					t.Error(err)
				}
			},
		},
		"redislock": {
			try: func(t *testing.T, name string) bool {
				k, err := rl.Obtain(t.Context(), name, endless, nil)
				if err == nil {
					locks[name] = k
				}
				return err == nil
			},
			acquire: func(t *testing.T, name string) {
				ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
				defer cancel()
				k, err := rl.Obtain(ctx, name, endless, &redislock.Options{RetryStrategy: redislock.LinearBackoff(5 * time.Millisecond)})
				must(t, err)
				locks[name] = k
			},
			renew:   func(t *testing.T, name string) { must(t, locks[name].Refresh(t.Context(), endless, nil)) },
			release: func(t *testing.T, name string) { must(t, locks[name].Release(t.Context())) },
		},
		"redis-py":       process(python),
		"Redisson's set": process(java),
	} {
		t.Run(name, func(t *testing.T) {
			q := newQueued()
			l := d.open(t, layouts.Plain, endless, holdfast.WithHooks(q))
			key := "plain-" + name[:7]
			python.t, java.t = t, t
			if !o.try(t, key) {
				t.Fatal("the other client does not get a free lock")
			}
			busy(t, l, key)
			o.renew(t, key)
			st, err := d.operator(t, layouts.Plain).Inspect(t.Context(), key)
			if err != nil || len(st.Holders) != 1 || st.Holders[0].Note == "" {
				t.Errorf("%+v, %v", st, err)
			}
			w := wait(t, l, q, key)
			o.release(t, key)
			k := w.granted()
			if o.try(t, key) {
				t.Error("the other client gets the lock that holdfast holds")
			}
			got := make(chan struct{})
			go func() {
				defer close(got)
				o.acquire(t, key)
			}()
			time.Sleep(20 * time.Millisecond)
			must(t, k.Unlock())
			select {
			case <-got:
			case <-time.After(testTimeout):
				t.Fatal("the other client does not get the lock that holdfast has released")
			}
			busy(t, l, key)
			o.release(t, key)
		})
	}
	d.remains(t)
}

// TestPlainLosesNoIncrement: two processes each of Java, Python and Go add to one register, and no
// increment is lost.
func TestPlainLosesNoIncrement(t *testing.T) {
	d := start(t, "single")
	contend(t, "plain", 167, d.java(t, endless), d.java(t, endless), d.python(t), d.python(t), d.worker(t), d.worker(t))
	d.remains(t)
}

// TestPlainLockOfDeadHolderExpires: a process of holdfast holds a lock and is killed. Another client
// gets the lock after the lease has expired.
func TestPlainLockOfDeadHolderExpires(t *testing.T) {
	t.Parallel()
	d := start(t, "single")
	worker, python := d.worker(t), d.python(t)
	worker.lock("plain", "plain-dies").does("acquire")
	time.Sleep(3 * lease / 2)
	mine := python.lock("plain", "plain-dies")
	if got := mine.does("try"); got != "false" {
		t.Error("redis-py gets a lock that is renewed")
	}
	worker.kill()
	mine.does("acquire")
	mine.does("release")
	d.remains(t)
}
