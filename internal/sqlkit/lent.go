package sqlkit

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"sync"
	"time"
)

// Lend takes a connection out of a user's pool. Close ends the connection instead of giving
// it back, so that no setting of its session reaches another user of the pool. Only a
// [Pool] that keeps no idle links gives the connection back.
//
// wrap makes a link of the driver's connection. It is nil for a driver that can query
// without preparing.
func Lend(ctx context.Context, db *sql.DB, wrap func(driverConn any) Link) (Link, error) {
	c, err := db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	l := &lentLink{conn: c, wrap: wrap}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	return l, nil
}

type lentLink struct {
	conn   *sql.Conn
	wrap   func(any) Link
	ctx    context.Context // ends a running statement
	cancel context.CancelFunc
	once   sync.Once
}

func (l *lentLink) Gone() <-chan struct{} { return nil }
func (l *lentLink) Watch()                {}

func (l *lentLink) Run(ctx context.Context, statements ...string) (all Answers, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(l.ctx, cancel)()
	rawErr := l.conn.Raw(func(dc any) error {
		if l.wrap != nil {
			all, err = l.wrap(dc).Run(ctx, statements...)
			return nil
		}
		c, ok := dc.(driver.Conn)
		if !ok {
			return driver.ErrBadConn
		}
		all, err = runAll(ctx, c, false, statements)
		return nil
	})
	if err == nil {
		err = rawErr
	}
	return all, err
}

// Close ends the connection.
func (l *lentLink) Close() {
	l.once.Do(func() {
		l.cancel()
		_ = l.conn.Raw(func(dc any) error {
			if l.wrap != nil {
				if below := l.wrap(dc); below != nil {
					below.Close() // the driver may have a pool of its own and give it back there
				}
			}
			return driver.ErrBadConn
		})
		_ = l.conn.Close()
	})
}

// EndIdle ends the idle connections of a user's pool.
func EndIdle(db *sql.DB) {
	ctx, cancel := context.WithTimeout(context.Background(), endIdleTimeout)
	defer cancel()
	for range db.Stats().Idle {
		c, err := db.Conn(ctx)
		if err != nil {
			return
		}
		_ = c.Raw(func(any) error { return driver.ErrBadConn })
		_ = c.Close()
	}
}

// endIdleTimeout limits EndIdle: the program may take all connections meanwhile.
const endIdleTimeout = time.Second

// giveBack gives a link back to a user's pool. It closes any other link.
func giveBack(l Link) {
	if lent, ok := l.(interface{ giveBack() }); ok {
		lent.giveBack()
	} else {
		l.Close()
	}
}

func (l *lentLink) giveBack() {
	l.once.Do(func() {
		l.cancel()
		_ = l.conn.Close()
	})
}
