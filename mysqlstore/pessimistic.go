package mysqlstore

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/sqlkit"
)

// pessimistic is the recipe of a row lock in an open transaction; see [sqlkit.RowLocker].
type pessimistic struct {
	sessions
	*sqlkit.NameRows
}

func newPessimistic(s *store) pessimistic {
	name := func(name []byte) string { return asText(string(name)) }
	return pessimistic{sessions{s: s}, &sqlkit.NameRows{Table: s.cfg.Table, Column: s.cfg.Column, Key: lit, Name: name, In: dialect.In}}
}

// Check refuses limits for which there are no rows.
func (r pessimistic) Check(q *driver.Request) (time.Duration, error) {
	return r.s.cfg.CheckRow(q, unit)
}

// rowIf returns the condition that finds a name's row if its column permits fits. The subquery reads
// permits without a lock, so that a statement locks no row that does not fit.
func (r pessimistic) rowIf(key []byte, fits string) string {
	return fmt.Sprintf("holdfast_name WHERE name = (SELECT name FROM %s AND permits %s)", r.Row(key), fits)
}

// Lock locks the row.
func (r pessimistic) Lock(ctx context.Context, s *sqlkit.Session, a *sqlkit.LockRequest) (sqlkit.Got, error) {
	return sqlkit.LockRow(ctx, r, s, a)
}

// The columns of the row that selectRow returns.
const (
	rowPermits = iota
	rowTime
	rowConn
	rowReadOnly
	rowPause // this and the next column only if the statement reads the clock twice
	rowLater
)

// TryRow runs one transaction, which stays open if it has the lock.
func (r pessimistic) TryRow(ctx context.Context, s *sqlkit.Session, a *sqlkit.LockRequest, wait bool) (sqlkit.Got, error) {
	answers, err := run(ctx, s, a.TTL, r.script(s, a, wait)...)
	if err != nil {
		return sqlkit.Got{}, err
	}
	if wait { // the wait is over
		var cancel func()
		ctx, cancel = context.WithTimeout(ctx, sqlkit.AnswerWithin)
		defer cancel()
		answers = answers[1:] // without that of the gate
	}
	var before sqlkit.Row
	if r.FitsKind(a, wait) {
		before, answers = answers.First(0), answers[1:]
	}
	row := answers.First(0)
	if row == nil {
		return sqlkit.Got{}, r.Missed(ctx, s, a, wait, before)
	}
	switch {
	case row.Int(rowConn) != s.ID.Conn:
		return sqlkit.Got{}, errMoved
	case isReadOnly(row.Text(rowReadOnly)):
		return sqlkit.Got{}, sqlkit.ErrReadOnly
	case a.Limit == driver.Exclusive && r.at(s).sysdateNow:
		return r.grant(ctx, s, a, a.Clocked(answers.First(1).Int(0), answers.Last().Int(0)))
	case a.Limit == driver.Exclusive:
		return r.grant(ctx, s, a, a.Clocked(row.Int(rowTime), row.Int(rowLater)))
	}
	kind := int64(sqlkit.Kind(a.Limit))
	sameKind := row.Int(rowPermits) == kind
	if sameKind {
		got := sqlkit.Got{Token: uint64(answers.Last().Int(1)), Slot: driver.NoSlot}
		if kind == 0 {
			return r.grant(ctx, s, a, got)
		}
		if slot := answers.First(1); slot != nil {
			got.Slot = int(slot.Int(0))
			return r.grant(ctx, s, a, got)
		}
	}
	if _, err := s.Run(ctx, "ROLLBACK"); err != nil {
		return sqlkit.Got{}, err
	}
	if !sameKind {
		return sqlkit.Got{}, sqlkit.ErrKind
	}
	return sqlkit.Got{}, sqlkit.ErrBusy // no slot is free
}

// InsertRow inserts the row. If the row exists, the statement shares it for a moment. ON DUPLICATE KEY UPDATE would
// wait until no client shares it, and keep others from sharing it meanwhile.
func (r pessimistic) InsertRow(ctx context.Context, s *sqlkit.Session, a *sqlkit.LockRequest) error {
	switch err := r.briefly(ctx, s, r.Insert(a.Key)); {
	case locked(err):
		return sqlkit.ErrBusy // another client's transaction has inserted the row and is still open
	case isError(err, errTooLong, errBadText):
		return driver.Errorf(driver.CodeInvalid, "name %q: the column does not take it: %w", a.Name, err)
	case !isError(err, errDuplicate):
		return err
	}
	return nil
}

// briefly runs a statement with a short lock timeout: 0.2 s on MariaDB, and 1 s, the minimum, on MySQL.
func (r pessimistic) briefly(ctx context.Context, s *sqlkit.Session, statement string) error {
	if r.at(s).maria {
		_, err := s.Run(ctx, brieflyMaria+statement)
		return err
	}
	const set = "SET SESSION innodb_lock_wait_timeout = %d, lock_wait_timeout = %[1]d"
	restore := fmt.Sprintf(set, forever)
	_, err := s.Run(ctx, fmt.Sprintf(set, 1), statement, restore)
	if locked(err) || isError(err, errDuplicate) { // after other errors the engine closes the session
		if _, err := s.Run(ctx, restore); err != nil {
			return err
		}
	}
	return err
}

