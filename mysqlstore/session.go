package mysqlstore

import (
	"context"
	"crypto/rand"
	"fmt"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/sqlkit"
)

// sessions has the methods that the recipes on sessions share. In the order of a session's life:
//
//   - Begin prepares a new session, and gives it an identity at the server.
//   - run runs the recipe's script of a lock, and sets the timer by which the server ends a silent session.
//   - prove runs the recipe's proof that the session still has its lock, and restarts the timer. Once the grant
//     has stood for a while, prove records its holder in holdfast_session.
//   - Runs reports whether the session runs a statement.
//   - End and Evict end a session, or a grant. They run on another connection.
//   - Cause and Ended find out why a session has ended.
//
// survey reads what the sessions have recorded.
type sessions struct {
	faults
	s *store
}

const (
	// unit is the granularity of wait_timeout.
	unit = time.Second
	// forever is longer than any wait, and shorter than the server's maximum.
	forever = 365 * 24 * 3600
	// unusedTimeout is the wait_timeout of a session before its first lock request, in seconds. It is
	// the server's default.
	unusedTimeout = 8 * 3600
	// labelBytes is the space for a label in holdfast_session.
	labelBytes = 1400
)

// errMoved is the error of a connection that has another session than before.
var errMoved = fmt.Errorf("the connection has another number than before: a proxy that shares connections stands between")

// isReadOnly reports whether a value of read_only means read-only. In some versions the
// variable is an enumeration.
func isReadOnly(value string) bool {
	return value != "0" && !strings.EqualFold(value, "OFF") // mutation: mysql-demoted
}

// Begin switches off every timeout of a session, a transaction or a statement, so that only
// the TTL ends the session. It sets the session's clock to UTC. In strict mode the server
// does not cut a name that is too long for a user's column. With unique_checks a user's
// table has no second row of a name.
func (r sessions) Begin(ctx context.Context, l sqlkit.Link) (sqlkit.Identity, error) {
	set := fmt.Sprintf("SET SESSION time_zone = '+00:00', autocommit = 1, sql_mode = 'STRICT_ALL_TABLES', unique_checks = 1, innodb_lock_wait_timeout = %d, lock_wait_timeout = %[1]d, wait_timeout = %[2]d"+
		"/*M! , max_statement_time = 0, idle_transaction_timeout = 0, idle_readonly_transaction_timeout = 0, idle_write_transaction_timeout = 0 */"+
		"/*!50708 , max_execution_time = 0 */", forever, unusedTimeout)
	id := sqlkit.Identity{Since: strings.ToLower(rand.Text())}
	a, err := l.Run(ctx, set, "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED", "SET SESSION TRANSACTION READ WRITE",
		"SELECT CONNECTION_ID(), @@global.read_only, "+serverID+", GET_LOCK("+identityLock(id)+", 0)")
	if err != nil {
		return sqlkit.Identity{}, err
	}
	row := a.Last()
	switch {
	case isReadOnly(row.Text(1)):
		return sqlkit.Identity{}, sqlkit.ErrReadOnly
	case !row.True(3):
		return sqlkit.Identity{}, driver.Errorf(driver.CodeUnavailable, "mysqlstore: GET_LOCK was interrupted")
	}
	id.Conn, id.Server = row.Int(0), row.Text(2)
	if _, known := r.s.known(id.Server); !known {
		return sqlkit.Identity{}, driver.Errorf(driver.CodeUnavailable, "mysqlstore: the connection leads to another server than before")
	}
	return id, nil
}

// comment returns a label for a statement that may wait.
func comment(a *sqlkit.LockRequest) string { return "/*" + a.Label.Encode(labelBytes) + "*/ " }

// run runs a script in a session whose timer has the value ttl.
func run(ctx context.Context, s *sqlkit.Session, ttl time.Duration, script ...string) (sqlkit.Answers, error) {
	if s.TTL != ttl {
		script = append([]string{fmt.Sprintf("SET SESSION wait_timeout = %d", int64(ttl/unit))}, script...)
	}
	answers, err := s.Run(ctx, script...)
	if err == nil {
		s.TTL = ttl
	}
	return answers, err
}

