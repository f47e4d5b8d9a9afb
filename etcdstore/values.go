package etcdstore

import (
	"context"
	"strconv"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/holdfast-go/holdfast/driver"
)

var _ driver.Values = (*store)(nil)

// Get implements driver.Values. A version is the key's mod revision, in decimal.
func (s *store) Get(ctx context.Context, key string) ([]byte, string, error) {
	if err := s.calls.Ready(ctx, key, nil); err != nil {
		return nil, "", err
	}
	resp, err := s.send.Get(ctx, s.lay.value(key))
	if err != nil {
		return nil, "", s.doubted(unavailable(ctx, err))
	}
	if len(resp.Kvs) == 0 {
		return nil, "", nil
	}
	return resp.Kvs[0].Value, strconv.FormatInt(resp.Kvs[0].ModRevision, 10), nil
}

// Put implements driver.Values.
func (s *store) Put(ctx context.Context, key string, data []byte, version string) (string, error) {
	if err := s.calls.Ready(ctx, key, data); err != nil {
		return "", err
	}
	var revision int64 // of a key that does not exist
	if version != "" {
		n, err := strconv.ParseInt(version, 10, 64)
		if err != nil || n < 1 {
			return "", driver.Conflict(key)
		}
		revision = n
	}
	at := s.lay.value(key)
	resp, err := s.send.Txn(ctx).
		If(clientv3.Compare(clientv3.ModRevision(at), "=", revision)).
		Then(clientv3.OpPut(at, string(data))).
		Commit()
	switch {
	case err != nil:
		return "", writeError(ctx, err)
	case !resp.Succeeded:
		return "", driver.Conflict(key)
	}
	return strconv.FormatInt(resp.Header.Revision, 10), nil
}
