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

	"github.com/holdfast-go/holdfast/check/servers"
)

// redisTarget is one redis-server that keeps its data, behind a proxy.
func redisTarget(ctx context.Context, dir string) (*Target, error) {
	return redisAlone(ctx, dir, redisUserSettings(), "")
}

// redisLayoutTarget is redisTarget with the layout of another client library, without some
// kinds of faults. The keys and channels of such a layout can have any name.
func redisLayoutTarget(layout string, without ...string) func(context.Context, string) (*Target, error) {
	return func(ctx context.Context, dir string) (*Target, error) {
		target, err := redisAlone(ctx, dir, []string{"--user", "app", "on", ">app-secret", "~*", "&*", "+@all"}, "?layout="+layout)
		if err == nil {
			target.Faults = slices.DeleteFunc(target.Faults, func(f StoreFault) bool { return slices.Contains(without, f.Kind) })
		}
		return target, err
	}
}

func redisAlone(ctx context.Context, dir string, user []string, query string) (*Target, error) {
	settings := append([]string{"--appendonly", "yes", "--appendfsync", "always"}, user...)
	r, err := servers.StartRedis(ctx, filepath.Join(dir, "redis"), settings...)
	if err != nil {
		return nil, err
	}
	p, err := servers.NewProxy(r.Address())
	// The server's clock is an hour behind, to find clients that judge by their own clock.
	if err == nil {
		if err = r.FakeClock(ctx); err == nil {
			err = r.SetClock(-time.Hour)
		} else if errors.Is(err, servers.ErrNotInstalled) {
			err = nil
		}
	}
	if err != nil {
		if p != nil {
			p.Close()
		}
		r.Kill()
		return nil, err
	}
	all := []*servers.Redis{r}
	return &Target{
		URL: "redis://" + redisUser + p.Address() + query,
		Faults: oneAtATime(append(append(proxyFaults(p), serverFaults([]*servers.Server{r.Server}, nil)...),
			StoreFault{Kind: "restart-empty", Early: true, All: true, Begin: func(ctx context.Context, _ Fault) error { return r.RestartEmpty(ctx) }},
			flushAll(all), killSubscriptions(all), revokeRights(all), fillMemory(all), evictKeys(all))),
		Left: redisLeft(all),
		Close: func() error {
			p.Close()
			return r.Stop()
		},
	}, nil
}

func flushAll(all []*servers.Redis) StoreFault {
	return StoreFault{Kind: "flush", Early: true, All: true, Begin: func(ctx context.Context, _ Fault) error {
		return eachPrimary(ctx, all, "FLUSHALL")
	}}
}

func killSubscriptions(all []*servers.Redis) StoreFault {
	return StoreFault{Kind: "kill-subscriptions", Begin: func(ctx context.Context, _ Fault) error {
		return eachPrimary(ctx, all, "CLIENT", "KILL", "TYPE", "pubsub")
	}}
}

// eachPrimary sends a command to every running server that accepts writes.
func eachPrimary(ctx context.Context, all []*servers.Redis, args ...string) error {
	for _, r := range all {
		if !isPrimary(ctx, r) {
			continue
		}
		if _, err := r.Do(ctx, args...); err != nil {
			return fmt.Errorf("%s: %w", strings.Join(args, " "), err)
		}
	}
	return nil
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
	return leftSoon(15*time.Second, func(ctx context.Context) ([]string, error) { return redisLeftNow(ctx, all) })
}

// redisCounter is the key of a bucket's counter.
var redisCounter = regexp.MustCompile(`^holdfast:\{[0-9a-f]{3}\}$`)

// redisStays reports whether a key may stay without a lock. The counters of holdfast's
// buckets stay; their number is limited. Redisson leaves the token of a fenced lock, the
// number of a semaphore, and permits that have expired.
func redisStays(ctx context.Context, r *servers.Redis, key string) (bool, error) {
	if redisCounter.MatchString(key) || strings.HasPrefix(key, "redisson_lock_token:") {
		return true, nil
	}
	now := time.Now().UnixMilli()
	switch kind, err := r.Do(ctx, "TYPE", key); {
	case err != nil:
		return false, err
	case kind == "zset":
		standing, err := r.Do(ctx, "ZCOUNT", key, strconv.FormatInt(now, 10), "+inf")
		return standing == int64(0), err
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

func redisLeftNow(ctx context.Context, all []*servers.Redis) (left []string, err error) {
	for _, r := range all {
		if !isPrimary(ctx, r) {
			continue
		}
		keys, err := r.Do(ctx, "KEYS", "*")
		if err != nil {
			return nil, err
		}
		for _, k := range keys.([]any) {
			key := k.(string)
			if stays, err := redisStays(ctx, r, key); err != nil {
				return nil, err
			} else if !stays {
				left = append(left, "key "+key)
			}
		}
	}
	return left, nil
}
