package redisstore

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/fence"
)

//go:embed scripts/guard.lua
var guardSource string

var guardScript = newScript("guard", guardSource)

// Guard makes keys of the user's own refuse the writes of a holder that a newer
// one has replaced: it remembers the highest token seen for each key, and one
// script compares, remembers and writes. See package fence for why that is
// needed. A Guard may be used for data on another Redis than the one that keeps
// the locks.
//
// The token of key K is kept at holdfast:fence:{T}:K, T being K's hash tag or K
// itself, so that it is in the same slot. It stays until it is deleted: one small
// key for each guarded key. Writes that pass the guard by are not refused.
type Guard struct{ s *Store }

// Guard is a guard over the client of this store. It ends with the store.
func (s *Store) Guard() *Guard { return &Guard{s} }

// Write is one command on the guarded key: its name, and its arguments without
// the key, which comes first: Write{"HSET", "status", "done"}.
type Write []string

// maxWrites bounds the arguments of all writes of one Do together, as Lua's stack
// does.
const maxWrites = 7000

// Do writes to a key, in order and in one atomic step, unless a larger token has
// been seen for it: then nothing is written, and the error is a
// [*fence.StaleError]. Without writes it only raises the token, which is what to
// do before reading. A command that fails, for the key is of another type, leaves
// those before it done and the token raised; its error is the server's.
//
// Key is 1 to 512 bytes, valid UTF-8 without NUL. In a Redis Cluster, a key that
// has no hash tag of its own must not contain "}". Errors wrap [fence.ErrStale],
// [fence.ErrInvalid] or [fence.ErrUnavailable].
func (g *Guard) Do(ctx context.Context, key string, token uint64, writes ...Write) error {
	if err := driver.CheckName(key); err != nil {
		return fmt.Errorf("%w: key: %w", fence.ErrInvalid, err)
	}
	if token == 0 || token >= driver.MaxToken {
		return &fence.TokenError{Token: token}
	}
	seen, err := fenceKey(key)
	if err != nil {
		return err
	}
	args := []string{strconv.FormatUint(token, 10)}
	for _, w := range writes {
		if len(w) == 0 || w[0] == "" {
			return fmt.Errorf("%w: a write without a command", fence.ErrInvalid)
		}
		args = append(append(args, strconv.Itoa(len(w)-1)), w...)
	}
	if len(args) > maxWrites {
		return fmt.Errorf("%w: %d arguments in one step: at most %d", fence.ErrInvalid, len(args), maxWrites)
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%w: %q: nothing written: %w", fence.ErrUnavailable, key, errors.Join(err, context.Cause(ctx)))
	}
	if err := g.s.enter(); err != nil {
		return fmt.Errorf("%w: %q: nothing written: %w", fence.ErrUnavailable, key, err)
	}
	defer g.s.ops.Done()
	answer, err := g.s.client.Eval(ctx, guardScript, []string{key, seen}, args)
	switch {
	case err != nil:
		if err = g.s.explain(err); driver.CodeOf(err) == driver.CodeUnknown {
			return fmt.Errorf("%w: %q: it may have been written: %w", fence.ErrUnavailable, key, err)
		}
		return fmt.Errorf("%w: %q: %w", fence.ErrUnavailable, key, err)
	case len(answer) == 2 && answer[0] == "G":
		return nil
	case len(answer) == 2 && answer[0] == "T":
		newest, err := fence.Parse(answer[1])
		if err != nil {
			return fmt.Errorf("%w: the token of %q: %w", fence.ErrCorrupt, key, err)
		}
		return &fence.StaleError{Resource: key, Token: token, Newest: newest}
	}
	return fmt.Errorf("%w: %q: the script answered %q", fence.ErrUnavailable, key, answer)
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
