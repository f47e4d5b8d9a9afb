package redis

import (
	"errors"
	"testing"

	"github.com/holdfast-go/holdfast/fence"
	"github.com/holdfast-go/holdfast/fence/fencetest"
	"github.com/holdfast-go/holdfast/redisstore"
)

// TestGuardRunsCommandsOnAnyKey: a write has several commands, and its key may have a hash tag.
func TestGuardRunsCommandsOnAnyKey(t *testing.T) {
	r := start(t)
	s := open(t, "redis://"+r.Address())
	g, ctx := s.Guard(), t.Context()
	for _, key := range []string{"plain", "user:{42}:balance", "a{b", "ü ü"} {
		check(t, g.Write(ctx, key, 5, redisstore.Commands{{"APPEND", "+"}, {"APPEND", "-"}}))
		fencetest.Stale(t, g.Write(ctx, key, 4, redisstore.Commands{{"DEL"}}), 4, 5)
		if v := do(t, r, "GET", key); v != "+-" {
			t.Errorf("%q: %v", key, v)
		}
	}
	for what, err := range map[string]error{
		"no command": g.Write(ctx, "k", 1, redisstore.Commands{{}}),
		"no slot":    g.Raise(ctx, "a}b", 1), "no tag": g.Raise(ctx, "{}a", 1), "too much": g.Write(ctx, "k", 1, redisstore.Commands{make([]string, 8000)}),
	} {
		if !errors.Is(err, fence.ErrInvalid) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := g.Write(ctx, "plain", 6, redisstore.Commands{{"LPUSH", "x"}}); !errors.Is(err, fence.ErrUnavailable) {
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
