package pgstore

import (
	"net"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/holdfast-go/holdfast/internal/must"
)

// TestCloseBeforeAStatement: a link is closed just before a statement begins. The race detector finds a use of pgx's
// connection by both.
func TestCloseBeforeAStatement(t *testing.T) {
	for range 10 {
		cfg, err := pgconn.ParseConfig("postgres://localhost")
		must.Succeed(t, err)
		c, other := net.Pipe()
		defer other.Close()
		conn, err := pgconn.Construct(&pgconn.HijackedConn{Conn: c, Config: cfg, TxStatus: 'I'})
		must.Succeed(t, err)
		l := newLink(conn, nil)
		go l.Close()
		for {
			if _, err := l.begin(t.Context()); err != nil {
				break
			}
			l.Finish(t.Context(), &err)
		}
	}
}
