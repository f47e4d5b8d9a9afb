package zookeeper

import (
	"errors"
	"testing"

	"github.com/holdfast-go/holdfast/fence"
	"github.com/holdfast-go/holdfast/fence/fencetest"
	"github.com/holdfast-go/holdfast/zkstore"
)

func TestGuardPassesFencetest(t *testing.T) {
	z := single(t)
	raw := connect(t, z.Address())
	root := "/" + newName()
	path := func(resource string) string { return root + "-" + resource }
	exists := map[string]bool{}
	fencetest.Run(t, fencetest.Harness[[]zkstore.Op]{
		Guard: open(t, []string{z.Address()}, zkstore.Root(root)).Guard(),
		Other: open(t, []string{z.Address()}, zkstore.Root(root), zkstore.Namespace("other")).Guard(),
		Resource: func(t testing.TB, n int) string {
			r := string(rune('a' + n))
			if !exists[r] {
				create(t, raw, path(r), nil, 0)
				exists[r] = true
			}
			return r
		},
		Write: func(resource, content string) []zkstore.Op {
			return []zkstore.Op{zkstore.SetData(path(resource), []byte(content), -1)}
		},
		Read: func(t testing.TB, resource string) string {
			// This is another session, which may read old data without the sync.
			_, err := raw.Sync(path(resource))
			must(t, err)
			data, _, err := raw.Get(path(resource))
			must(t, err)
			return string(data)
		},
	})
}

// TestGuardReportsRefusedOperation: the error names the operation that was refused, and the
// token was not raised.
func TestGuardReportsRefusedOperation(t *testing.T) {
	z := single(t)
	g, ctx := open(t, []string{z.Address()}, zkstore.Root("/"+newName())).Guard(), t.Context()
	node := "/" + newName()
	must(t, g.Write(ctx, "r", 5, []zkstore.Op{zkstore.CreateNode(node, []byte("1"))}))
	must(t, g.Write(ctx, "r", 5, []zkstore.Op{zkstore.SetData(node, []byte("2"), 0)}))
	for name, test := range map[string]struct {
		ops  []zkstore.Op
		want zkstore.WriteError
	}{
		"other version": {[]zkstore.Op{zkstore.SetData(node, nil, 1), zkstore.SetData(node, nil, 7)}, zkstore.WriteError{Op: 1, Version: true}},
		"missing node":  {[]zkstore.Op{zkstore.DeleteNode(node+"-none", -1)}, zkstore.WriteError{Missing: true}},
		"existing node": {[]zkstore.Op{zkstore.CreateNode(node, nil)}, zkstore.WriteError{Exists: true}},
	} {
		var refused *zkstore.WriteError
		err := g.Write(ctx, "r", 9, test.ops)
		if !errors.As(err, &refused) || !errors.Is(err, fence.ErrUnavailable) {
			t.Errorf("%s: %v", name, err)
			continue
		}
		refused.Err = nil
		if *refused != test.want {
			t.Errorf("%s: %+v, want %+v", name, *refused, test.want)
		}
	}
	if n, err := g.Newest(ctx, "r"); n != 5 || err != nil {
		t.Errorf("the token is %d, %v", n, err)
	}
	must(t, g.Write(ctx, "r", 6, []zkstore.Op{zkstore.DeleteNode(node, -1)}))
}

func TestGuardRefusesCorruptToken(t *testing.T) {
	z := single(t)
	root := "/" + newName()
	g := open(t, []string{z.Address()}, zkstore.Root(root)).Guard()
	must(t, g.Raise(t.Context(), "r", 5))
	_, err := connect(t, z.Address()).Set(root+"/@%fence/r", []byte("05"), -1)
	must(t, err)
	if err := g.Raise(t.Context(), "r", 6); !errors.Is(err, fence.ErrCorrupt) {
		t.Errorf("got %v, want ErrCorrupt", err)
	}
}
