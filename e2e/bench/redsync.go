package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	redsyncredis "github.com/go-redsync/redsync/v4/redis"
	"github.com/redis/rueidis"
)

// rueidisPool lets redsync use rueidis, which sends the requests of many goroutines together.
type rueidisPool struct{ client rueidis.Client }

func (p rueidisPool) Get(ctx context.Context) (redsyncredis.Conn, error) {
	return redsyncConn{p.client, ctx}, nil
}

type redsyncConn struct {
	client rueidis.Client
	ctx    context.Context
}

// ignoreNil returns nil for the answer that a key does not exist.
func ignoreNil(err error) error {
	if rueidis.IsRedisNil(err) {
		return nil
	}
	return err
}

func (c redsyncConn) Get(name string) (string, error) {
	v, err := c.client.Do(c.ctx, c.client.B().Get().Key(name).Build()).ToString()
	return v, ignoreNil(err)
}

func (c redsyncConn) Set(name, value string) (bool, error) {
	err := c.client.Do(c.ctx, c.client.B().Set().Key(name).Value(value).Build()).Error()
	return err == nil, err
}

func (c redsyncConn) SetNX(name, value string, expiry time.Duration) (bool, error) {
	v, err := c.client.Do(c.ctx, c.client.B().Set().Key(name).Value(value).Nx().PxMilliseconds(expiry.Milliseconds()).Build()).ToString()
	return v == "OK", ignoreNil(err)
}

func (c redsyncConn) Eval(s *redsyncredis.Script, keysAndArgs ...any) (any, error) {
	keys := make([]string, s.KeyCount)
	for i := range keys {
		keys[i] = keysAndArgs[i].(string)
	}
	var args []string
	for _, a := range keysAndArgs[s.KeyCount:] {
		args = append(args, fmt.Sprint(a))
	}
	v, err := c.client.Do(c.ctx, c.client.B().Evalsha().Sha1(s.Hash).Numkeys(int64(len(keys))).Key(keys...).Arg(args...).Build()).ToAny()
	if err != nil && strings.Contains(err.Error(), "NOSCRIPT") {
		v, err = c.client.Do(c.ctx, c.client.B().Eval().Script(s.Src).Numkeys(int64(len(keys))).Key(keys...).Arg(args...).Build()).ToAny()
	}
	return v, ignoreNil(err)
}

func (c redsyncConn) ScriptLoad(s *redsyncredis.Script) error {
	v, err := c.client.Do(c.ctx, c.client.B().ScriptLoad().Script(s.Src).Build()).ToString()
	if err == nil {
		s.Hash = v
	}
	return err
}

func (c redsyncConn) PTTL(name string) (time.Duration, error) {
	ms, err := c.client.Do(c.ctx, c.client.B().Pttl().Key(name).Build()).AsInt64()
	return time.Duration(ms) * time.Millisecond, err
}

func (c redsyncConn) Close() error { return nil }
