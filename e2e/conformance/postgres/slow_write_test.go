package postgres

import (
	"bytes"
	"context"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/e2e/conformance/requests"
	"github.com/holdfast-go/holdfast/e2e/conformance/sqltest"
	"github.com/holdfast-go/holdfast/pgstore"
)

// TestLossAfterSlowWriteIsNoticed: while a write takes long, pgx reads the answer in a goroutine, which
// goes on to read after the statement. The holder is notified all the same when its session ends.
func TestLossAfterSlowWriteIsNoticed(t *testing.T) {
	database := postgres.Create(t)
	cfg, err := pgconn.ParseConfig(postgres.DSN(postgres.Server(t).Address, database))
	check(t, err)
	dials := make(chan *slowConn, 16)
	dial, slow := cfg.DialFunc, new(atomic.Bool)
	cfg.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		conn := &slowConn{Conn: c, reads: make(chan struct{}, 100), slow: slow}
		dials <- conn
		return conn, nil
	}
	s, err := store(pgstore.OpenConfig(t.Context(), cfg, pgstore.With(pgstore.Pessimistic)))
	check(t, err)
	defer sqltest.Close(t, s)
	first, _ := sqltest.Must(t, s, "slow-write", driver.Exclusive, time.Minute) // which inserts the row
	sqltest.Release(t, s, first)
	slow.Store(true)
	g, a := sqltest.Must(t, s, "slow-write", driver.Exclusive, time.Minute)
	if slow.Load() {
		t.Fatal("no write was slow")
	}

	// The store watches the connections of grants that are 20 ms old. A read on the second grant's connection,
	// which runs no statement, shows that the first is watched too.
	drained := func() *slowConn {
		for {
			c := <-dials
			if len(dials) == 0 {
				return c
			}
		}
	}
	drained()
	second, _ := sqltest.Must(t, s, "second", driver.Exclusive, time.Minute)
	last := drained()
	requests.Eventually(t, "the connection of a grant is watched", func() bool { return last.reading.Load() })
	sqltest.Release(t, s, second)

	other := postgres.Store(t, database, "recipe=pessimistic")
	check(t, other.Break(t.Context(), g.Name, g.Token))
	if c := a.AwaitLoss(t); c != driver.CauseTaken {
		t.Errorf("cause %q, want %q", c, driver.CauseTaken)
	}
}

// slowConn is a connection. If slow is set, the write of the next lock returns only after its answer has been
// read, and the next read has begun.
type slowConn struct {
	net.Conn
	reads   chan struct{} // a value for each read that begins
	reading atomic.Bool
	slow    *atomic.Bool // whether the next write of a lock is slow
}

func (c *slowConn) Read(p []byte) (int, error) {
	select {
	case c.reads <- struct{}{}:
	default:
	}
	c.reading.Store(true)
	defer c.reading.Store(false)
	return c.Conn.Read(p)
}

func (c *slowConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	if err == nil && bytes.Contains(p, []byte("FOR UPDATE")) && c.slow.CompareAndSwap(true, false) {
		for len(c.reads) > 0 {
			<-c.reads
		}
		<-c.reads // of the answer
		<-c.reads
	}
	return n, err
}
