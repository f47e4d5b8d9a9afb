package server

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
	getScript = NewScript("get", getSource)
	putScript = NewScript("put", putSource)

	_ driver.Values = (*Store)(nil)
)

// valueKey returns the key of a value: holdfast:value:NAMESPACE:KEY. The namespace is escaped, so
// that its end is certain.
func (s *Server) valueKey(key string) string {
	return "holdfast:value:" + EscapeNamespace(s.Config.Namespace) + ":" + key
}

// Get implements driver.Values. The server keeps values in its memory, like locks. A Redis that
// loses its last writes in a crash or a failover loses the last writes of values, too. It then
// accepts an older version again.
func (b *Store) Get(ctx context.Context, key string) ([]byte, string, error) {
	answer, err := b.value(ctx, getScript, key, nil, nil)
	if err != nil || len(answer) != 2 {
		return nil, "", err
	}
	return []byte(answer[1]), answer[0], nil
}

// Put implements driver.Values.
func (b *Store) Put(ctx context.Context, key string, data []byte, version string) (string, error) {
	next := rand.Text()
	answer, err := b.value(ctx, putScript, key, data, []string{version, next, string(data)})
	if err != nil {
		return "", err
	}
	if len(answer) != 1 || answer[0] != "1" {
		return "", driver.Conflict(key)
	}
	return next, nil
}

func (b *Store) value(ctx context.Context, script *Script, key string, data []byte, args []string) ([]string, error) {
	s := b.s
	if err := s.Ready(ctx, key, data); err != nil {
		return nil, err
	}
	if err := s.Begin(ctx); err != nil {
		return nil, err
	}
	defer s.Leave()
	s.probeIfOld()
	keys := []string{s.valueKey(key)}
	answer, err := s.Client.Eval(ctx, script, keys, args)
	if err != nil {
		return nil, s.Explain(err, keys...)
	}
	return answer, nil
}