// brieflyMaria precedes a statement. MySQL treats it as a comment.
const brieflyMaria = "/*M! SET STATEMENT max_statement_time = 0.2 FOR */ "

// locked reports whether a statement exceeded the timeout of briefly.
func locked(err error) bool { return isError(err, errLockWait, errStatementTime) }

// grant returns got. If tokens are durable, it first replaces the tokens of got.
func (r pessimistic) grant(ctx context.Context, s *sqlkit.Session, a *sqlkit.LockRequest, got sqlkit.Got) (sqlkit.Got, error) {
	return sqlkit.DurableToken(ctx, a, got, func(ctx context.Context) (sqlkit.Got, error) {
		// The commit uses another connection, since this one's transaction is open.
		answers, err := r.s.commit(ctx, raiseHighWater(a)...)
		return countedGrant(a, got, answers, err)
	})
}

// A savepoint that is set when the row is locked ends with the transaction. A rollback to it
// proves that the transaction and its lock still exist, and keeps every lock that is older
// than the savepoint. A session survives the end of its transaction if the server chooses
// the transaction as the victim of a deadlock, or ends it by an implicit commit.
const (
	setSavepoint   = "SAVEPOINT hf_lock"
	proveSavepoint = "ROLLBACK TO SAVEPOINT hf_lock" // mutation: mysql-proof
	// errNoSavepoint is the error if the savepoint is gone.
	errNoSavepoint = 1305
)

func noSavepoint(err error) bool { return isError(err, errNoSavepoint) }

// Ping proves that the transaction still exists.
func (r pessimistic) Ping(ctx context.Context, s *sqlkit.Session, a *sqlkit.LockRequest) (bool, error) {
	held, err := r.prove(ctx, s, a, r.Own(), proveSavepoint, fmt.Sprintf("SELECT CONNECTION_ID() = %d", s.ID.Conn))
	if noSavepoint(err) {
		return false, nil
	}
	return held, err
}

// Pass proves that the transaction still exists, and keeps it if no session waits at the
// gate. Otherwise, on MariaDB, it ends the transaction.
func (r pessimistic) Pass(ctx context.Context, s *sqlkit.Session, old, next *sqlkit.LockRequest) (sqlkit.Got, sqlkit.PassOutcome, error) {
	// The proof follows the reading of the clock.
	script := []string{fmt.Sprintf("SELECT @hf_now := IF(IS_FREE_LOCK(%s), %s, 0), CONNECTION_ID(), @@global.read_only", gate(r.rowOf(old.Key)), clock), proveSavepoint}
	ifOthersWait := sqlkit.PassRefused
	if r.at(s).maria {
		// MySQL has no such statement, and needs another round trip to release.
		script, ifOthersWait = append(script, "EXECUTE IMMEDIATE IF(@hf_now > 0, 'DO 0', 'ROLLBACK')"), sqlkit.PassReleased
	}
	answers, err := s.Run(ctx, script...)
	if noSavepoint(err) {
		return sqlkit.Got{}, sqlkit.PassNotHeld, nil
	}
	if err != nil {
		return sqlkit.Got{}, 0, err
	}
	row := answers.Last()
	switch {
	case row.Int(1) != s.ID.Conn:
		return sqlkit.Got{}, 0, errMoved
	case row.Int(0) == 0:
		return sqlkit.Got{}, ifOthersWait, nil
	case isReadOnly(row.Text(2)):
		return sqlkit.Got{}, sqlkit.PassRefused, nil
	}
	return next.Passed(old, row.Int(0))
}

// rowOf returns a key for the gate of a row. A named lock reaches the whole server, and a row one schema. So a waiter for
// the row of the same name in another schema has another gate, and so has one of recipe Named.
func (r pessimistic) rowOf(key []byte) []byte {
	r.s.mu.Lock()
	defer r.s.mu.Unlock()
	return slices.Concat([]byte("row\x00"+r.s.schema+"\x00"+r.s.cfg.Table+"\x00"), key)
}

