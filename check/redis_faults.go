//go:build linux || darwin

package check

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/check/servers"
	"github.com/holdfast-go/holdfast/internal/backoff"
)

// redisRights are the commands that docs/redis.md lists for a restricted user. The scripts of
// locks call only the first redisScriptRights of these commands.
var redisRights = []string{
	"hset", "hsetnx", "hdel", "set", "del", "pexpire", "get", "hget", "hmget", "pttl", "time", "publish",
	"eval", "evalsha", "subscribe", "unsubscribe", "hello", "ping", "hgetall", "info", "scan", "role", "cluster", "wait",
}

const redisScriptRights = 12

// redisUser is the workers' user, as a part of a URL. redisUserSettings returns the
// settings that give this user exactly the documented rights.
const redisUser = "app:app-secret@"

func redisUserSettings() []string {
	user := []string{"--user", "app", "on", ">app-secret", "resetkeys", "~holdfast:*", "resetchannels", "&holdfast:*", "-@all"}
	for _, right := range redisRights {
		user = append(user, "+"+right)
	}
	return user
}

// revokeRights revokes three of the documented rights, one after another, each for a part of
// the fault's time. The next fault continues with the rights that follow. Each right of the
// scripts is revoked three times as often as each of the others.
func revokeRights(all []*servers.Redis) StoreFault {
	var next atomic.Uint32
	change := func(ctx context.Context, sign, right string) error {
		for _, r := range all {
			if r.PID() == 0 {
				continue
			}
			if _, err := r.Do(ctx, "ACL", "SETUSER", "app", sign+right); err != nil {
				return err
			}
		}
		return nil
	}
	return StoreFault{Kind: "revoke-right", Begin: func(ctx context.Context, f Fault) error {
		for range 3 {
			n := int(next.Add(1))
			right := redisRights[n/2%len(redisRights)]
			if n%2 == 0 {
				right = redisRights[n/2%redisScriptRights]
			}
			if err := change(ctx, "-", right); err != nil {
				return err
			}
			sleep(ctx, max(f.For/3, 150*time.Millisecond))
			if err := change(context.WithoutCancel(ctx), "+", right); err != nil {
				return err
			}
		}
		return nil
	}}
}

// fillMemory leaves the servers no memory for new keys.
func fillMemory(all []*servers.Redis) StoreFault {
	limit := func(value string) func(context.Context, Fault) error {
		return func(ctx context.Context, _ Fault) error {
			return eachRunning(ctx, all, "CONFIG", "SET", "maxmemory", value)
		}
	}
	return StoreFault{Kind: "fill-memory", Begin: limit("1"), End: func(ctx context.Context, _ Fault) error {
		return setBack(ctx, all, "maxmemory", "0")
	}}
}

// evictKeys makes servers evict keys, although their configuration forbade it. It first
// changes the policy, and the store has redisNotice to notice the change. Then it lowers the
// memory limit, so that the servers evict keys. Grants that were requested before that moment
// may be evicted. From then on, until the policy is set back, the store must make no grants.
func evictKeys(all []*servers.Redis) StoreFault {
	return StoreFault{Kind: "evict-keys", Early: true, All: true, Takes: redisNotice, Begin: func(ctx context.Context, f Fault) (err error) {
		if err := eachRunning(ctx, all, "CONFIG", "SET", "maxmemory-policy", "allkeys-random"); err != nil {
			return err
		}
		defer func() {
			ctx := context.WithoutCancel(ctx)
			err = errors.Join(err, setBack(ctx, all, "maxmemory", "0"), setBack(ctx, all, "maxmemory-policy", "noeviction"))
		}()
		sleep(ctx, redisNotice)
		for range 1 + f.For/(20*time.Millisecond) {
			// The server evicts keys as soon as it has this limit.
			if err := eachRunning(ctx, all, "CONFIG", "SET", "maxmemory", "1"); err != nil && ctx.Err() == nil {
				return err
			}
			if err := eachRunning(ctx, all, "CONFIG", "SET", "maxmemory", "0"); err != nil && ctx.Err() == nil {
				return err
			}
			sleep(ctx, 20*time.Millisecond)
		}
		return nil
	}}
}

// redisNotice is the time in which a store must notice a change of a server's settings or
// of a replica's clock.
const redisNotice = 3 * time.Second

// sleep waits for d or until ctx ends.
func sleep(ctx context.Context, d time.Duration) {
	_ = backoff.Sleep(ctx, d)
}

// eachRunning sends a command to every running server.
func eachRunning(ctx context.Context, all []*servers.Redis, args ...string) error {
	for _, r := range all {
		if r.PID() == 0 {
			continue
		}
		if _, err := r.Do(ctx, args...); err != nil {
			return err
		}
	}
	return nil
}

// setBack sets a setting of every running server back to value. It retries for up to 30
// seconds, because a busy server may not answer.
func setBack(ctx context.Context, all []*servers.Redis, setting, value string) (err error) {
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); sleep(ctx, 50*time.Millisecond) {
		if err = eachRunning(ctx, all, "CONFIG", "SET", setting, value); err == nil || ctx.Err() != nil {
			break
		}
	}
	return err
}
