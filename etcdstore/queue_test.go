package etcdstore

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"pgregory.net/rapid"

	"github.com/holdfast-go/holdfast/driver"
)

// TestRuleGrantsInOrder: in any queue, the granted entries keep the contract's rule. No entry waits that
// could be granted, and none overtakes.
func TestRuleGrantsInOrder(t *testing.T) {
	limits := rapid.SampledFrom([]int{driver.Exclusive, 2, 3, 5, driver.MaxLimit, driver.Unlimited})
	rapid.Check(t, func(t *rapid.T) {
		var q queue
		for i, limit := range rapid.SliceOfN(limits, 0, 12).Draw(t, "limits") {
			q = append(q, entry{key: fmt.Sprint(i), rev: int64(i + 1), record: record{Limit: limit}})
		}
		n := q.granted()
		for i := range n {
			if q[i].record.Limit < n {
				t.Fatalf("%d are granted beside one of limit %d", n, q[i].record.Limit)
			}
		}
		if n < len(q) {
			if q[:n].admits(q[n].record.Limit) {
				t.Fatalf("entry %d waits although it could be granted", n)
			}
			for i := n; i < len(q); i++ {
				key := q[i:][0].record.Limit
				if b := q.blocker(i); b == "" && key == driver.Exclusive {
					t.Fatalf("an exclusive entry %d watches nothing", i)
				} else if b != "" && q.find(b) >= i {
					t.Fatalf("entry %d watches %s, which is not before it", i, b)
				}
			}
		} else if limit := limits.Draw(t, "next"); q.admits(limit) != (append(q, entry{record: record{Limit: limit}}).granted() == n+1) {
			t.Fatalf("a try of limit %d and an entry of it are judged differently", limit)
		}
	})
}

// FuzzEntry: any key and value is an entry of holdfast, one of another client, or a broken one beside
// which nothing is granted.
func FuzzEntry(f *testing.F) {
	f.Add("locks/a/694d7", []byte(`{"holdfast":1,"limit":3,"id":"x"}`), int64(0x694d7))
	f.Add("a/b", []byte(`{"holdfast":1,"limit":3,"slot":7,"id":"x"}`), int64(1))
	for _, value := range []string{
		`{"holdfast":`, `{"holdfast":{}}`, `{"holdfast":0,"limit":9,"id":"x"}`, `{"holdfast":1,"limit":0,"id":"x"}`,
		`{"holdfast":1,"limit":1e99}`, `{"holdfast":1,"limit":3,"slot":-1,"id":"x"}`,
		`{"holdfast":1,"limit":3,"slot":3,"id":"x"}`, `{"holdfast":` + strings.Repeat("[", 1<<20),
	} {
		f.Add("a/b", []byte(value), int64(1))
	}
	f.Add("a/b", []byte(`{"holdfast":1,"limit":1,"id":"x"}`), int64(0))
	f.Add("a/b/c", []byte("leader"), int64(1))
	f.Add("/", []byte("{"), int64(-1))
	f.Fuzz(func(t *testing.T, key string, value []byte, lease int64) {
		p := newEntry(&mvccpb.KeyValue{Key: []byte(key), Value: value, Lease: lease, CreateRevision: 1})
		if l := p.record.Limit; l < 1 || l > driver.MaxLimit && l != driver.Unlimited {
			t.Fatalf("limit %d", l)
		}
		if slot := p.slot(); slot != driver.NoSlot && (slot < 0 || slot >= p.record.Limit) {
			t.Fatalf("slot %d of %d", slot, p.record.Limit)
		}
		q := queue{p}
		if p.broken != "" && (p.ours || q.admits(driver.Unlimited) || q.broken() == nil) {
			t.Fatalf("broken, and %+v", p)
		}
		if bytes.HasPrefix(value, []byte(recordMark)) && !p.ours && p.broken == "" {
			t.Fatalf("%q is the value of another client", value)
		}
		for _, lay := range []layout{newLayout("", ""), newLayout("locks/", ""), newLayout("", "n/s")} {
			if name, ok := lay.nameOf(&p); ok && (name == "" || ofLongerName([]byte(p.key), lay.entries(name))) {
				t.Fatalf("%q is an entry of %q", key, name)
			}
		}
	})
}

// TestNamespacesShareNoKey: two names of two namespaces never have the same key.
func TestNamespacesShareNoKey(t *testing.T) {
	text := rapid.StringMatching(`[a/%_]{0,6}|_holdfast/ns/a/b|_holdfast/epoch/1`)
	rapid.Check(t, func(t *rapid.T) {
		ns1, ns2 := text.Draw(t, "ns1"), text.Draw(t, "ns2")
		n1, n2 := text.Draw(t, "n1"), text.Draw(t, "n2")
		l1, l2 := newLayout("p/", ns1), newLayout("p/", ns2)
		if n1 == "" || n2 == "" || l1.checkName(n1) != nil || l2.checkName(n2) != nil || ns1 == ns2 && n1 == n2 {
			return
		}
		if k1, k2 := l1.entry(n1, 7, 0), l2.entry(n2, 7, 0); k1 == k2 {
			t.Fatalf("%q in %q and %q in %q share %q", n1, ns1, n2, ns2, k1)
		}
	})
}
