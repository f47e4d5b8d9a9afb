//go:build linux || darwin

package check

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/internal/servers"
)

// redisRights are the commands that docs/security.md lists for a restricted user. The scripts of
// locks call only the first redisScriptRights of these commands.
var redisRights = []string{
	"hset", "hlen", "hkeys", "hdel", "set", "del", "pexpire", "get", "hget", "hmget", "pttl", "time", "publish",
	"eval", "evalsha", "subscribe", "unsubscribe", "hello", "ping", "hgetall", "info", "scan", "role", "cluster", "asking", "wait",
}

const redisScriptRights = 13

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
	return StoreFault{Kind: faultRevoke, Begin: func(ctx context.Context, f Fault) error {
		for range 3 {
			n := int(next.Add(1))
			right := redisRights[n/2%len(redisRights)]
			if n%2 == 0 {
				right = redisRights[n/2%redisScriptRights]
			}
			if err := servers.DoEach(ctx, servers.RunningRedis(all), "ACL", "SETUSER", "app", "-"+right); err != nil {
				return err
			}
			sleep(ctx, max(f.For/3, 150*time.Millisecond))
			if err := servers.DoEach(context.WithoutCancel(ctx), servers.RunningRedis(all), "ACL", "SETUSER", "app", "+"+right); err != nil {
				return err
			}
		}
		return nil
	}}
}

// fillMemory leaves the servers no memory for new keys.
func fillMemory(all []*servers.Redis) StoreFault {
	return StoreFault{Kind: "fill-memory",
		Begin: func(ctx context.Context, _ Fault) error {
			return servers.DoEach(ctx, servers.RunningRedis(all), "CONFIG", "SET", "maxmemory", "1")
		},
		End: func(ctx context.Context, _ Fault) error { return setBack(ctx, all, "maxmemory", "0") }}
}

// refuseConnections makes the server refuse new connections, and cuts the present subscriptions. It
// keeps a connection of its own, because the server refuses those of an administrator, too.
func refuseConnections(r *servers.Redis) StoreFault {
	var c net.Conn
	order := func(command string) error {
		if err := c.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
			return err
		}
		if _, err := fmt.Fprintf(c, "%s\r\n", command); err != nil {
			return err
		}
		_, err := bufio.NewReader(c).ReadString('\n')
		return err
	}
	return StoreFault{Kind: faultFull, Begin: func(context.Context, Fault) (err error) {
		if c, err = net.Dial("tcp", r.Address()); err != nil {
			return err
		}
		return errors.Join(order("CONFIG SET maxclients 1"), order("CLIENT KILL TYPE pubsub"))
	}, End: func(context.Context, Fault) (err error) {
		if c == nil {
			return nil // the server was not reached
		}
		return errors.Join(order("CONFIG SET maxclients 10000"), c.Close())
	}}
}

// evictKeys makes servers evict keys, although their configuration forbade it. It first
// changes the policy, and the store has redisNotice to notice the change. Then it lowers the
// memory limit, so that the servers evict keys. Grants that were requested before that moment
// may be evicted. From then on, until the policy is set back, the store must make no grants.
func evictKeys(all []*servers.Redis) StoreFault {
	return StoreFault{Kind: "evict-keys", Early: true, All: true, Takes: redisNotice, Begin: func(ctx context.Context, f Fault) (err error) {
		if err := servers.DoEach(ctx, servers.RunningRedis(all), "CONFIG", "SET", "maxmemory-policy", "allkeys-random"); err != nil {
			return err
		}
		defer func() {
			ctx := context.WithoutCancel(ctx)
			err = errors.Join(err, setBack(ctx, all, "maxmemory", "0"), setBack(ctx, all, "maxmemory-policy", "noeviction"))
		}()
		sleep(ctx, redisNotice)
		for range 1 + f.For/(20*time.Millisecond) {
			// The server evicts keys as soon as it has this limit.
			if err := servers.DoEach(ctx, servers.RunningRedis(all), "CONFIG", "SET", "maxmemory", "1"); err != nil && ctx.Err() == nil {
				return err
			}
			if err := servers.DoEach(ctx, servers.RunningRedis(all), "CONFIG", "SET", "maxmemory", "0"); err != nil && ctx.Err() == nil {
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

// setBack sets a setting of every running server back to value. It retries for up to 30
// seconds, because a busy server may not answer.
func setBack(ctx context.Context, all []*servers.Redis, setting, value string) error {
	return servers.Until(ctx, func() error { return servers.DoEach(ctx, servers.RunningRedis(all), "CONFIG", "SET", setting, value) })
}
