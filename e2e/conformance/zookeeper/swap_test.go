package zookeeper

import (
	"context"
	"regexp"
	"slices"
	"sync"
	"testing"
	"time"

	zookeeper "github.com/go-zookeeper/zk"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/e2e/conformance/requests"
	"github.com/holdfast-go/holdfast/zkstore"
)

// exclusive returns a request that may wait.
func exclusive(name string, ttl time.Duration) driver.Request {
	r := requests.New(name, driver.Exclusive, ttl)
	r.Wait = true
	return r
}

// TestSwapIsOneTransaction: the release and the create of a swap are one transaction, so the
// numbers of two grants in a row differ by one. (Another client may add a transaction between them, but not
// in each of 20 swaps.)
func TestSwapIsOneTransaction(t *testing.T) {
	for _, layout := range []zkstore.Layout{zkstore.ReadWrite, zkstore.Mutex} {
		z := single(t)
		_, s := locker(t, []string{z.Address()}, zkstore.WithLayout(layout))
		name := newName()
		g := requests.Must(t, s, exclusive(name, 30*time.Second))
		least := ^uint64(0)
		for range 20 {
			next := requests.Swapped(t, s, g, exclusive(name, 30*time.Second)).Granted()
			least, g = min(least, (next.Token-g.Token)/tokenRoom), next
		}
		if least != 1 {
			t.Errorf("%s: every swap takes %d transactions or more", layout, least)
		}
		must(t, s.Release(t.Context(), g, 0))
	}
}

// TestPlainTokensAreCzxids: with that option a token is the czxid of the grant's node, and a grant has one token,
// whatever the request reserves.
func TestPlainTokensAreCzxids(t *testing.T) {
	z := single(t)
	raw := connect(t, z.Address())
	byURL, err := zkstore.Open(t.Context(), "zk://"+z.Address()+"/faults?tokens=zxid")
	must(t, err)
	t.Cleanup(func() { _ = byURL.Close(context.Background()) })
	_, byOption := locker(t, []string{z.Address()}, zkstore.PlainTokens())
	for _, s := range []*zkstore.Store{byOption, byURL} {
		r := exclusive(newName(), 30*time.Second)
		r.Tokens = 16
		g := requests.Must(t, s, r)
		nodes, _, err := raw.Children("/faults/" + r.Name)
		must(t, err)
		_, stat, err := raw.Exists("/faults/" + r.Name + "/" + nodes[0])
		must(t, err)
		if len(nodes) != 1 || uint64(stat.Czxid) != g.Token || g.Tokens > 1 {
			t.Errorf("%d tokens from %d on, the nodes are %v, czxid %d", g.Tokens, g.Token, nodes, stat.Czxid)
		}
		if declared, err := s.Guarantees(t.Context()); err != nil || declared.Reserves {
			t.Errorf("%+v, %v", declared, err)
		}
		must(t, s.Release(t.Context(), g, 0))
	}
}

// readWithWatch matches the end of a read with a watch: a path and the byte 1.
var readWithWatch = regexp.MustCompile(`(/faults/[!-~]+)\x01`)

// TestSwapHandsOffToNoDeletedEntry: an operator has deleted the nodes of a grant and of the next
// entry of the same client, and another client is granted. The answer to the swap shows the
// deletions. Without it the client would notice them later, since it reads the node of each grant
// after 100 ms. (On a busy machine that read may come first, but not in every round.)
func TestSwapHandsOffToNoDeletedEntry(t *testing.T) {
	for layout, queues := range map[zkstore.Layout][]string{zkstore.ReadWrite: {""}, zkstore.Semaphore: {"/locks", "/leases"}} {
		t.Run(string(layout), func(t *testing.T) {
			z := single(t)
			var reads sync.Map
			_, s := locker(t, []string{z.Address()}, zkstore.WithLayout(layout), onWrites(func(b []byte) {
				for _, found := range readWithWatch.FindAllSubmatch(b, -1) {
					reads.Store(string(found[1]), nil)
				}
			}, nil))
			_, other := locker(t, []string{z.Address()}, zkstore.WithLayout(layout))
			raw := connect(t, z.Address())
			for range 20 {
				name := newName()
				dir := "/faults/" + name
				old := requests.Must(t, s, exclusive(name, 30*time.Second))
				next := requests.Queue(t, s, exclusive(name, 30*time.Second))
				own := map[string][]string{}
				for _, queue := range queues {
					want := 2
					if queue == "/locks" {
						want = 1 // the holder has released its mutex
					}
					own[queue] = nodes(t, raw, dir+queue, "both stand", count(want))
				}
				behind := queued(t, other, name, driver.Exclusive)
				var all []any
				for queue, names := range own {
					for _, n := range names {
						all = append(all, &zookeeper.DeleteRequest{Path: dir + queue + "/" + n, Version: -1})
					}
				}
				_, err := raw.Multi(all...)
				must(t, err)
				beside := behind.Granted()
				_, w := requests.Swap(t, s, old, exclusive(name, 30*time.Second))
				if next.Ended() == nil {
					requests.Of(next.Request).AwaitLoss(t)
				}
				early := !slices.ContainsFunc(all, func(o any) bool {
					_, read := reads.Load(o.(*zookeeper.DeleteRequest).Path)
					return read
				})
				must(t, other.Release(t.Context(), beside, 0))
				must(t, s.Release(t.Context(), w.Granted(), 0))
				if early {
					return
				}
			}
			t.Error("no swap has shown that the next entry had been deleted")
		})
	}
}
