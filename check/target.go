//go:build linux || darwin

package check

import (
	"context"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/filestore"
	"github.com/holdfast-go/holdfast/memstore"
)

// Target is a store to torture.
type Target struct {
	// URL is what worker processes open, and the coordinator with them.
	URL string
	// Open opens an independent client in this process. Where it is set and URL is
	// empty, workers are goroutines, each with a client and a Locker.
	Open func(context.Context) (driver.Store, error)
	// Faults are what can be done to the store itself.
	Faults []StoreFault
	// Left lists what is at the store when everyone has left, beside what List
	// shows; nil if there is nothing to look at.
	Left func(context.Context) ([]string, error)
	// Close ends the store, if it was begun for this run.
	Close func() error
}

// StoreFault is something that can be done to a store.
type StoreFault struct {
	Kind string
	// Early: it may take grants away before their TTL, within what the store's
	// guarantees declare: those of Fault.Name, or with All those of every name.
	Early, All bool
	// Takes, unless 0, is for how long from the beginning of an Early fault the grants are asked
	// for that it may take away. Those of later have to stand.
	Takes time.Duration
	// Rewinds: it brings the store back to an earlier state. Tokens that were granted
	// before it are exceeded again when the declared notice has passed, and not before.
	Rewinds bool
	// Loses: writes that the store acknowledged just before it or meanwhile may be lost, as in
	// a failover: a release, a queue entry, the roll back of a request. A fault that
	// Rewinds loses them, too.
	Loses bool
	// Detail, unless nil, says in a few words what this one does, for the story: which
	// command is refused, which server is stopped.
	Detail func(Fault) string
	// Admit, unless nil, tells whether the fault can begin just now; if not it is
	// left out.
	Admit func(Fault) bool
	// Begin does it, and End, unless nil, ends it when its time is over.
	Begin, End func(context.Context, Fault) error
}

// locals are the stores that a run can start for itself.
var locals = map[string]func(ctx context.Context, dir string) (*Target, error){
	"memory": memoryTarget,
	"file":   fileTarget,
	// With heartbeats quicker than usual the shortest lease is a second.
	"etcd":         etcdTarget(1, 20*time.Millisecond),
	"etcd-cluster": etcdTarget(3, 60*time.Millisecond),

	"redis-plain": redisLayoutTarget("plain"), "redis-redisson": redisLayoutTarget("redisson"), "redis-redisson-fair": redisLayoutTarget("redisson-fair"),
	"redis-redisson-rw": redisLayoutTarget("redisson-rw"), "redis-redisson-spin": redisLayoutTarget("redisson-spin"),
	// Its tokens begin anew without data.
	"redis-redisson-fenced": redisLayoutTarget("redisson-fenced", "flush", "restart-empty", "evict-keys"),
	// A part of a semaphore that is evicted takes permits with it for good.
	"redis-redisson-semaphore": redisLayoutTarget("redisson-semaphore", "evict-keys"), "redis-redisson-permits": redisLayoutTarget("redisson-permits", "evict-keys"),
	"redis": redisTarget, "redis-replicas": redisReplicasTarget, "redis-sentinel": redisSentinelTarget, "redis-cluster": redisClusterTarget,
}

// Locals lists the stores that a run can start for itself.
func Locals() []string { return slices.Sorted(maps.Keys(locals)) }

// StartLocal starts one of Locals in a directory, for a caller who changes something
// about it: a Config's Target. The caller ends it with Close.
func StartLocal(ctx context.Context, local, dir string) (*Target, error) {
	begin, ok := locals[local]
	if !ok {
		return nil, badConfig("Local", "%q: it is no local store: choose from %s", local, strings.Join(Locals(), ", "))
	}
	return begin(ctx, dir)
}

func (c *Config) target(ctx context.Context, dir string) (*Target, error) {
	if c.Target != nil {
		return c.Target, nil
	}
	if c.Local != "" {
		return StartLocal(ctx, c.Local, dir)
	}
	if scheme, _, _ := strings.Cut(c.URL, ":"); scheme == "memory" {
		return nil, badConfig("", "memory: is a new store for everyone who opens it: use Local")
	}
	return &Target{URL: c.URL}, nil
}

// memoryTarget is a store in this process, and its script.
func memoryTarget(context.Context, string) (*Target, error) {
	s := memstore.New()
	script := s.Script()
	do := func(f func(Fault)) func(context.Context, Fault) error {
		return func(_ context.Context, fault Fault) error { f(fault); return nil }
	}
	reset := do(func(Fault) { script.Reset() })
	return &Target{
		Open: func(context.Context) (driver.Store, error) { return s.Client(), nil },
		Faults: []StoreFault{
			{Kind: "stop", Begin: do(func(Fault) { script.Stop() }), End: do(func(Fault) { script.Start() })},
			{Kind: "lose", Early: true, Begin: func(_ context.Context, f Fault) error {
				if err := script.Lose(f.Name, driver.CauseTaken); driver.CodeOf(err) != driver.CodeNotHeld {
					return err
				}
				return nil
			}},
			{Kind: "fail-renewals", Begin: do(func(f Fault) { script.FailRenewals("", 1+f.N%12, nil) }), End: reset},
			{Kind: "delay-renewal", Begin: do(func(f Fault) { script.DelayRenewal("", f.For) }), End: reset},
			{Kind: "lose-answer", Begin: do(func(f Fault) {
				script.LoseAcquireAnswer("", memstore.Outcome(f.N%3), f.For/4)
			}), End: reset},
			{Kind: "fail-releases", Begin: do(func(f Fault) {
				script.FailReleases("", 1+f.N%3, driver.Errorf(driver.CodeUnavailable, "the store cannot be reached (scripted)"))
			}), End: reset},
		},
		Close: func() error { return s.Close(context.Background()) },
	}, nil
}

// fileTarget is a directory of locks.
func fileTarget(_ context.Context, dir string) (*Target, error) {
	locks := filepath.Join(dir, "locks")
	if err := os.MkdirAll(locks, 0o700); err != nil {
		return nil, err
	}
	return &Target{
		URL: "file://" + locks,
		Left: func(ctx context.Context) ([]string, error) {
			// A new client clears away what the dead have left.
			s, err := filestore.Open(ctx, locks)
			if err != nil {
				return nil, err
			}
			defer s.Close(ctx)
			if _, err := s.Acquire(ctx, driver.Request{ID: "check-sweep", Name: "check-sweep", Limit: driver.Exclusive, TTL: time.Minute, From: sweeper{}}); err != nil {
				return nil, err
			}
			if err := s.Undo(ctx, driver.Request{ID: "check-sweep", Name: "check-sweep"}); err != nil {
				return nil, err
			}
			var left []string
			for range 150 {
				files, err := os.ReadDir(filepath.Join(locks, "sessions"))
				if err != nil {
					return nil, err
				}
				if left = left[:0]; len(files) <= 2 { // our own, and its socket
					return nil, nil
				}
				for _, f := range files {
					left = append(left, "sessions/"+f.Name())
				}
				time.Sleep(20 * time.Millisecond)
			}
			return left, nil
		},
	}, nil
}

type sweeper struct{}

func (sweeper) Owner() driver.Owner      { return driver.Owner{ID: "check-sweep", PID: os.Getpid()} }
func (sweeper) Queued([]driver.Holder)   {}
func (sweeper) Lost(driver.Cause, error) {}
