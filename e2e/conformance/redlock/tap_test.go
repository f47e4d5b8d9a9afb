package redlock

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/redisstore"
	"github.com/holdfast-go/holdfast/redisstore/redlock"
)

// call is the call of a script at one server of a fleet.
type call struct {
	server int
	script string // vote, raise, renew, end and so on
	args   []string
	// send sends the request, and returns its answer. It may be called again, and after the client's
	// timeout.
	send func() ([]string, error)
}

// tap is a client of one server that passes each call of a script to a function.
type tap struct {
	redisstore.Client
	server int
	hook   func(call) ([]string, error)
}

func (c *tap) Eval(ctx context.Context, s *redisstore.Script, keys, args []string) ([]string, error) {
	return c.hook(call{c.server, strings.TrimPrefix(s.Name, "redlock "), args, func() ([]string, error) {
		return c.Client.Eval(context.WithoutCancel(ctx), s, keys, args)
	}})
}

func (c *tap) EvalAll(ctx context.Context, s *redisstore.Script, calls []redisstore.Call) []redisstore.Answer {
	out := make([]redisstore.Answer, len(calls))
	for i, one := range calls {
		out[i].Values, out[i].Err = c.Eval(ctx, s, one.Keys, one.Args)
	}
	return out
}

// tapped returns a store of the fleet that passes each call of a script to hook.
func (f *fleet) tapped(t testing.TB, hook func(call) ([]string, error)) *redlock.Store {
	t.Helper()
	out := f.tap(t, hook)
	t.Cleanup(func() { _ = out.Close(context.Background()) })
	return out.Store
}

// tap is tapped for a client that the caller closes.
func (f *fleet) tap(t testing.TB, hook func(call) ([]string, error), more ...redlock.Option) *client {
	t.Helper()
	out := &client{}
	var nodes []*redisstore.Store
	for i, r := range f.all {
		direct, err := redisstore.Open(t.Context(), "redis://"+r.Address())
		check(t, err)
		node, err := redisstore.NewOver(&tap{direct.Client(), i, hook})
		check(t, err)
		nodes, out.below = append(nodes, node), append(out.below, node, direct)
	}
	var err error
	out.Store, err = redlock.New(nodes, append(slices.Clip(f.options), more...)...)
	check(t, err)
	return out
}

// stepped returns a client that passes each call of a script that may write to step.
func (f *fleet) stepped(t testing.TB, step func(send func() error) error) driver.Store {
	t.Helper()
	return f.tap(t, func(c call) (v []string, err error) {
		if !slices.Contains([]string{"vote", "raise", "renew", "end"}, c.script) {
			return c.send()
		}
		err = step(func() (err error) {
			v, err = c.send()
			return err
		})
		return v, err
	}, redlock.Skew(lateSkew))
}
