//go:build linux || darwin

package check

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"time"

	"github.com/holdfast-go/holdfast/check/servers"
)

func init() { locals["redlock"] = redlockTarget }

// redlockMaxTTL is the longest TTL of the fleet. A restarted server stays withheld for
// about as long.
const redlockMaxTTL = 2 * time.Second

// redlockTarget starts a fleet of five servers, each behind a proxy. Their clocks can be
// set if the library for that is installed. A fault affects one server at a time, except
// for some faults of the proxies, which affect all.
func redlockTarget(ctx context.Context, dir string) (_ *Target, err error) {
	const size = 5
	var all []*servers.Redis
	var proxies []*servers.Proxy
	end := func() {
		for _, p := range proxies {
			p.Close()
		}
		for _, r := range all {
			r.Kill()
		}
	}
	defer func() {
		if err != nil {
			end()
		}
	}()
	clocks := true
	q := url.Values{"max_ttl": {redlockMaxTTL.String()}, "skew": {"250ms"}}
	for i := range size {
		r, err := servers.StartRedis(ctx, filepath.Join(dir, fmt.Sprintf("redis-%d", i+1)), "--appendonly", "yes", "--appendfsync", "everysec")
		if err != nil {
			return nil, err
		}
		all = append(all, r)
		if clocks {
			if err := r.FakeClock(ctx); errors.Is(err, servers.ErrNotInstalled) {
				clocks = false
			} else if err != nil {
				return nil, err
			}
		}
		p, err := servers.NewProxy(r.Address())
		if err != nil {
			return nil, err
		}
		proxies = append(proxies, p)
		q.Add("node", p.Address())
	}
	address := "redlock://?" + q.Encode()
	if err := setUpRedlock(ctx, address+"&fresh=true"); err != nil {
		return nil, err
	}
	one := func(f Fault) *servers.Redis { return all[f.N%size] }
	which := func(f Fault) string { return fmt.Sprintf("server %d", f.N%size+1) }
	faults := append(proxyFaults(proxies...), killSubscriptions(all), StoreFault{Kind: faultKillServer, Detail: which,
		Begin: func(_ context.Context, f Fault) error { one(f).Kill(); return nil },
		End:   func(ctx context.Context, f Fault) error { return one(f).Restart(ctx) },
	}, StoreFault{Kind: "kill-server-empty", Detail: which,
		Begin: func(_ context.Context, f Fault) error { one(f).Kill(); return nil },
		End:   func(ctx context.Context, f Fault) error { return one(f).RestartEmpty(ctx) },
	}, StoreFault{Kind: "restart-empty", Detail: which,
		Begin: func(ctx context.Context, f Fault) error { return one(f).RestartEmpty(ctx) },
	}, StoreFault{Kind: "flush", Detail: which,
		Begin: func(ctx context.Context, f Fault) error { _, err := one(f).Do(ctx, "FLUSHALL"); return err },
	}, StoreFault{Kind: faultPauseServer, Detail: which,
		Begin: func(_ context.Context, f Fault) error { return one(f).Pause() },
		End:   func(_ context.Context, f Fault) error { return one(f).Cont() },
	})
	if clocks {
		set := func(kind string, ahead time.Duration) StoreFault {
			// End waits before it sets the clock back, so that clients notice the change.
			// The guarantees declare what a change that no client notices may cause.
			return StoreFault{Kind: kind, Detail: which,
				Begin: func(_ context.Context, f Fault) error { return one(f).SetClock(ahead) },
				End: func(ctx context.Context, f Fault) error {
					sleep(ctx, redlockMaxTTL)
					return one(f).SetClock(0)
				}}
		}
		faults = append(faults, set("clock-ahead", 3*time.Hour), set("clock-back", -3*time.Hour))
	}
	return &Target{
		URL:    address,
		Faults: oneAtATime(faults),
		Left:   redlockLeft(all),
		Close:  func() error { end(); return nil },
	}, nil
}

// setUpRedlock admits the servers of a new fleet.
func setUpRedlock(ctx context.Context, address string) error {
	s, err := opener(address, "")(ctx)
	if err != nil {
		return err
	}
	_, err = s.Guarantees(ctx)
	return errors.Join(err, s.Close(ctx))
}

// redlockLeft waits until no key of a lock is left on the servers.
func redlockLeft(all []*servers.Redis) func(context.Context) ([]string, error) {
	return leftSoon(15*time.Second, func(ctx context.Context) (left []string, err error) {
		for i, r := range all {
			keys, err := r.Do(ctx, "KEYS", "holdfast:redlock:*")
			if err != nil {
				return nil, err
			}
			for _, k := range keys.([]any) {
				left = append(left, fmt.Sprintf("server %d: key %s", i+1, k))
			}
		}
		return left, nil
	})
}