// prove reports whether the session has its lock. It returns ErrReadOnly if the server is read-only. proof is the
// recipe's script. The first column of its last statement is whether the session has the lock.
//
// A record counts while the session has the named lock of the grant, which prove takes in the same round trip. If
// the record cannot be written, the lock stands without one, and the session has the named lock hf:unrecorded
// instead. A later ping tries again.
func (r sessions) prove(ctx context.Context, s *sqlkit.Session, a *sqlkit.LockRequest, lockname string, proof ...string) (bool, error) {
	record := a.Record && !a.Recorded && r.s.record.due() // mutation: mysql-due
	last := len(proof) - 1
	proof[last] += ", @@global.read_only"
	if record {
		proof[last] += ", " + once("'"+grantLock(a.ID)+"'")
	}
	left, err := sqlkit.RoundTTL(a.Left, unit)
	if err != nil {
		return false, err
	}
	answers, err := run(ctx, s, left, proof...)
	switch row := answers.Last(); {
	case err != nil:
		return false, err
	case !row.True(0):
		return false, nil
	case isReadOnly(row.Text(1)):
		return false, sqlkit.ErrReadOnly
	case !record:
		return true, nil
	}
	mark := "DO RELEASE_LOCK(" + unrecordedLock(s) + ")"
	a.Recorded = true
	if !r.s.record.write(ctx, a, s.ID.Conn, lockname) { // mutation: mysql-record
		mark = "DO " + once(unrecordedLock(s))
		a.Recorded = false
	}
	_, err = s.Run(ctx, mark)
	return err == nil, err
}

// unmark returns an expression that frees the named locks of a grant that was, or was to
// be, recorded.
func unmark(s *sqlkit.Session, a *sqlkit.LockRequest) string {
	if !a.Record {
		return "1"
	}
	return fmt.Sprintf("COALESCE(RELEASE_LOCK('%s'), 0) + COALESCE(RELEASE_LOCK(%s), 0)", grantLock(a.ID), unrecordedLock(s))
}

// Runs reports whether a session runs a statement. The answer of a read-only server does not count: the session may be
// at its successor.
func (r sessions) Runs(ctx context.Context, side sqlkit.Link, id sqlkit.Identity) (bool, error) {
	a, err := side.Run(ctx, "SELECT @@global.read_only, COUNT(*) FROM information_schema.processlist WHERE id = IS_USED_LOCK("+identityLock(id)+") AND command <> 'Sleep'")
	if err == nil && isReadOnly(a.Last().Text(0)) {
		err = sqlkit.ErrReadOnly
	}
	return a.Last().Int(1) > 0, err
}

// End ends a session and reports whether it is gone from the server. On a server that has
// taken over, no session has its identity. The answer of a read-only server does not
// count: the session may be at its successor.
func (r sessions) End(ctx context.Context, side sqlkit.Link, id sqlkit.Identity) (bool, error) {
	a, err := side.Run(ctx, "SELECT @@global.read_only, IS_USED_LOCK("+identityLock(id)+")")
	switch {
	case err != nil:
		return false, err
	case isReadOnly(a.Last().Text(0)):
		return false, sqlkit.ErrReadOnly
	case a.Last().Null(1):
		return true, nil
	}
	_, err = side.Run(ctx, "KILL IS_USED_LOCK("+identityLock(id)+")")
	return false, unlessGone(err)
}

// errNoThread is the error of KILL for a session that is gone.
const errNoThread = 1094

func unlessGone(err error) error {
	if isError(err, errNoThread) {
		return nil
	}
	return err
}

// Evict marks the holder's row and ends its session, if it still has the grant. The server
// finds the session by the named lock of that grant, and ends it in one step.
func (r sessions) Evict(ctx context.Context, side sqlkit.Link, seen sqlkit.Sight) error {
	held := seen.Identity.Since
	if _, err := side.Run(ctx, fmt.Sprintf("UPDATE holdfast_session SET taken = %s WHERE held = '%s'", clock, held)); err != nil {
		return err
	}
	_, err := side.Run(ctx, "KILL IS_USED_LOCK('"+held+"')")
	if err = unlessGone(err); err != nil {
		_, _ = side.Run(ctx, fmt.Sprintf("UPDATE holdfast_session SET taken = 0 WHERE held = '%s'", held)) // the grant was not broken
	}
	return err
}

// causeWithin limits the read of Cause, for which the notice of a loss waits.
const causeWithin = 250 * time.Millisecond

// Cause reads whether an operator's break ended the session: the server gives no reason when
// it ends a connection.
func (r sessions) Cause(s *sqlkit.Session, a *sqlkit.LockRequest, side *sqlkit.Pool) (driver.Cause, error) {
	ctx, cancel := context.WithTimeout(context.Background(), causeWithin)
	defer cancel()
	answers, err := side.Run(ctx, fmt.Sprintf("SELECT taken FROM holdfast_session WHERE held = '%s'", grantLock(a.ID)))
	if err == nil && answers.Last().Int(0) > 0 {
		return driver.CauseTaken, nil
	}
	return driver.CauseSessionEnded, nil
}

// Ended reports whether MariaDB has killed the connection. MySQL has no such error.
func (sessions) Ended(err error) bool { return isError(err, errKilled) }
