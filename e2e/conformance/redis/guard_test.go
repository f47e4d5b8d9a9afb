package redis

import (
	"context"
	"errors"
	"testing"

	"github.com/holdfast-go/holdfast/check/servers"
	"github.com/holdfast-go/holdfast/fence"
	"github.com/holdfast-go/holdfast/fence/fencetest"
	"github.com/holdfast-go/holdfast/redisstore"
)

func TestGuardRefusesStaleTokens(t *testing.T) {
	r := start(t)
	s := open(t, "redis://"+r.Address())
	g, ctx := s.Guard(), t.Context()
	for _, key := range []string{"plain", "user:{42}:balance", "a{b", "ü ü"} {
		if err := g.Write(ctx, key, 5, redisstore.Commands{{"SET", "five"}}); err != nil {
			t.Fatalf("%q: %v", key, err)
		}
		var stale *fence.StaleError
		err := g.Write(ctx, key, 4, redisstore.Commands{{"SET", "four"}})
		if !errors.Is(err, fence.ErrStale) || !errors.As(err, &stale) || stale.Newest != 5 || stale.Token != 4 {
			t.Errorf("%q: %v", key, err)
		}
		if v := do(t, r, "GET", key); v != "five" {
			t.Errorf("%q: %v", key, v)
		}
		// An equal token passes. A token above 2^53, where Lua's numbers are inexact, is compared exactly.
		const large = 1<<62 + 1
		for _, token := range []uint64{5, 10, large} {
			if err := g.Write(ctx, key, token, redisstore.Commands{{"APPEND", "+"}, {"APPEND", "-"}}); err != nil {
				t.Errorf("%q: %v", key, err)
			}
		}
		if err := g.Raise(ctx, key, large-1); !errors.Is(err, fence.ErrStale) {
			t.Errorf("%q: %v", key, err)
		}
		if err := g.Write(ctx, key, 9, redisstore.Commands{{"DEL"}}); !errors.Is(err, fence.ErrStale) {
			t.Errorf("%q: %v", key, err)
		}
		if v := do(t, r, "GET", key); v != "five+-+-+-" {
			t.Errorf("%q: %v", key, v)
		}
	}
	if err := g.Raise(ctx, "read first", 7); err != nil {
		t.Fatal(err)
	}
	if err := g.Write(ctx, "read first", 6, redisstore.Commands{{"SET", "late"}}); !errors.Is(err, fence.ErrStale) {
		t.Error(err)
	}
	ended, cancel := context.WithCancel(ctx)
	cancel()
	for what, err := range map[string]error{
		"no token": g.Raise(ctx, "k", 0), "no key": g.Raise(ctx, "", 1), "no command": g.Write(ctx, "k", 1, redisstore.Commands{{}}),
		"no slot": g.Raise(ctx, "a}b", 1), "no tag": g.Raise(ctx, "{}a", 1), "too much": g.Write(ctx, "k", 1, redisstore.Commands{make([]string, 8000)}),
	} {
		if !errors.Is(err, fence.ErrInvalid) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := g.Raise(ended, "k", 1); !errors.Is(err, fence.ErrUnavailable) || !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if err := g.Write(ctx, "plain", 1<<62+2, redisstore.Commands{{"LPUSH", "x"}}); !errors.Is(err, fence.ErrUnavailable) {
		t.Error(err)
	}
	do(t, r, "SET", "holdfast:fence:{k}:k", "zzzzzzz")
	if err := g.Raise(ctx, "k", 1); !errors.Is(err, fence.ErrCorrupt) {
		t.Error(err)
	}
}

func TestGuardSuite(t *testing.T) {
	r := start(t)
	fencetest.Run(t, fencetest.Harness[redisstore.Commands]{
		Guard: open(t, "redis://"+r.Address()).Guard(), Other: open(t, "redis://"+r.Address()).Guard(),
		Write: func(_, content string) redisstore.Commands { return redisstore.Commands{{"SET", content}} },
		Read: func(t testing.TB, key string) string {
			v, _ := do(t, r, "GET", key).(string)
			return v
		},
	})
}

func TestGuardInCluster(t *testing.T) {
	c := cluster(t)
	g := open(t, "redis+cluster://"+c.Nodes[0].Address()).Guard()
	for _, key := range []string{"a", "b", "c", "user:{42}:balance", "a{b"} {
		if err := g.Write(t.Context(), key, 5, redisstore.Commands{{"SET", "five"}}); err != nil {
			t.Errorf("%q: %v", key, err)
		}
		if err := g.Write(t.Context(), key, 4, redisstore.Commands{{"SET", "four"}}); !errors.Is(err, fence.ErrStale) {
			t.Errorf("%q: %v", key, err)
		}
	}
}

func cluster(t *testing.T) *servers.RedisCluster {
	t.Helper()
	installed(t)
	c, err := servers.StartRedisCluster(t.Context(), t.TempDir(), false)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Kill)
	return c
}
