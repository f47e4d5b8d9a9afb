package redisstore

import (
	"context"
	_ "embed"
	"fmt"
	"strconv"
	"strings"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/fence"
	"github.com/holdfast-go/holdfast/redisstore/internal/server"
)

//go:embed scripts/guard.lua
var guardSource string

var guardScript = server.NewScript("guard", guardSource)

// Guard is a [fence.Guard] of keys. It keeps the largest token that it has seen for
// each key. One script compares the token, records it and writes the data. The data may
// be on another Redis than the locks: open a store there for its guard.
//
// The token of key K is kept at holdfast:fence:{T}:K, so that both are in the same hash
// slot. T is K's hash tag, or K itself if it has none. The token stays until it is
// deleted: one small key for each guarded key. The guard does not refuse writes that
// bypass it.
//
// A Redis that loses its last writes in a crash or a failover loses tokens together
// with the data that they guard. Both are in one hash slot.
type Guard struct{ s *store }

// Guard returns a guard over the client of this store. The guard works until the store
// is closed.
func (s *Store) Guard() *Guard { return &Guard{s.store} }

// Commands are the commands that a [Guard] runs on a key. Each has its name and its
// arguments. The guard puts the key before the arguments:
// Commands{{"HSET", "status", "done"}}.
type Commands [][]string

// maxWrites limits the arguments of all commands of one Write together, because they
// pass through the stack of Lua.
const maxWrites = 7000

var _ fence.Guard[Commands] = (*Guard)(nil)

// Write implements [fence.Guard]: it runs commands on a key, in order and in one atomic
// step. If a command fails, for example because the key is of another type, the effects
// of the earlier commands and the new token stay. Write then returns the server's
// error.
//
// In a Redis Cluster, a key that has no hash tag of its own must not contain "}".
// Errors wrap [fence.ErrStale], [fence.ErrInvalid], [fence.ErrUnavailable] or
// [fence.ErrCorrupt].
func (g *Guard) Write(ctx context.Context, key string, token uint64, write Commands) error {
	if err := fence.CheckArguments(ctx, key, token); err != nil {
		return err
	}
	args := []string{strconv.FormatUint(token, 10)}
	for _, c := range write {
		if len(c) == 0 || c[0] == "" {
			return fmt.Errorf("%w: a write without a command", fence.ErrInvalid)
		}
		args = append(append(args, strconv.Itoa(len(c)-1)), c...)
	}
	if len(args) > maxWrites {
		return fmt.Errorf("%w: %d arguments in one step: at most %d", fence.ErrInvalid, len(args), maxWrites)
	}
	newest, err := g.run(ctx, key, args) // mutation: redis-guard-step
	if err == nil && newest > token {
		return &fence.StaleError{Resource: key, Token: token, Newest: newest}
	}
	return err
}

// Raise implements [fence.Guard].
func (g *Guard) Raise(ctx context.Context, key string, token uint64) error {
	return g.Write(ctx, key, token, nil)
}

// Newest implements [fence.Guard].
func (g *Guard) Newest(ctx context.Context, key string) (uint64, error) {
	if err := fence.CheckArguments(ctx, key, 1); err != nil {
		return 0, err
	}
	return g.run(ctx, key, []string{"0"})
}

// run returns the largest token seen.
func (g *Guard) run(ctx context.Context, key string, args []string) (uint64, error) {
	seen, err := fenceKey(key)
	if err != nil {
		return 0, err
	}
	if err := g.s.srv.Enter(); err != nil {
		return 0, fmt.Errorf("%w: %q: nothing written: %w", fence.ErrUnavailable, key, err)
	}
	defer g.s.srv.Leave()
	answer, err := g.s.srv.Client.Eval(ctx, guardScript, []string{key, seen}, args)
	switch {
	case err != nil:
		if err = g.s.srv.Explain(err); driver.CodeOf(err) == driver.CodeUnknown {
			return 0, fmt.Errorf("%w: %q: it may have been written: %w", fence.ErrUnavailable, key, err)
		}
		return 0, fmt.Errorf("%w: %q: %w", fence.ErrUnavailable, key, err)
	case len(answer) == 2:
		return 0, fmt.Errorf("%w: %q is no token of %q", fence.ErrCorrupt, server.Clip(answer[0]), key)
	case len(answer) != 1:
		return 0, fmt.Errorf("%w: %q: the script answered %q", fence.ErrUnavailable, key, answer)
	case answer[0] == "0": // Newest of a key without a token
		return 0, nil
	}
	newest, err := fence.Parse(answer[0])
	if err != nil {
		return 0, fmt.Errorf("%w: the token of %q: %w", fence.ErrCorrupt, key, err)
	}
	return newest, nil
}

// fenceKey returns the key at which the token of a key is kept.
func fenceKey(key string) (string, error) {
	tag := server.HashTag(key)
	if tag == key && strings.Contains(key, "}") {
		return "", fmt.Errorf("%w: key %q contains } and has no hash tag: no other key is sure to be in its slot", fence.ErrInvalid, key)
	}
	return "holdfast:fence:{" + tag + "}:" + key, nil
}
