package mysqlstore

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/sqlkit"
)

// sessions is what the recipes on sessions have in common.
type sessions struct {
	faults
	s *Store
}

// sysdate is the time of its evaluation, in microseconds since 1970, in a session
// whose time zone is UTC. NOW and UTC_TIMESTAMP are taken before the wait.
const sysdate = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6))"

const (
	// unit is what wait_timeout counts in.
	unit = time.Second
	// forever is more than any wait, and less than what the server takes.
	forever = 365 * 24 * 3600
	// labelRoom is what a label has in holdfast_session.
	labelRoom = 1400
)

// Begin takes away everything that may end a session, a transaction or a statement
// by itself, so that only the TTL does, and makes the session's clock UTC.
func (r sessions) Begin(ctx context.Context, l sqlkit.Link) (sqlkit.Identity, error) {
	f, err := r.s.server.Settle(ctx)
	if err != nil {
		return sqlkit.Identity{}, err
	}
	set := fmt.Sprintf("SET SESSION time_zone = '+00:00', autocommit = 1, sql_mode = '', innodb_lock_wait_timeout = %d, lock_wait_timeout = %d, wait_timeout = %d",
		forever, forever, 8*3600)
	if f.maria {
		set += ", max_statement_time = 0, idle_transaction_timeout = 0, idle_readonly_transaction_timeout = 0, idle_write_transaction_timeout = 0"
	} else {
		set += ", max_execution_time = 0"
	}
	start, conn, err := started(ctx, l, "SELECT CONNECTION_ID(), "+unix, set, "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED", "SET SESSION TRANSACTION READ WRITE")
	if err != nil {
		return sqlkit.Identity{}, err
	}
	return sqlkit.Identity{Conn: conn, Since: fmt.Sprint(start)}, nil
}

// started runs a statement that answers a number and the time, after others, and tells
// with the number when the server was started, to the second. It asks again where the
// server took so long between the time and its age that they do not go together.
func started(ctx context.Context, l sqlkit.Link, ask string, before ...string) (start, n int64, err error) {
	for range 3 {
		a, err := l.Run(ctx, append(before, "SELECT "+unix, "SHOW GLOBAL STATUS LIKE 'Uptime'", ask)...)
		if err != nil {
			return 0, 0, err
		}
		row := a.Last()
		if row.Int(1)-a.First(len(a)-3).Int(0) <= 1 {
			return row.Int(1) - a.First(len(a)-2).Int(1), row.Int(0), nil
		}
		before = nil
	}
	return 0, 0, driver.Errorf(driver.Unavailable, "mysqlstore: the server takes seconds to tell its age")
}

// briefly is a script that runs a statement and has it wait for what others have
// locked no longer than a moment, or on MySQL, which knows no less, a second; then the
// other statements. If the answer is an error, back is what makes the session as it was.
func (r sessions) briefly(statement string, others ...string) (script, back []string) {
	if r.s.facts().maria {
		return append([]string{"SET STATEMENT max_statement_time = 0.2 FOR " + statement}, others...), nil
	}
	const set = "SET SESSION innodb_lock_wait_timeout = %d, lock_wait_timeout = %[1]d"
	back = []string{fmt.Sprintf(set, forever)}
	return append(append([]string{fmt.Sprintf(set, 1), statement}, others...), back...), back
}

// erase is a script that writes down that the session holds nothing, and answers with a
// yes unless somebody is about to kill it for what it held: see Evict.
func (r sessions) erase() (script, back []string) {
	return r.briefly("UPDATE holdfast_session SET token = 0 WHERE conn = CONNECTION_ID() AND taken = 0", "SELECT ROW_COUNT()")
}

// locked tells whether a statement was run briefly and would have had to wait longer.
func locked(err error) bool {
	my, ok := errors.AsType[*mysql.MySQLError](err)
	return ok && (my.Number == errLockWait || my.Number == errStatementTime)
}

// timeout is the statement that sets the session's timer, where it is not so yet.
func timeout(s *sqlkit.Session, a *sqlkit.Ask) []string {
	if s.TTL == a.TTL {
		return nil
	}
	return []string{fmt.Sprintf("SET SESSION wait_timeout = %d", int64(a.TTL/time.Second))}
}

// comment is a label for a statement that may wait.
func comment(a *sqlkit.Ask) string { return "/*" + a.Label.Encode(labelRoom) + "*/ " }

