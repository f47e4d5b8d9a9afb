//go:build linux || darwin

package check

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/internal/servers"
)

// redisTarget is one redis-server that keeps its data, behind a proxy.
func redisTarget(ctx context.Context, dir string, t *Target) error {
	return redisAlone(ctx, dir, t, redisUserSettings(), "")
}

// redisLayoutTarget is redisTarget with the layout of another client library, without some
// kinds of faults. The keys and channels of such a layout can have any name.
func redisLayoutTarget(layout string, without ...string) starter {
	return func(ctx context.Context, dir string, t *Target) error {
		err := redisAlone(ctx, dir, t, []string{"--user", "app", "on", ">app-secret", "~*", "&*", "+@all"}, "?layout="+layout)
		t.Faults = slices.DeleteFunc(t.Faults, func(f StoreFault) bool { return slices.Contains(without, f.Kind) })
		return err
	}
}

func redisAlone(ctx context.Context, dir string, t *Target, user []string, query string) error {
	settings := append([]string{"--appendonly", "yes", "--appendfsync", "always"}, user...)
	r, err := servers.StartRedis(ctx, filepath.Join(dir, "redis"), settings...)
	if err != nil {
		return err
	}
	t.onClose(r.Kill)
	// The server's clock is an hour behind, to find clients that judge by their own clock.
	clocks, err := fakeClocks(ctx, r)
	if err == nil && clocks {
		err = r.SetClock(-time.Hour)
	}
	if err != nil {
		return err
	}
	p, err := t.proxy(r.Address())
	if err != nil {
		return err
	}
	all, server := []*servers.Redis{r}, present(&r)
	t.URL = "redis://" + redisUser + p.Address() + query
	t.Faults = OneAtATime(slices.Concat(proxyFaults(p), []StoreFault{
		pauseFault(faultPauseServer, server), killFault(faultKillServer, server),
		early(affect("restart-empty", server, restartEmpty, nil)), redisStall(server), refuseConnections(r),
	}, redisDataFaults(all)))
	t.Left = redisLeft(all)
	return nil
}

// fakeClocks lets servers start again with clocks that a fault can set. It reports whether the machine has
// what this needs.
func fakeClocks(ctx context.Context, all ...*servers.Redis) (bool, error) {
	for _, r := range all {
		if err := r.FakeClock(ctx); errors.Is(err, servers.ErrNotInstalled) {
			return false, nil
		} else if err != nil {
			return false, err
		}
	}
	return true, nil
}

func restartEmpty(ctx context.Context, r *servers.Redis, _ Fault) error { return r.RestartEmpty(ctx) }

// redisStall stops a server. All waiters but the first ones keep their order.
func redisStall(which choice[*servers.Redis]) StoreFault {
	f := pauseFault(faultStall, which)
	f.KeepsOrder = true
	return f
}

// redisDataFaults returns the faults that all kinds of groups have.
func redisDataFaults(all []*servers.Redis) []StoreFault {
	return []StoreFault{flushAll(all), killSubscriptions(all), revokeRights(all), fillMemory(all), evictKeys(all)}
}

func flushAll(all []*servers.Redis) StoreFault {
	return StoreFault{Kind: "flush", Early: true, All: true, Begin: func(ctx context.Context, _ Fault) error {
		return servers.DoEach(ctx, primaries(ctx, all), "FLUSHALL")
	}}
}

func killSubscriptions(all []*servers.Redis) StoreFault {
	return StoreFault{Kind: "kill-subscriptions", Begin: func(ctx context.Context, _ Fault) error {
		return servers.DoEach(ctx, primaries(ctx, all), "CLIENT", "KILL", "TYPE", "pubsub")
	}}
}

// primaries returns the servers that run and accept writes.
func primaries(ctx context.Context, all []*servers.Redis) []*servers.Redis {
	return slices.DeleteFunc(slices.Clone(all), func(r *servers.Redis) bool { return !isPrimary(ctx, r) })
}

// redisKeys returns the keys of a server that match a pattern.
func redisKeys(ctx context.Context, r *servers.Redis, pattern string) (keys []string, err error) {
	answer, err := r.Do(ctx, "KEYS", pattern)
	all, _ := answer.([]any)
	for _, k := range all {
		keys = append(keys, fmt.Sprint(k))
	}
	return keys, err
}

func isPrimary(ctx context.Context, r *servers.Redis) bool {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	answer, err := r.Do(ctx, "ROLE")
	role, _ := answer.([]any)
	return err == nil && len(role) > 0 && role[0] == "master"
}

// redisLeft waits until only keys that may stay are left: see redisStays.
func redisLeft(all []*servers.Redis) func(context.Context) ([]string, error) {
	return leftSoon(15*time.Second, func(ctx context.Context) (left []string, err error) {
		for _, r := range primaries(ctx, all) {
			keys, err := redisKeys(ctx, r, "*")
			if err != nil {
				return nil, err
			}
			for _, key := range keys {
				if stays, err := redisStays(ctx, r, key); err != nil {
					return nil, err
				} else if !stays {
					left = append(left, "key "+key)
				}
			}
		}
		return left, nil
	})
}

// redisCounter is the key of a bucket's counter.
var redisCounter = regexp.MustCompile(`^holdfast:\{[0-9a-f]{3}\}$`)

// The keys of a fair lock of Redisson: the list of its waiters, and their deadlines.
const fairQueue, fairDeadlines = "redisson_lock_queue:", "redisson_lock_timeout:"

// redisStays reports whether a key may stay without a lock. The counters of holdfast's
// buckets stay; their number is limited. Values stay, too. Redisson leaves the token of a fenced lock, the
// number of a semaphore, and permits that have expired. The next request for a fair lock removes the queue entries of
// dead waiters, so these stay at an unused name. Each has a deadline that has passed.
func redisStays(ctx context.Context, r *servers.Redis, key string) (bool, error) {
	if redisCounter.MatchString(key) || strings.HasPrefix(key, "redisson_lock_token:") || strings.HasPrefix(key, "holdfast:value:") {
		return true, nil
	}
	now := time.Now().UnixMilli()
	switch kind, err := r.Do(ctx, "TYPE", key); {
	case err != nil:
		return false, err
	case kind == "zset":
		standing, err := r.Do(ctx, "ZCOUNT", key, strconv.FormatInt(now, 10), "+inf")
		return standing == int64(0), err
	case kind == "list" && strings.HasPrefix(key, fairQueue):
		times := fairDeadlines + strings.TrimPrefix(key, fairQueue)
		entries, err := r.Do(ctx, "LLEN", key)
		if err != nil {
			return false, err
		}
		dead, err := r.Do(ctx, "ZCOUNT", times, "-inf", strconv.FormatInt(now, 10))
		if err != nil {
			return false, err
		}
		all, err := r.Do(ctx, "ZCARD", times)
		return dead == entries && all == entries, err
	case kind == "string": // unlike a semaphore's number, a lock has a time to live
		life, err := r.Do(ctx, "PTTL", key)
		return life == int64(-1), err
	case strings.HasPrefix(key, "holdfast:beside:"):
		answer, err := r.Do(ctx, "HGETALL", key)
		fields, _ := answer.([]any)
		expired := 0
		for i := 0; i+1 < len(fields); i += 2 {
			if at, err := strconv.ParseInt(fmt.Sprint(fields[i+1]), 10, 64); strings.HasPrefix(fmt.Sprint(fields[i]), "e:") {
				if err != nil || at > now {
					return false, err
				}
				expired++
			}
		}
		return expired > 0, err
	}
	return false, nil
}
