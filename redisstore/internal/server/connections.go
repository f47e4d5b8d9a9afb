package server

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// connections closes connections in the pool of a client.
type connections struct {
	client *redis.Client // nil in a Cluster, whose client finds the servers
	era    atomic.Pointer[era]
}

// era ends when all connections are to be replaced.
type era struct {
	context.Context
	end context.CancelFunc
}

func newConnections() *connections {
	c := &connections{}
	c.era.Store(newEra())
	return c
}

func newEra() *era {
	ctx, cancel := context.WithCancel(context.Background())
	return &era{ctx, cancel}
}

// begin returns a context that ends when the connection of a request that begins now is outdated.
func (c *connections) begin() context.Context { return c.era.Load() }

// end ends a request. If its connection is outdated, it is in the pool now, and end closes it.
func (c *connections) end(began context.Context) {
	if began.Err() != nil {
		c.closeIdle()
	}
}

func (c *connections) replace() {
	c.era.Swap(newEra()).end()
	c.closeIdle()
}

// closeTimeout is the timeout to get connections from the pool, if other requests use all of them.
const closeTimeout = time.Second

// closeIdle closes the connections that are in the pool now. go-redis has no call for that, but it
// closes a connection on which it could not write a command.
func (c *connections) closeIdle() {
	if c.client == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	for range c.client.PoolStats().IdleConns {
		_ = c.client.Process(ctx, command(ctx, "ping", unwritable{}))
	}
}

// unwritable is an argument that go-redis cannot write.
type unwritable struct{}

var errReplaced = errors.New("redisstore: the connection is replaced, because its server became a replica")

// MarshalBinary implements encoding.BinaryMarshaler.
func (unwritable) MarshalBinary() ([]byte, error) { return nil, errReplaced }
