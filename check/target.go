//go:build linux || darwin

package check

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	_ "github.com/holdfast-go/holdfast/filestore" // opens the URL of fileTarget
	"github.com/holdfast-go/holdfast/internal/servers"
	"github.com/holdfast-go/holdfast/memstore"
)

// Target is a store to test.
type Target struct {
	// URL is the URL that worker processes and the coordinator open.
	URL string
	// ofWorker, unless it is nil, returns the URL for a worker process. All these URLs lead
	// to the same store.
	ofWorker func(worker int) string
	// gateway, unless it is nil, returns the URL of the holdfast serve through which a worker process locks.
	gateway func(worker int) string
	// pauseHolder is that of the present round's crew. It is for faults that need a holder,
	// on targets whose workers are processes.
	pauseHolder func(ctx context.Context, left time.Duration, fits func(name string) (bool, error)) (*pausedHolder, error)
	// Open opens an independent client in this process. If it is set and URL is empty,
	// workers are goroutines, each with a client and a Locker.
	Open func(context.Context) (driver.Store, error)
	// Faults are the faults of the store itself.
	Faults []StoreFault
	// Left lists what remains at the store after all clients ended, in addition to what
	// List returns. It is nil if there is nothing more to inspect.
	Left func(context.Context) ([]string, error)
	// Close ends the store, if this run has started it.
	Close func() error
	ends  []func() // see onClose
}

func (t *Target) close() error {
	if t.Close == nil {
		return nil
	}
	return t.Close()
}

// onClose adds the end of a part of a local store.
func (t *Target) onClose(end func()) { t.ends = append(t.ends, end) }

// endParts ends the parts of a local store, the last one first.
func (t *Target) endParts() error {
	for _, end := range slices.Backward(t.ends) {
		end()
	}
	return nil
}

// proxy starts a proxy for an address, as a part of the target.
func (t *Target) proxy(upstream string) (*servers.Proxy, error) {
	p, err := servers.NewProxy(upstream)
	if err == nil {
		t.onClose(p.Close)
	}
	return p, err
}

// proxies starts a proxy for each of some addresses. It also returns the addresses of the proxies.
func (t *Target) proxies(upstreams ...string) (all []*servers.Proxy, addresses []string, err error) {
	for _, upstream := range upstreams {
		p, err := t.proxy(upstream)
		if err != nil {
			return nil, nil, err
		}
		all, addresses = append(all, p), append(addresses, p.Address())
	}
	return all, addresses, nil
}

// opener returns the function that opens a client.
func (t *Target) opener(c *Config) func(context.Context) (driver.Store, error) {
	if t.Open != nil {
		return t.Open
	}
	return opener(t.URL, c.Namespace)
}

// leftSoon returns a Left that repeats find until nothing remains, for at most d. It
// repeats find because sessions, queues and tombstones expire soon, and because find may
// fail during an election.
func leftSoon[T any](d time.Duration, find func(context.Context) ([]T, error)) func(context.Context) ([]T, error) {
	return func(ctx context.Context) ([]T, error) {
		for end := time.Now().Add(d); ; sleep(ctx, 50*time.Millisecond) {
			left, err := find(ctx)
			if err == nil && len(left) == 0 || ctx.Err() != nil || time.Now().After(end) {
				return left, err
			}
		}
	}
}

// StoreFault is a fault of a store.
type StoreFault struct {
	Kind string
	// Early reports whether the fault may take grants away before their TTL, within what
	// the store's guarantees declare. All extends that from the grants of Fault.Name to
	// those of every name.
	Early, All bool
	// Takes, unless it is 0, limits which grants an Early fault may take away: only those
	// requested within Takes of its beginning. Later grants must stand.
	Takes time.Duration
	// Rewinds reports whether the fault brings the store back to an earlier state. Only
	// after the declared notice do new tokens again exceed the tokens from before the
	// fault.
	Rewinds bool
	// Loses reports whether the store may lose writes that it acknowledged during the fault
	// or just before it, as in a failover. Such a write is a release, a queue entry, or the
	// rollback of a request. A fault that Rewinds also loses them.
	Loses bool
	// KeepsOrder reports whether the queue keeps its order in the fault, except that the first waiters may
	// queue again.
	KeepsOrder bool
	// Often is the weight of the fault in the plan: most faults have weight 1, and 0 counts
	// as 1.
	Often int
	// Detail, unless it is nil, describes the present fault in a few words: the refused
	// command, the stopped server.
	Detail func(Fault) string
	// Begin begins the fault. End, unless it is nil, ends the fault.
	Begin, End func(context.Context, Fault) error
	// admit, unless it is nil, reports whether the fault can begin now. If it cannot, the
	// check skips it.
	admit func() bool
}

// starter starts a store in a directory, and describes it in the target. Also if it fails, its caller ends the
// parts that it has started.
type starter func(ctx context.Context, dir string, t *Target) error

