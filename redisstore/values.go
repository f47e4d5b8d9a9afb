package redisstore

import (
	"context"
	"crypto/rand"
	_ "embed"

	"github.com/holdfast-go/holdfast/driver"
)

//go:embed scripts/get.lua
var getSource string

//go:embed scripts/put.lua
var putSource string

var (
	getScript = newScript("get", getSource)
	putScript = newScript("put", putSource)

	_ driver.Values = (*Store)(nil)
)

// valueKey returns the key of a value: holdfast:value:NAMESPACE:KEY. The namespace is escaped, so
// that its end is certain.
func (s *Store) valueKey(key string) string {
	return "holdfast:value:" + s.keys.namespace + ":" + key
}

// Get implements driver.Values. The server keeps values in its memory, like locks. A Redis that
// loses its last writes in a crash or a failover loses the last writes of values, too. It then
// accepts an older version again.
func (s *Store) Get(ctx context.Context, key string) ([]byte, string, error) {
	answer, err := s.value(ctx, getScript, key, nil, nil)
	if err != nil || len(answer) != 2 {
		return nil, "", err
	}
	return []byte(answer[1]), answer[0], nil
}

// Put implements driver.Values.
func (s *Store) Put(ctx context.Context, key string, data []byte, version string) (string, error) {
	next := rand.Text()
	answer, err := s.value(ctx, putScript, key, data, []string{version, next, string(data)})
	if err != nil {
		return "", err
	}
	if len(answer) != 1 || answer[0] != "1" {
		return "", driver.Conflict(key)
	}
	return next, nil
}

func (s *Store) value(ctx context.Context, script *Script, key string, data []byte, args []string) ([]string, error) {
	if err := driver.CheckValue(key, data); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, &driver.Error{Code: driver.CodeUnavailable, Err: err}
	}
	if err := s.begin(ctx); err != nil {
		return nil, err
	}
	defer s.ops.Done()
	answer, err := s.client.Eval(ctx, script, []string{s.valueKey(key)}, args)
	if err != nil {
		return nil, s.explain(err)
	}
	return answer, nil
}