// A session that may hold something which is not written down yet has one more lock of
// GET_LOCK, by which those who look know that they should look again, and that what
// is written down is of an earlier grant. It is taken before the lock itself, and kept
// between locks that follow each other closely.
func untoldLock(s *sqlkit.Session) string {
	return "'hf:untold:" + strconv.FormatInt(s.ID.Conn, 10) + "'"
}

// markUntold is an expression that takes it, unless it is there.
func markUntold(s *sqlkit.Session) string {
	if s.Untold {
		return "1"
	}
	return "GET_LOCK(" + untoldLock(s) + ", 0)"
}

// Rest gives it back.
func (r sessions) Rest(ctx context.Context, s *sqlkit.Session) error {
	_, err := s.Run(ctx, "DO RELEASE_LOCK("+untoldLock(s)+")")
	s.Untold = s.Untold && err != nil
	return err
}

// note writes down what the session holds.
func note(a *sqlkit.Ask, lockname string) string {
	return fmt.Sprintf("INSERT INTO holdfast_session (conn, name, lockname, token, slot, taken, label) VALUES (CONNECTION_ID(), %s, %s, %d, %d, 0, '%s')"+
		" ON DUPLICATE KEY UPDATE name = VALUES(name), lockname = VALUES(lockname), token = VALUES(token), slot = VALUES(slot), taken = 0, label = VALUES(label)",
		lit(a.Key), lit([]byte(lockname)), a.Token, a.Slot, a.Label.Encode(labelRoom))
}

// ping is any statement: the session is what holds. The first one writes down who
// does.
func (r sessions) ping(ctx context.Context, s *sqlkit.Session, a *sqlkit.Ask, lockname string) (bool, error) {
	const ask = "SELECT CONNECTION_ID()"
	var answers sqlkit.Answers
	var err error
	if a.Told {
		answers, err = s.Run(ctx, ask)
	} else {
		told := "DO RELEASE_LOCK(" + untoldLock(s) + ")"
		script, back := r.briefly(note(a, lockname))
		answers, err = s.Run(ctx, append(script, told, ask)...)
		if locked(err) {
			// As by a backup: the lock holds, and says who has it at the next ping.
			answers, err = s.Run(ctx, append(back, ask)...)
			return err == nil && answers.Last().Int(0) == s.ID.Conn, err
		}
		if _, answered := errors.AsType[*mysql.MySQLError](err); answered {
			// The table is not there, or full, or not for this user: the lock holds
			// without it, and cannot be seen.
			answers, err = s.Run(ctx, append(back, told, ask)...)
		}
	}
	if err != nil {
		return false, err
	}
	a.Told, s.Untold = true, false
	return answers.Last().Int(0) == s.ID.Conn, nil
}