// locals are the stores that a run can start for itself.
var locals = map[string]starter{
	"memory": memoryTarget,
	"file":   fileTarget,
	// The shorter heartbeats make the shortest lease one second.
	"etcd":         etcdTarget(1, 20*time.Millisecond),
	"etcd-cluster": etcdTarget(3, 60*time.Millisecond),

	"redis":          redisTarget,
	"redis-replicas": redisReplicasTarget,
	"redis-sentinel": redisSentinelTarget,
	"redis-cluster":  redisClusterTarget,
	"redlock":        redlockTarget,

	"redis-plain":         redisLayoutTarget("plain"),
	"redis-redisson":      redisLayoutTarget("redisson"),
	"redis-redisson-fair": redisLayoutTarget("redisson-fair&fair_wait=" + fairWait.String()),
	"redis-redisson-rw":   redisLayoutTarget("redisson-rw"),
	"redis-redisson-spin": redisLayoutTarget("redisson-spin"),
	// If the server loses its data, the tokens of this layout begin again.
	"redis-redisson-fenced": redisLayoutTarget("redisson-fenced", "flush", "restart-empty", "evict-keys"),
	// If the server evicts a part of a semaphore, the semaphore never gets the permits
	// back.
	"redis-redisson-semaphore": redisLayoutTarget("redisson-semaphore", "evict-keys"),
	"redis-redisson-permits":   redisLayoutTarget("redisson-permits", "evict-keys"),

	"zookeeper":          zookeeperTarget,
	"zookeeper-ensemble": ensembleTarget,

	"mariadb-galera": galeraTarget,

	"gateway": gatewayTarget,
}

// init adds each database with each of its recipes. The empty recipe selects the store's
// default.
func init() {
	for database, target := range map[string]func(recipe string) starter{
		"mysql": mysqlTarget, "mariadb": mariadbTarget, "postgres": postgresTarget,
	} {
		own := "named"
		if database == "postgres" {
			own = "advisory"
		}
		for _, recipe := range []string{"", "pessimistic", "optimistic", own} {
			locals[strings.TrimSuffix(database+"-"+recipe, "-")] = target(recipe)
		}
	}
}

// Locals lists the stores that a run can start for itself.
func Locals() []string { return slices.Sorted(maps.Keys(locals)) }

// StartLocal starts one of Locals in a directory, for a caller that changes the Target
// before it puts it into a Config. The caller ends the Target with its Close.
func StartLocal(ctx context.Context, local, dir string) (*Target, error) {
	begin, ok := locals[local]
	if !ok {
		return nil, badConfig("Local", "%q: this is no local store: choose from %s", local, strings.Join(Locals(), ", "))
	}
	t := &Target{}
	t.Close = t.endParts
	if err := begin(ctx, dir, t); err != nil {
		return nil, errors.Join(err, t.close())
	}
	return t, nil
}

func (c *Config) target(ctx context.Context, dir string) (*Target, error) {
	if c.Target != nil {
		return c.Target, nil
	}
	if c.Local != "" {
		return StartLocal(ctx, c.Local, dir)
	}
	if scheme, _, _ := strings.Cut(c.URL, ":"); scheme == "memory" {
		return nil, badConfig("", "memory: is a new store for each client: use Local")
	}
	return &Target{URL: c.URL}, nil
}

// memoryTarget is a store in this process, with the faults of its script.
func memoryTarget(_ context.Context, _ string, t *Target) error {
	s := memstore.New()
	t.onClose(func() { _ = s.Close(context.Background()) })
	t.Open = func(context.Context) (driver.Store, error) { return s.Client(), nil }
	script := s.Script()
	do := func(f func(Fault)) func(context.Context, Fault) error {
		return func(_ context.Context, fault Fault) error { f(fault); return nil }
	}
	reset := do(func(Fault) { script.Reset() })
	t.Faults = []StoreFault{
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
	}
	return nil
}

// fileTarget is a store in a directory.
func fileTarget(_ context.Context, dir string, t *Target) error {
	locks := filepath.Join(dir, "locks")
	t.URL = "file://" + locks
	t.Left = func(ctx context.Context) ([]string, error) {
		// The new client removes what dead clients have left.
		l, err := holdfast.Open(ctx, t.URL)
		if err != nil {
			return nil, err
		}
		defer l.Close(ctx)
		if err := l.Do(ctx, "check-sweep", func(context.Context) error { return nil }); err != nil {
			return nil, err
		}
		return leftSoon(3*time.Second, func(context.Context) (left []string, err error) {
			files, err := os.ReadDir(filepath.Join(locks, "sessions"))
			if len(files) > 2 { // the run's own client and its socket
				for _, f := range files {
					left = append(left, "sessions/"+f.Name())
				}
			}
			return left, err
		})(ctx)
	}
	return os.MkdirAll(locks, 0o700)
}