// script returns the statements of TryRow. If the request waits, the first answer is that of
// the gate. Then comes permits, if FitsKind. The next answer is that of selectRow. Then come the
// slot of a semaphore, and the time again, or both times, if separate statements read the clock.
func (r pessimistic) script(s *sqlkit.Session, a *sqlkit.LockRequest, wait bool) []string {
	var script []string
	if wait {
		script = append(script, "SELECT "+comment(a)+enter(r.rowOf(a.Key)))
	}
	if r.FitsKind(a, wait) {
		script = append(script, "SELECT permits FROM "+r.Row(a.Key))
	}
	script = append(script, "START TRANSACTION", r.selectRow(s, a, wait))
	if a.Limit == driver.Exclusive {
		script = append(script, setSavepoint)
		if r.at(s).sysdateNow {
			script = append(append(script, clocks(a, pause(a))...), proveSavepoint)
		}
	} else {
		if size := sqlkit.Kind(a.Limit); size > 0 {
			script = append(script, fmt.Sprintf("SELECT slot FROM holdfast_slot WHERE name = %s AND slot < %d ORDER BY slot LIMIT 1 FOR UPDATE SKIP LOCKED", lit(a.Key), size))
		}
		lock := clockLock(a.Key)
		script = append(script, setSavepoint, fmt.Sprintf("SELECT GET_LOCK(%s, 60), %s, RELEASE_LOCK(%s)", lock, sysdate, lock))
	}
	if wait {
		script = append(script, "DO RELEASE_LOCK("+gate(r.rowOf(a.Key))+")")
	}
	return script
}

// selectRow returns the statement that locks the row.
func (r pessimistic) selectRow(s *sqlkit.Session, a *sqlkit.LockRequest, wait bool) string {
	mode := "FOR UPDATE"
	if a.Limit != driver.Exclusive {
		if mode = "LOCK IN SHARE MODE"; !r.at(s).maria {
			mode = "FOR SHARE"
		}
	}
	if !wait {
		mode += " SKIP LOCKED"
	}
	row := r.Row(a.Key)
	if r.FitsKind(a, wait) {
		row = r.rowIf(a.Key, fmt.Sprint("= ", sqlkit.Kind(a.Limit)))
	}
	label, later := "", ""
	if a.Wait {
		label = comment(a)
	}
	if a.ClockTokens() > 1 && !r.at(s).sysdateNow {
		later = ", " + pause(a) + ", " + sysdate
	}
	return fmt.Sprintf("SELECT %s%s, %s, CONNECTION_ID(), @@global.read_only%s FROM %s %s",
		label, r.Permits(), sysdate, later, row, mode)
}

// SwitchKind sets permits to the kind of the request, if they differ and the row is not locked.
func (r pessimistic) SwitchKind(ctx context.Context, s *sqlkit.Session, a *sqlkit.LockRequest) error {
	k := sqlkit.Kind(a.Limit)
	script := []string{"SET @hf_l = -1", "START TRANSACTION",
		fmt.Sprintf("SELECT permits INTO @hf_l FROM %s FOR UPDATE SKIP LOCKED", r.rowIf(a.Key, fmt.Sprint("<> ", k))),
		fmt.Sprintf("UPDATE holdfast_name SET permits = %d WHERE name = %s AND @hf_l >= 0", k, lit(a.Key)),
	}
	if k > 0 {
		script = append(script, fmt.Sprintf("INSERT INTO holdfast_slot (name, slot) SELECT %s, n FROM (%s) d WHERE n < %d AND @hf_l >= 0 ON DUPLICATE KEY UPDATE slot = holdfast_slot.slot",
			lit(a.Key), numbers, k))
	}
	answers, err := s.Run(ctx, append(script, "COMMIT", "SELECT @hf_l")...)
	if err != nil {
		return err
	}
	if answers.Last().Int(0) < 0 {
		return sqlkit.ErrBusy
	}
	return nil
}

// numbers is a query for the numbers 0 to 4095.
var numbers = func() string {
	digit := "(SELECT 0 n"
	for i := 1; i < 16; i++ {
		digit += fmt.Sprintf(" UNION ALL SELECT %d", i)
	}
	digit += ")"
	return "SELECT a.n + 16 * b.n + 256 * c.n AS n FROM " + digit + " a, " + digit + " b, " + digit + " c"
}()

// Unlock proves that the transaction still exists, and rolls it back: the transaction has
// written nothing.
func (r pessimistic) Unlock(ctx context.Context, s *sqlkit.Session, a *sqlkit.LockRequest) (bool, error) {
	answers, err := s.Run(ctx, proveSavepoint, "ROLLBACK", "SELECT CONNECTION_ID(), "+unmark(s, a))
	if noSavepoint(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if a.Record {
		r.s.record.end(a.ID)
	}
	return answers.Last().Int(0) == s.ID.Conn, nil
}

// Locked locks the row for a moment, if it is free. A row that exists and that the server skips is locked.
func (r pessimistic) Locked(ctx context.Context, side sqlkit.Link, key []byte) (bool, error) {
	row := "SELECT 1 FROM " + r.Row(key)
	answers, err := side.Run(ctx, "START TRANSACTION", row+" FOR UPDATE SKIP LOCKED", "ROLLBACK", row)
	return answers.First(0) == nil && answers.Last() != nil, err
}

// Survey returns the holders that are recorded, and the waiters. No server shows row locks to every user.
func (r pessimistic) Survey(ctx context.Context, side sqlkit.Link, key []byte, all bool) (
	sights []sqlkit.Sight, missing, err error,
) {
	return r.survey(ctx, side, key, all, "s.lockname = "+lit([]byte(r.Own())), "micros > 2000")
}