// untold are the sessions that may have yet to write something down. One whose lock
// has not been answered has nothing to write. The number of a session's last statement
// is part of who it is: when that is another, what it held before is given back or
// written down. One that is writing just now is asked again.
func (r sessions) untold(ctx context.Context, side sqlkit.Link) ([]sqlkit.Identity, error) {
	for tries := 0; ; tries++ {
		a, err := side.Run(ctx, "SELECT id, query, info LIKE 'INSERT INTO holdfast_session%' OR info LIKE 'SET STATEMENT % FOR INSERT INTO holdfast_session%' FROM "+r.processes()+" p WHERE IS_USED_LOCK(CONCAT(_utf8mb4'hf:untold:', id)) = id"+
			" AND COALESCE(state, '') <> 'User lock' AND COALESCE(info, '') NOT LIKE 'SELECT /*hf1.%'")
		if err != nil {
			return nil, err
		}
		var ids []sqlkit.Identity
		writing := false
		for _, row := range a[len(a)-1] {
			ids = append(ids, sqlkit.Identity{Conn: row.Int(0), Since: row.Text(1)})
			writing = writing || row.True(2)
		}
		if !writing || tries == 100 {
			return ids, nil
		}
		select {
		case <-time.After(time.Millisecond):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// Cause looks whether an operator has left word: the server says nothing when it
// ends a connection.
func (r sessions) Cause(s *sqlkit.Session, a *sqlkit.Ask, side *sqlkit.Pool) (driver.Cause, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 250*time.Millisecond)
	defer cancel()
	answers, err := side.Run(ctx, fmt.Sprintf("SELECT taken FROM holdfast_session WHERE conn = %d AND token = %d", s.ID.Conn, a.Token))
	if err == nil && answers.Last().True(0) {
		return driver.Taken, nil
	}
	return driver.SessionEnded, nil
}

// Ended: an error of MySQL's never says that.
func (sessions) Ended(err error) bool {
	my, ok := errors.AsType[*mysql.MySQLError](err)
	return ok && my.Number == errKilled
}

// Cancel ends the statement that a session runs.
func (r sessions) Cancel(ctx context.Context, side sqlkit.Link, id sqlkit.Identity) error {
	gone, err := r.gone(ctx, side, id)
	if err != nil || gone {
		return err
	}
	_, err = side.Run(ctx, fmt.Sprintf("KILL QUERY %d", id.Conn))
	return unlessGone(err)
}

// End ends a session and tells whether it is gone.
func (r sessions) End(ctx context.Context, side sqlkit.Link, id sqlkit.Identity) (bool, error) {
	gone, err := r.gone(ctx, side, id)
	if err != nil || gone {
		return gone, err
	}
	_, err = side.Run(ctx, fmt.Sprintf("KILL %d", id.Conn))
	return false, unlessGone(err)
}

// errNoThread: KILL of a session that is gone.
const errNoThread = 1094

func unlessGone(err error) error {
	if my, ok := errors.AsType[*mysql.MySQLError](err); ok && my.Number == errNoThread {
		return nil
	}
	return err
}

// gone looks into the server's list. Numbers begin anew when the server does, and
// another server has others: the second of its start tells, give or take one. A server
// that takes over may have started before the one that is gone.
func (r sessions) gone(ctx context.Context, side sqlkit.Link, id sqlkit.Identity) (bool, error) {
	start, there, err := started(ctx, side, fmt.Sprintf("SELECT COUNT(*), %s FROM information_schema.processlist WHERE id = %d", unix, id.Conn))
	if err != nil {
		return false, err
	}
	began, _ := strconv.ParseInt(id.Since, 10, 64)
	other := start < began-2 || start > began+2
	return other || there == 0, nil
}

// unix is the time in seconds, whatever the session's time zone.
const unix = "TIMESTAMPDIFF(SECOND, '1970-01-01', UTC_TIMESTAMP())"

// Evict leaves word for the holder and ends its session, if it still has the same
// grant. A holder that lets go meanwhile has erased what it held before, so that no word
// can be left, or finds the word and does not use the session again.
func (r sessions) Evict(ctx context.Context, side sqlkit.Link, seen sqlkit.Sight) error {
	a, err := side.Run(ctx, fmt.Sprintf("UPDATE holdfast_session SET taken = 1 WHERE conn = %d AND token = %d AND name = %s", seen.Conn, seen.Token, lit(seen.Key)),
		fmt.Sprintf("SELECT COUNT(*) FROM holdfast_session WHERE conn = %d AND token = %d AND taken = 1", seen.Conn, seen.Token))
	if err != nil || !a.Last().True(0) {
		return err
	}
	_, err = side.Run(ctx, fmt.Sprintf("KILL %d", seen.Conn))
	return unlessGone(err)
}

// processes is the server's list of sessions with how long, in microseconds, each
// has been in its state, and the number of its last statement, which MySQL does not
// tell.
func (r sessions) processes() string {
	if r.s.facts().maria {
		return "(SELECT id, host, command, state, info, query_id AS query, CAST(time_ms * 1000 AS SIGNED) AS micros FROM information_schema.processlist)"
	}
	return "(SELECT id, host, command, state, info, '' AS query, time * 1000000 AS micros FROM information_schema.processlist)"
}

// holders are the sessions that say that they hold, and are there.
func (r sessions) holders(ctx context.Context, side sqlkit.Link, where string) ([]sqlkit.Sight, error) {
	a, err := side.Run(ctx, "SELECT s.conn, s.token, s.slot, s.label, p.micros, p.command FROM holdfast_session s JOIN "+r.processes()+" p ON p.id = s.conn WHERE s.token > 0 AND "+where)
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
		s.Conn = row.Int(0)
		if row.Text(5) == "Sleep" {
			s.Left -= time.Duration(row.Int(4)) * time.Microsecond
		}
		sights = append(sights, s)
	}
	return sights, nil
}

// waiters are the sessions whose statements wait, longest first.
func (r sessions) waiters(ctx context.Context, side sqlkit.Link, match func(*sqlkit.Label) bool) ([]sqlkit.Sight, error) {
	a, err := side.Run(ctx, "SELECT id, micros, HEX(LEFT(info, 2048)), "+clock+" FROM "+r.processes()+" p WHERE command = 'Query' AND id <> CONNECTION_ID() AND info LIKE 'SELECT /*hf1.%' AND micros > 2000 ORDER BY micros DESC")
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
