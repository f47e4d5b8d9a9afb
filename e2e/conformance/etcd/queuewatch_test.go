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

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/servers"
)

// gate is an interceptor that can end the stream of watches.
type gate struct {
	*interceptor
	mu     sync.Mutex
	closed chan struct{} // no stream opens before this is closed; nil if streams may open
	end    context.CancelFunc
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
	g := &gate{interceptor: newInterceptor()}
	s := over(t, c.direct(t, onTxn(g.txn), func(cfg *clientv3.Config) {
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
		held := must(t, other, request(name, 1, time.Hour))
		first := queue(t, s, request(name, 1, time.Hour))
		release(t, other, held)
		release(t, s, first.Granted())

		must(t, other, request(name, 1, time.Hour))
		delete := []string{keyOf(t, client, name)}
		for range test.before - 1 {
			queue(t, other, request(name, 1, time.Hour))
			delete = append(delete, keyOf(t, client, name))
		}
		entry, closed := g.stopBeforeReturn(), make(chan struct{})
		w := submit(t, s, request(name, 1, time.Hour))
		receive(t, test.what+": the answer to the entry", entry.reached)
		if test.own { // delete it first: after the others it would be a grant that is lost
			delete = append([]string{keyOf(t, client, name)}, delete...)
		}
		if test.lost {
			g.mu.Lock()
			g.closed = closed
			g.end()
			g.mu.Unlock()
		}
		remove(t, client, delete...)
		if test.behind {
			entry.resume()
		}
		if test.lost {
			g.mu.Lock()
			g.closed = nil
			g.mu.Unlock()
			close(closed)
		}
		if !test.behind {
			entry.resume()
		}
		err := w.Ended()
		switch {
		case test.own && driver.CodeOf(err) != driver.CodeUnavailable:
			t.Fatalf("%s deleted: %+v, %v, want unavailable", test.what, w.Grant, err)
		case !test.own && err != nil:
			t.Fatalf("%s deleted: %v", test.what, err)
		case !test.own:
			release(t, s, w.Grant)
		}
	}
}
