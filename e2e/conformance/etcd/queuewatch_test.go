package etcd

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/holdfast-go/holdfast/check/servers"
	"github.com/holdfast-go/holdfast/driver"
)

// TestNextEntryNeedsNoRead: a client queues again and again for one name. Its watch of the name stays, so
// each time it sends two requests: its entry and its release.
func TestNextEntryNeedsNoRead(t *testing.T) {
	c := start(t, servers.EtcdConfig{})
	s, n := c.counted(t)
	other := c.open(t)
	held := must(t, other, request("first", "n", 1, time.Hour))
	const rounds = 60
	var began time.Time
	for i := range rounds + 1 {
		if i == 1 { // the first entry makes the watch
			began = time.Now()
			n.Store(0)
		}
		next := waitIn(t, s, request(fmt.Sprint("s", i), "n", 1, time.Hour))
		release(t, other, held)
		got := receive(t, "the grant", next)
		if got.err != nil {
			t.Fatal(got.err)
		}
		again := waitIn(t, other, request(fmt.Sprint("other", i), "n", 1, time.Hour))
		release(t, s, got.g)
		if got = receive(t, "the grant of the other client", again); got.err != nil {
			t.Fatal(got.err)
		}
		held = got.g
	}
	// If the watch was unused for a second, the client makes a new one and then reads the queue.
	if most := 2*rounds + 3*checksSince(began); n.Load() > most {
		t.Errorf("%d entries and releases took %d requests, want %d at most", rounds, n.Load(), most)
	}
}

// gate delays the answers to the next transaction, and can end the stream of watches.
type gate struct {
	mu      sync.Mutex
	reached chan struct{} // closed when the answer has come; nil if no answer is to be delayed
	through chan struct{} // closed when the answer may pass
	closed  chan struct{} // no stream opens before this is closed; nil if streams may open
	end     context.CancelFunc
}

func (g *gate) unary(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	err := invoke(ctx, method, req, reply, cc, opts...)
	if !strings.HasSuffix(method, "/Txn") {
		return err
	}
	g.mu.Lock()
	reached, through := g.reached, g.through
	g.reached = nil
	g.mu.Unlock()
	if reached != nil {
		close(reached)
		<-through
	}
	return err
}

func (g *gate) stream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	if !strings.HasSuffix(method, "/Watch") {
		return streamer(ctx, desc, cc, method, opts...)
	}
	g.mu.Lock()
	closed := g.closed
	g.mu.Unlock()
	if closed != nil {
		select {
		case <-closed:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	ctx, end := context.WithCancel(ctx)
	g.mu.Lock()
	g.end = end
	g.mu.Unlock()
	return streamer(ctx, desc, cc, method, opts...)
}

// TestKeptWatchSeesDeletionsBeforeLateAnswer: a client makes a queue entry, and the answer is late.
// Meanwhile an operator deletes entries, and the client's watch of the name stands or is lost. The
// entry is granted if all entries before it were deleted, and refused if it was deleted itself.
func TestKeptWatchSeesDeletionsBeforeLateAnswer(t *testing.T) {
	c := start(t, servers.EtcdConfig{})
	client, other := c.direct(t), c.open(t)
	g := &gate{}
	s := over(t, c.direct(t, unary(g.unary), func(cfg *clientv3.Config) {
		cfg.DialOptions = append(cfg.DialOptions, grpc.WithChainStreamInterceptor(g.stream))
	}))
	for i, test := range []struct {
		what         string
		before       int // entries before it
		own          bool
		lost, behind bool // lost: the watch is lost; behind: it is not made again before the entry waits
	}{
		{what: "one entry", before: 1},
		{what: "three entries", before: 3},
		{what: "its own entry", own: true, before: 1},
		{what: "one entry, without the watch", before: 1, lost: true},
		{what: "three entries, and the watch comes later", before: 3, lost: true, behind: true},
		{what: "its own entry, and the watch comes later", before: 1, own: true, lost: true, behind: true},
	} {
		name := fmt.Sprint("n", i)
		// The first round makes the watch of the name.
		held := must(t, other, request("warm-"+name, name, 1, time.Hour))
		first := waitIn(t, s, request("first-"+name, name, 1, time.Hour))
		release(t, other, held)
		warm := receive(t, test.what+": the first grant", first)
		if warm.err != nil {
			t.Fatal(warm.err)
		}
		release(t, s, warm.g)

		must(t, other, request("holder-"+name, name, 1, time.Hour))
		delete := []string{keyOf(t, client, name)}
		for j := range test.before - 1 {
			waitIn(t, other, request(fmt.Sprint("waiter-", j, name), name, 1, time.Hour))
			delete = append(delete, keyOf(t, client, name))
		}
		reached, through, closed := make(chan struct{}), make(chan struct{}), make(chan struct{})
		g.mu.Lock()
		g.reached, g.through = reached, through
		g.mu.Unlock()
		done := submit(t, s, request("late-"+name, name, 1, time.Hour))
		receive(t, test.what+": the answer to the entry", reached)
		if test.own { // delete it first: after the others it would be a grant that is lost
			delete = append([]string{keyOf(t, client, name)}, delete...)
		}
		if test.lost {
			g.mu.Lock()
			g.closed = closed
			g.end()
			g.mu.Unlock()
		}
		for _, key := range delete {
			if _, err := client.Delete(t.Context(), key); err != nil {
				t.Fatal(err)
			}
		}
		if test.behind {
			close(through)
		}
		if test.lost {
			g.mu.Lock()
			g.closed = nil
			g.mu.Unlock()
			close(closed)
		}
		if !test.behind {
			close(through)
		}
		res := receive(t, test.what+": the outcome", done)
		switch {
		case test.own && driver.CodeOf(res.err) != driver.CodeUnavailable:
			t.Fatalf("%s deleted: %+v, %v, want unavailable", test.what, res.g, res.err)
		case !test.own && res.err != nil:
			t.Fatalf("%s deleted: %v", test.what, res.err)
		case !test.own:
			release(t, s, res.g)
		}
	}
}
