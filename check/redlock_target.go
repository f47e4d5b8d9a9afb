//go:build linux || darwin

package check

import (
	"context"
	"fmt"
	"net/url"
	"path/filepath"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/internal/servers"
)

// redlockMaxTTL is the longest TTL of the fleet. A restarted server stays withheld for
// about as long.
const redlockMaxTTL = 2 * time.Second

// redlockTarget starts a fleet of five servers, each behind a proxy. Their clocks can be
// set if the library for that is installed. A fault affects one server at a time, except
// for some faults of the proxies, which affect all.
func redlockTarget(ctx context.Context, dir string, t *Target) error {
	const size = 5
	var all []*servers.Redis
	var upstreams []string
	q := url.Values{"max_ttl": {redlockMaxTTL.String()}, "skew": {"250ms"}}
	for i := range size {
		home := filepath.Join(dir, fmt.Sprintf("redis-%d", i+1))
		r, err := servers.StartRedis(ctx, home, "--appendonly", "yes", "--appendfsync", "everysec")
		if err != nil {
			return err
		}
		t.onClose(r.Kill)
		all, upstreams = append(all, r), append(upstreams, r.Address())
	}
	proxies, nodes, err := t.proxies(upstreams...)
	if err != nil {
		return err
	}
	q["node"] = nodes
	clocks, err := fakeClocks(ctx, all...)
	if err != nil {
		return err
	}
	t.URL = "redlock://?" + q.Encode()
	if err := initialise(ctx, t.URL+"&fresh=true"); err != nil { // admits the servers of a new fleet
		return err
	}
	one := oneOf(all)
	ofOne := []StoreFault{
		killFault(faultKillServer, one),
		affect("kill-server-empty", one, kill, restartEmpty),
		affect("restart-empty", one, restartEmpty, nil),
		affect("flush", one, func(ctx context.Context, r *servers.Redis, _ Fault) error {
			_, err := r.Do(ctx, "FLUSHALL")
			return err
		}, nil),
		pauseFault(faultPauseServer, one),
	}
	var ofClocks []StoreFault
	if clocks {
		set := func(kind string, ahead time.Duration) StoreFault {
			// The end waits before it sets the clock back, so that clients notice the change.
			// The guarantees declare what a change that no client notices may cause.
			return affect(kind, one,
				func(ctx context.Context, r *servers.Redis, _ Fault) error { return setClock(ctx, r, ahead) },
				func(ctx context.Context, r *servers.Redis, _ Fault) error {
					sleep(ctx, redlockMaxTTL)
					return setClock(ctx, r, 0)
				})
		}
		ofClocks = []StoreFault{set("clock-ahead", 3*time.Hour), set("clock-back", -3*time.Hour)}
	}
	for _, some := range [][]StoreFault{ofOne, ofClocks} {
		for i := range some {
			some[i].Detail = func(f Fault) string { return fmt.Sprintf("server %d", f.N%size+1) }
		}
	}
	t.Faults = OneAtATime(slices.Concat(proxyFaults(proxies...), []StoreFault{killSubscriptions(all)}, ofOne,
		[]StoreFault{rollingRestart(all)}, ofClocks))
	t.Left = redlockLeft(all)
	return nil
}

// redlockLeft waits until no key of a lock is left on the servers. The list of kept locks stays, until a
// later release.
func redlockLeft(all []*servers.Redis) func(context.Context) ([]string, error) {
	return leftSoon(15*time.Second, func(ctx context.Context) (left []string, err error) {
		for i, r := range all {
			keys, err := redisKeys(ctx, r, "holdfast:redlock:*")
			if err != nil {
				return nil, err
			}
			for _, k := range keys {
				if k != "holdfast:redlock:kept" { // the list of kept locks; a later release removes those that have ended
					left = append(left, fmt.Sprintf("server %d: key %s", i+1, k))
				}
			}
		}
		return left, nil
	})
}
