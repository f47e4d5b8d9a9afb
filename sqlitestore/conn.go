package sqlitestore

import (
	"context"
	sqldriver "database/sql/driver"
	"fmt"
	"net/url"
	"os"
)

// A transaction takes the write lock when it begins, and is on the disk when it has been committed.
const pragmas = "_txlock=immediate&_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)"

// connector opens connections to the file at a path.
type connector struct {
	driver sqldriver.Driver
	path   string
}

func (c *connector) Driver() sqldriver.Driver { return c.driver }

// Connect remembers which file it has opened. Another one must not be put in its place meanwhile.
func (c *connector) Connect(context.Context) (sqldriver.Conn, error) {
	before, missing := os.Stat(c.path)
	inner, err := c.driver.Open("file:" + (&url.URL{Path: c.path}).EscapedPath() + "?" + pragmas)
	if err != nil {
		return nil, err
	}
	opened, err := os.Stat(c.path)
	full, ok := inner.(fullConn)
	switch {
	case !ok:
		err = fmt.Errorf("a connection of the driver is a %T, which lacks methods that those of modernc.org/sqlite have", inner)
	case err == nil && missing == nil && !os.SameFile(before, opened):
		err = fmt.Errorf("%s was replaced at this moment", c.path)
	}
	if err != nil {
		_ = inner.Close()
		return nil, err
	}
	return &conn{full, c.path, opened}, nil
}

// fullConn is what a connection of the driver implements.
type fullConn interface {
	sqldriver.Conn
	sqldriver.ConnBeginTx
	sqldriver.ExecerContext
	sqldriver.QueryerContext
	sqldriver.SessionResetter
	sqldriver.Validator
}

// conn is a connection to the file that was at the path when it was opened.
type conn struct {
	fullConn
	path   string
	opened os.FileInfo
}

// ResetSession is called before each transaction but the first. Its error lets package sql open another connection.
func (c *conn) ResetSession(ctx context.Context) error {
	if at, err := os.Stat(c.path); err != nil || !os.SameFile(at, c.opened) {
		return sqldriver.ErrBadConn
	}
	return c.fullConn.ResetSession(ctx)
}
