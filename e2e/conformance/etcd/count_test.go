package etcd

import (
	"fmt"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/holdfast-go/holdfast/check/servers"
)

// keyOf returns the key of the youngest entry of a name.
func keyOf(t *testing.T, client *clientv3.Client, name string) string {
	t.Helper()
	last, err := client.Get(t.Context(), name+"/", append(clientv3.WithLastCreate(), clientv3.WithLimit(1))...)
	if err != nil || len(last.Kvs) != 1 {
		t.Fatalf("%v, %v", last, err)
	}
	return string(last.Kvs[0].Key)
}

// TestEntryCountsTheDeletionsBeforeIt: an entry is granted when the last of three entries before it
// was deleted, in whatever order, and not before. Its client sends no request for that. (The
// session reads its entries once a second. It reads them again after an interruption of a watch,
// which takes a second.)
func TestEntryCountsTheDeletionsBeforeIt(t *testing.T) {
	c := start(t, servers.EtcdConfig{})
	s, n := c.counted(t)
	client := c.direct(t)
	other := c.open(t)
	began := time.Now()
	var used int64
	const rounds = 20
	for i := range rounds {
		name := fmt.Sprint("n", i)
		must(t, other, request("holder-"+name, name, 1, time.Hour))
		before := []string{keyOf(t, client, name)}
		for j := range 2 {
			submit(t, other, request(fmt.Sprint("waiter-", j, name), name, 1, time.Hour))
			for len(before) == j+1 {
				if key := keyOf(t, client, name); key != before[j] {
					before = append(before, key)
				}
			}
		}
		queued := n.Load()
		last := waitIn(t, s, request("last-"+name, name, 1, time.Hour))
		for n.Load() < queued+2 { // the creation of the entry, and the read after the creation of its watch
			time.Sleep(time.Millisecond)
		}
		queued = n.Load()
		for k, at := range [][]int{{0, 1, 2}, {1, 0, 2}, {2, 1, 0}}[i%3] {
			select {
			case res := <-last:
				t.Fatalf("granted beside %d others: %+v, %v", 3-k, res.g, res.err)
			default:
			}
			if _, err := client.Delete(t.Context(), before[at]); err != nil {
				t.Fatal(err)
			}
		}
		res := receive(t, "the grant", last)
		if res.err != nil {
			t.Fatal(res.err)
		}
		used += n.Load() - queued
		release(t, s, res.g)
	}
	if most := 2 * checksSince(began); used > most {
		t.Errorf("%d grants took %d requests, want %d at most", rounds, used, most)
	}
}

// TestDeletedEntryIsNotGranted: an administrator deletes the entries of the next waiter and of the
// holder, in this order or in one transaction. The store refuses that waiter, and grants the lock
// to the waiter behind it.
func TestDeletedEntryIsNotGranted(t *testing.T) {
	c := start(t, servers.EtcdConfig{})
	holder, s, other, client := c.open(t), c.open(t), c.open(t), c.direct(t)
	for i := range 20 {
		name := fmt.Sprint("n", i)
		must(t, holder, request("holder-"+name, name, 1, time.Hour))
		first := keyOf(t, client, name)
		next := waitIn(t, s, request("next-"+name, name, 1, time.Hour))
		second := keyOf(t, client, name)
		behind := waitIn(t, other, request("behind-"+name, name, 1, time.Hour))
		if i%2 == 0 {
			if _, err := client.Delete(t.Context(), second); err != nil {
				t.Fatal(err)
			}
			if _, err := client.Delete(t.Context(), first); err != nil {
				t.Fatal(err)
			}
		} else if _, err := client.Txn(t.Context()).Then(clientv3.OpDelete(first), clientv3.OpDelete(second)).Commit(); err != nil {
			t.Fatal(err)
		}
		if res := receive(t, "the answer to the waiter", next); res.err == nil {
			t.Fatalf("a waiter whose entry was deleted is granted: %+v", res.g)
		}
		res := receive(t, "the grant", behind)
		if res.err != nil {
			t.Fatal(res.err)
		}
		release(t, other, res.g)
	}
}
