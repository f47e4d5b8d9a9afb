package mysqlstore

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/sqlkit"
)

// sessions has the methods that the recipes on sessions share.
type sessions struct {
	faults
	s *Store
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
// does not cut a name that is too long for a user's column.
func (r sessions) Begin(ctx context.Context, l sqlkit.Link) (sqlkit.Identity, error) {
	f, err := r.s.server.Wait(ctx)
	if err != nil {
		return sqlkit.Identity{}, err
	}
	set := fmt.Sprintf("SET SESSION time_zone = '+00:00', autocommit = 1, sql_mode = 'STRICT_ALL_TABLES', innodb_lock_wait_timeout = %d, lock_wait_timeout = %[1]d, wait_timeout = %[2]d",
		forever, unusedTimeout)
	server := "CONCAT_WS(' ', @@hostname, @@port, @@server_id)"
	if f.maria {
		set += ", max_statement_time = 0, idle_transaction_timeout = 0, idle_readonly_transaction_timeout = 0, idle_write_transaction_timeout = 0"
	} else {
		set += ", max_execution_time = 0"
		server = "CONCAT_WS(' ', @@hostname, @@port, @@server_id, @@server_uuid)"
	}
	id := sqlkit.Identity{Since: strings.ToLower(rand.Text())}
	a, err := l.Run(ctx, set, "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED", "SET SESSION TRANSACTION READ WRITE",
		"SELECT CONNECTION_ID(), @@global.read_only, "+server+", GET_LOCK("+identityLock(id)+", 0)")
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
	return id, nil
}

// briefly returns a script that runs a statement with a short lock timeout: 0.2 s on MariaDB, and
// 1 s, the minimum, on MySQL. restore restores the session after an error.
func (r sessions) briefly(statement string) (script, restore []string) {
	if r.s.facts().maria {
		return []string{brieflyMaria + statement}, nil
	}
	const set = "SET SESSION innodb_lock_wait_timeout = %d, lock_wait_timeout = %[1]d"
	restore = []string{fmt.Sprintf(set, forever)}
	return append([]string{fmt.Sprintf(set, 1), statement}, restore...), restore
}

const brieflyMaria = "SET STATEMENT max_statement_time = 0.2 FOR "

// locked reports whether a statement exceeded the timeout of briefly.
func locked(err error) bool {
	my, ok := errors.AsType[*mysql.MySQLError](err)
	return ok && (my.Number == errLockWait || my.Number == errStatementTime)
}

// timeout returns the statement that sets the session's timer, if the timer has another
// value.
func timeout(s *sqlkit.Session, ttl time.Duration) []string {
	if s.TTL == ttl {
		return nil
	}
	return []string{fmt.Sprintf("SET SESSION wait_timeout = %d", int64(ttl/unit))}
}

// comment returns a label for a statement that may wait.
func comment(a *sqlkit.LockRequest) string { return "/*" + a.Label.Encode(labelBytes) + "*/ " }

// markNew returns an expression that takes the session's lock hf:new of the next turn and
// frees that of the last turn. The caller calls marked after the server has evaluated the
// expression.
func markNew(s *sqlkit.Session) string {
	take := "GET_LOCK(" + newLock(s, 1-s.Turn) + ", 0)"
	if s.Unrecorded {
		take += " + RELEASE_LOCK(" + newLock(s, s.Turn) + ")"
	}
	return take
}

func marked(s *sqlkit.Session) { s.Unrecorded, s.Turn = true, 1-s.Turn }

// Rest frees the lock hf:new.
func (r sessions) Rest(ctx context.Context, s *sqlkit.Session) error {
	_, err := s.Run(ctx, "DO RELEASE_LOCK("+newLock(s, s.Turn)+")")
	s.Unrecorded = s.Unrecorded && err != nil
	return err
}

// prove reports whether the session has its lock and its server is not read-only, and sets
// the session's timer. In the same round trip it takes the named lock of a grant that is
// about to be recorded.
//
// proof is a script. The first column of its last statement is whether the session has the
// lock, and prove adds other columns.
func (r sessions) prove(ctx context.Context, s *sqlkit.Session, a *sqlkit.LockRequest, lockname string, proof ...string) (bool, error) {
	record := a.Record && !a.Recorded && r.s.record.due() // mutation: mysql-due
	left := a.TTL
	if a.Left > 0 {
		left, _ = sqlkit.RoundTTL(a.Left, unit)
	}
	proof = append(timeout(s, left), proof...) // a copy of the caller's script
	proof[len(proof)-1] += ", @@global.read_only"
	if record {
		proof[len(proof)-1] += ", " + once("'"+grantLock(a.ID)+"'")
	}
	answers, err := s.Run(ctx, proof...)
	if err != nil {
		return false, err
	}
	s.TTL = left
	row := answers.Last()
	switch {
	case !row.True(0):
		return false, nil
	case isReadOnly(row.Text(1)):
		return false, sqlkit.ErrReadOnly
	case !record:
		return true, nil
	}
	if !r.s.record.write(ctx, a, s.ID.Conn, lockname) { // mutation: mysql-record
		// The lock stands without a record. A later ping tries again.
		_, err := s.Run(ctx, "DO "+once(unrecordedLock(s)))
		return err == nil, err
	}
	if _, err := s.Run(ctx, fmt.Sprintf("DO RELEASE_LOCK(%s), RELEASE_LOCK(%s)", unrecordedLock(s), newLock(s, s.Turn))); err != nil {
		return false, err
	}
	a.Recorded, s.Unrecorded = true, false
	return true, nil
}

// unmark returns an expression that frees the named locks of a grant that was, or was to
// be, recorded.
func unmark(s *sqlkit.Session, a *sqlkit.LockRequest) string {
	if !a.Record {
		return "1"
	}
	return fmt.Sprintf("COALESCE(RELEASE_LOCK('%s'), 0) + COALESCE(RELEASE_LOCK(%s), 0)", grantLock(a.ID), unrecordedLock(s))
}

// unrecorded returns the sessions that may have a grant that is not recorded, with their turns.
// A session whose lock request has no answer yet has nothing to record. It returns
// ErrReadOnly from a server that was demoted.
func (r sessions) unrecorded(ctx context.Context, side sqlkit.Link) ([]sqlkit.Identity, error) {
	const turn = "IS_USED_LOCK(CONCAT(_utf8mb4'hf:new:', id, _utf8mb4':%d')) = id"
	first, second := fmt.Sprintf(turn, 0), fmt.Sprintf(turn, 1)
	a, err := side.Run(ctx, "SELECT @@global.read_only", "SELECT id, IF("+first+", 0, 1) FROM "+r.processes()+" p WHERE ("+first+" OR "+second+
		") AND COALESCE(state, '') <> 'User lock' AND COALESCE(info, '') NOT LIKE 'SELECT /*hf1.%'")
	if err != nil {
		return nil, err
	}
	if isReadOnly(a.First(0).Text(0)) {
		return nil, sqlkit.ErrReadOnly
	}
	var ids []sqlkit.Identity
	for _, row := range a[len(a)-1] {
		ids = append(ids, sqlkit.Identity{Conn: row.Int(0), Since: row.Text(1)})
	}
	return ids, nil
}

var _ sqlkit.Recorder = sessions{}

// Unrecorded returns an error if sessions have grants that they could not record.
func (r sessions) Unrecorded(ctx context.Context, side sqlkit.Link) error {
	a, err := side.Run(ctx, "SELECT COUNT(*) FROM "+r.processes()+" p WHERE IS_USED_LOCK(CONCAT(_utf8mb4'hf:unrecorded:', id)) = id")
	if err != nil {
		return err
	}
	if n := a.Last().Int(0); n > 0 {
		return driver.Errorf(driver.CodeUnavailable, "mysqlstore: %d sessions hold locks that they could not record in holdfast_session, so that not all holders can be shown: the table is locked or full, or their user has no right to INSERT", n)
	}
	return nil
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
func (sessions) Ended(err error) bool {
	my, ok := errors.AsType[*mysql.MySQLError](err)
	return ok && my.Number == errKilled
}

// Cancel ends the statement of a session. The server finds the session by its identity and
// ends the statement in one step.
func (r sessions) Cancel(ctx context.Context, side sqlkit.Link, id sqlkit.Identity) error {
	_, err := side.Run(ctx, "KILL QUERY IS_USED_LOCK("+identityLock(id)+")")
	return unlessGone(err)
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
	if my, ok := errors.AsType[*mysql.MySQLError](err); ok && my.Number == errNoThread {
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

// processes returns a query for the server's list of sessions, with the microseconds since
// each of them changed its state.
func (r sessions) processes() string {
	if r.s.facts().maria {
		return "(SELECT id, host, command, state, info, CAST(time_ms * 1000 AS SIGNED) AS micros FROM information_schema.processlist)"
	}
	return "(SELECT id, host, command, state, info, time * 1000000 AS micros FROM information_schema.processlist)"
}

// survey returns the sessions with a grant that is not recorded, the recorded holders of the
// recipe, and the waiters. Waiters are the sessions with a statement that waits. The server
// shows whether a statement waits for a named lock. A statement that requests a row waits if it
// has run for a while.
func (r sessions) survey(ctx context.Context, side sqlkit.Link, key []byte, all bool, recipe, waits string) ([]sqlkit.Sight, []sqlkit.Identity, error) {
	// The holders are read after this, so that they include a grant that is recorded
	// meanwhile.
	unrecorded, err := r.unrecorded(ctx, side)
	if err != nil {
		return nil, nil, err
	}
	where := recipe + fmt.Sprintf(" AND LEFT(s.name, %d) = %s", len(key), lit(key))
	match := func(l *sqlkit.Label) bool { return bytes.HasPrefix(l.Key, key) }
	if !all {
		where = recipe + " AND s.name = " + lit(key)
		match = func(l *sqlkit.Label) bool { return bytes.Equal(l.Key, key) }
	}
	sights, err := r.holders(ctx, side, where)
	if err != nil {
		return nil, nil, err
	}
	waiting, err := r.waiters(ctx, side, match, waits)
	return append(sights, waiting...), unrecorded, err
}

// holders returns the sessions whose grants are recorded. It finds the numbers that the
// sessions have on this server by the named locks of their grants.
func (r sessions) holders(ctx context.Context, side sqlkit.Link, where string) ([]sqlkit.Sight, error) {
	a, err := side.Run(ctx, "SELECT s.now, s.token, s.slot, s.label, p.micros, p.command, s.held FROM"+
		" (SELECT IS_USED_LOCK(CONVERT(s.held USING utf8mb4)) AS now, s.held, s.token, s.slot, s.label FROM holdfast_session s WHERE "+where+") s"+
		" LEFT JOIN "+r.processes()+" p ON p.id = s.now WHERE s.now IS NOT NULL")
	if err != nil {
		return nil, err
	}
	var sights []sqlkit.Sight
	for _, row := range a[len(a)-1] {
		label, ok := sqlkit.FindLabel(row.Text(3))
		if !ok {
			continue
		}
		s := sqlkit.Sight{Label: label, Granted: true, Token: uint64(row.Int(1)), Slot: int(row.Int(2)), Since: time.UnixMicro(row.Int(1)), Left: label.TTL}
		s.Identity = sqlkit.Identity{Conn: row.Int(0), Since: row.Text(6)}
		if row.Text(5) == "Sleep" {
			s.Left -= time.Duration(row.Int(4)) * time.Microsecond
		}
		sights = append(sights, s)
	}
	return sights, nil
}

// waiters returns the sessions whose statements wait, longest first.
func (r sessions) waiters(ctx context.Context, side sqlkit.Link, match func(*sqlkit.Label) bool, waits string) ([]sqlkit.Sight, error) {
	a, err := side.Run(ctx, "SELECT id, micros, HEX(LEFT(info, 2048)), "+clock+" FROM "+r.processes()+" p WHERE command = 'Query' AND id <> CONNECTION_ID() AND info LIKE 'SELECT /*hf1.%' AND "+waits+" ORDER BY micros DESC")
	if err != nil {
		return nil, err
	}
	var sights []sqlkit.Sight
	for _, row := range a[len(a)-1] {
		info, err := hex.DecodeString(row.Text(2))
		if err != nil {
			return nil, err
		}
		label, ok := sqlkit.FindLabel(string(info))
		if !ok || !match(&label) {
			continue
		}
		s := sqlkit.Sight{Label: label, Since: time.UnixMicro(row.Int(3) - row.Int(1))}
		s.Conn = row.Int(0)
		sights = append(sights, s)
	}
	return sights, nil
}
