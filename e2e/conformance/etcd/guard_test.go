package etcd

import (
	"errors"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/holdfast-go/holdfast/etcdstore"
	"github.com/holdfast-go/holdfast/fence"
	"github.com/holdfast-go/holdfast/fence/fencetest"
	"github.com/holdfast-go/holdfast/internal/servers"
)

func TestGuardPassesFencetest(t *testing.T) {
	c := start(t, servers.EtcdConfig{})
	client := c.direct(t)
	fencetest.Run(t, fencetest.Harness[[]clientv3.Op]{
		Guard: c.open(t, etcdstore.Prefix("app/")).Guard(), Other: c.open(t, etcdstore.Prefix("app/"), etcdstore.Namespace("other")).Guard(),
		Write: func(key, content string) []clientv3.Op { return []clientv3.Op{clientv3.OpPut(key, content)} },
		Read: func(t testing.TB, key string) string {
			resp, err := client.Get(t.Context(), key)
			check(t, err)
			if len(resp.Kvs) == 0 {
				return ""
			}
			return string(resp.Kvs[0].Value)
		},
	})
}

// TestGuardWithConditions: the guard checks the token of a transaction with conditions of the
// caller. The answer shows whether the conditions were met.
func TestGuardWithConditions(t *testing.T) {
	c := start(t, servers.EtcdConfig{})
	s, client := c.open(t), c.direct(t)
	g, ctx := s.Guard(), t.Context()
	write := func(token uint64, was, value string) (bool, error) {
		answers, err := g.Txn(ctx, "total", token, clientv3.OpTxn(
			[]clientv3.Cmp{clientv3.Compare(clientv3.Value("total"), "=", was)},
			[]clientv3.Op{clientv3.OpPut("total", value)}, nil))
		return err == nil && answers[0].GetResponseTxn().Succeeded, err
	}
	check(t, g.Write(ctx, "total", 33, []clientv3.Op{clientv3.OpPut("total", "1")}))
	for _, step := range []struct {
		token      uint64
		was, value string
		done       bool
	}{{33, "1", "2", true}, {33, "1", "3", false}, {34, "2", "4", true}} {
		if done, err := write(step.token, step.was, step.value); done != step.done || err != nil {
			t.Errorf("%+v: %v, %v", step, done, err)
		}
	}
	_, err := write(33, "4", "5")
	fencetest.Stale(t, err, 33, 34)

	for what, ops := range map[string][]clientv3.Op{
		"a key twice": {clientv3.OpPut("k", "1"), clientv3.OpPut("k", "2")},
		"no key":      {clientv3.OpPut("", "1")},
	} {
		if err := g.Write(ctx, "total", 35, ops); !errors.Is(err, fence.ErrUnavailable) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if n, err := g.Newest(ctx, "total"); n != 34 || err != nil {
		t.Errorf("a refused transaction raised the token to %d, %v", n, err)
	}
	_, err = client.Put(ctx, "_holdfast/fence/total", "zzz")
	check(t, err)
	if err := g.Raise(ctx, "total", 36); !errors.Is(err, fence.ErrCorrupt) {
		t.Errorf("a token that is no number: %v", err)
	}
	check(t, s.Close(ctx))
	if err := g.Raise(ctx, "total", 37); !errors.Is(err, fence.ErrUnavailable) {
		t.Errorf("after Close: %v", err)
	}
}
