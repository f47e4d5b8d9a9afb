package redisstore

import (
	"context"
	_ "embed"
	"fmt"
	"strconv"
	"strings"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/fence"
)

//go:embed scripts/guard.lua
var guardSource string

var guardScript = newScript("guard", guardSource)

// Guard is a [fence.Guard] of keys: it keeps the largest token seen for each key, and
// one script compares, raises and writes. The data may be on another Redis than the
// locks: open a store there for its guard.
//
// The token of key K is kept at holdfast:fence:{T}:K, T being K's hash tag or K
// itself, so that it is in the same slot. It stays until it is deleted: one small
// key for each guarded key. Writes that do not pass the guard are not refused.
//
// A Redis that loses its last writes in a crash or a failover loses tokens with the
// data that they guard, because both are of one slot.
type Guard struct{ s *Store }

// Guard returns a guard over the client of this store. It ends with the store.
func (s *Store) Guard() *Guard { return &Guard{s} }

// Commands are the write of a [Guard]: each command is its name, and its arguments
// without the key, which is put first: Commands{{"HSET", "status", "done"}}.
type Commands [][]string

// maxWrites bounds the arguments of all commands of one Write together, because they
// pass through the stack of Lua.
const maxWrites = 7000

var _ fence.Guard[Commands] = (*Guard)(nil)

// Write implements [fence.Guard]: it runs commands on a key, in order and in one atomic
// step. A command that fails, for example because the key is of another type, leaves
// the effects of those before it, and the token raised; its error is the server's.
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
	newest, err := g.run(ctx, key, args)
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
	if err := g.s.enter(); err != nil {
		return 0, fmt.Errorf("%w: %q: nothing written: %w", fence.ErrUnavailable, key, err)
	}
	defer g.s.ops.Done()
	answer, err := g.s.client.Eval(ctx, guardScript, []string{key, seen}, args)
	switch {
	case err != nil:
		if err = g.s.explain(err); driver.CodeOf(err) == driver.CodeUnknown {
			return 0, fmt.Errorf("%w: %q: it may have been written: %w", fence.ErrUnavailable, key, err)
		}
		return 0, fmt.Errorf("%w: %q: %w", fence.ErrUnavailable, key, err)
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

// fenceKey is where a key's token is.
func fenceKey(key string) (string, error) {
	tag := key
	if _, rest, ok := strings.Cut(key, "{"); ok {
		if t, _, ok := strings.Cut(rest, "}"); ok && t != "" {
			return "holdfast:fence:{" + t + "}:" + key, nil
		}
	}
	if strings.Contains(key, "}") {
		return "", fmt.Errorf("%w: key %q contains } and has no hash tag: no other key is sure to be in its slot", fence.ErrInvalid, key)
	}
	return "holdfast:fence:{" + tag + "}:" + key, nil
}
