package mysqlstore

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/sqlkit"
)

// named is the recipe of GET_LOCK.
type named struct{ sessions }

// The longest names of GET_LOCK. MySQL counts characters and folds case; MariaDB counts
// bytes and does not fold.
const (
	mostChars = 64
	mostBytes = 192
)

func (r named) lockname(key []byte) string {
	if r.s.cfg.exact {
		_, name, _ := bytes.Cut(key, []byte{0})
		return string(name)
	}
	return hashedName(key)
}

// lockOf returns the lock of a request as an argument of GET_LOCK.
func (r named) lockOf(a *sqlkit.LockRequest) string {
	if a.Lockname == "" {
		a.Lockname = r.lockname(a.Key)
	}
	return asText(a.Lockname)
}

// Check refuses what GET_LOCK does not support.
func (r named) Check(q *driver.Request) (time.Duration, error) {
	if q.Limit != driver.Exclusive {
		return 0, driver.Errorf(driver.CodeUnsupported, "limit %d: GET_LOCK is exclusive; recipe=pessimistic and recipe=optimistic have shared locks and semaphores", q.Limit)
	}
	if r.s.cfg.exact {
		if err := r.checkExact(q.Name); err != nil {
			return 0, err
		}
	}
	return sqlkit.RoundTTL(q.TTL, unit)
}

func (r named) checkExact(name string) error {
	f, _ := r.s.server.Facts()
	switch {
	case !f.maria: // or unknown: the stricter limits are safe
		if n := utf8.RuneCountInString(name); n > mostChars {
			return driver.Errorf(driver.CodeInvalid, "name %q has %d characters: GET_LOCK of MySQL takes %d (without names=exact any name will do)", name, n, mostChars)
		}
		if i := strings.IndexFunc(name, unicode.IsUpper); i >= 0 {
			return driver.Errorf(driver.CodeInvalid, "name %q has upper case, which GET_LOCK of MySQL treats as lower case (without names=exact any name will do)", name)
		}
	case len(name) > mostBytes:
		return driver.Errorf(driver.CodeInvalid, "name %q has %d bytes: GET_LOCK of MariaDB takes %d (without names=exact any name will do)", name, len(name), mostBytes)
	}
	return nil
}

// The columns of the first answer to the script of Lock.
const (
	namedTaken = iota
	namedTime
	namedConn
	namedReadOnly
	namedPause // this and the next column only if the statement reads the clock twice
	namedLater
)

// Lock takes the lock and then reads the clock, in one statement.
func (r named) Lock(ctx context.Context, s *sqlkit.Session, a *sqlkit.LockRequest) (sqlkit.Got, error) {
	answers, err := run(ctx, s, a.TTL, r.script(s, a)...)
	if err != nil {
		return sqlkit.Got{}, err
	}
	row := answers.First(0)
	switch {
	case row.Int(namedConn) != s.ID.Conn:
		return sqlkit.Got{}, errMoved
	case row.Null(namedTaken):
		return sqlkit.Got{}, driver.Errorf(driver.CodeUnknown, "GET_LOCK was interrupted")
	case isReadOnly(row.Text(namedReadOnly)):
		return sqlkit.Got{}, sqlkit.ErrReadOnly
	case !row.True(namedTaken):
		return sqlkit.Got{}, sqlkit.ErrBusy
	}
	got := a.Clocked(row.Int(namedTime), row.Int(namedLater))
	if r.at(s).sysdateNow {
		got = a.Clocked(answers.First(1).Int(0), answers.Last().Int(0))
	}
	return sqlkit.DurableToken(ctx, a, got, func(ctx context.Context) (sqlkit.Got, error) {
		answers, err := s.Run(ctx, raiseHighWater(a)...)
		return countedGrant(a, got, answers, err)
	})
}

// script returns the statements of Lock. If separate statements read the clock, their answers
// follow the first one.
func (r named) script(s *sqlkit.Session, a *sqlkit.LockRequest) []string {
	lock := r.lockOf(a)
	// The waiter that has the gate may not have reached the queue of the lock yet. A request
	// that does not wait would overtake it.
	label, take := "", fmt.Sprintf("IF(IS_FREE_LOCK(%s), GET_LOCK(%s, 0), 0)", gate(a.Key), lock)
	if a.Wait {
		// If the wait for the gate is interrupted, the statement requests no lock, and the
		// engine closes the session.
		label, take = comment(a), fmt.Sprintf("IF(%s, GET_LOCK(%s, %d) + 0 * RELEASE_LOCK(%s), NULL)", enter(a.Key), lock, forever, gate(a.Key))
	}
	query := "SELECT " + label + take + ", " + sysdate + ", CONNECTION_ID(), @@global.read_only"
	twice := ""
	if a.ClockTokens() > 1 {
		twice = fmt.Sprintf("IF(COALESCE(IS_USED_LOCK(%s), 0) = CONNECTION_ID(), %s, 0)", lock, pause(a))
	}
	if r.at(s).sysdateNow {
		return append([]string{query}, clocks(a, twice)...)
	}
	if twice != "" {
		query += ", " + twice + ", " + sysdate
	}
	return []string{query}
}

// Pass keeps the lock if no session waits at its gate, and otherwise frees it, in one
// statement.
func (r named) Pass(ctx context.Context, s *sqlkit.Session, old, next *sqlkit.LockRequest) (sqlkit.Got, sqlkit.PassOutcome, error) {
	lock := r.lockOf(old)
	answers, err := s.Run(ctx, fmt.Sprintf("SELECT CASE WHEN COALESCE(IS_USED_LOCK(%s), 0) <> CONNECTION_ID() THEN -1 WHEN IS_FREE_LOCK(%s) THEN %s ELSE RELEASE_LOCK(%[1]s) - 1 END, @@global.read_only",
		lock, gate(old.Key), clock))
	if err != nil {
		return sqlkit.Got{}, 0, err
	}
	row := answers.Last()
	switch now := row.Int(0); {
	case now < 0 || row.Null(0):
		return sqlkit.Got{}, sqlkit.PassNotHeld, nil
	case now == 0:
		return sqlkit.Got{}, sqlkit.PassReleased, nil
	case isReadOnly(row.Text(1)):
		return sqlkit.Got{}, sqlkit.PassRefused, nil
	default:
		return next.Passed(old, now)
	}
}

// Ping reads from the server which session has the lock.
func (r named) Ping(ctx context.Context, s *sqlkit.Session, a *sqlkit.LockRequest) (bool, error) {
	lock := r.lockOf(a)
	return r.prove(ctx, s, a, r.lockname(a.Key), "SELECT IS_USED_LOCK("+lock+") = CONNECTION_ID()")
}

// Unlock reports what RELEASE_LOCK returns: false if the session does not have the lock.
func (r named) Unlock(ctx context.Context, s *sqlkit.Session, a *sqlkit.LockRequest) (bool, error) {
	answers, err := s.Run(ctx, "SELECT RELEASE_LOCK("+r.lockOf(a)+"), "+unmark(s, a))
	if err != nil {
		return false, err
	}
	if a.Record {
		r.s.record.end(a.ID)
	}
	return answers.First(0).True(0), nil
}

// Survey returns the holders that are recorded, and the waiters. For a single name without a
// recorded holder it also returns the session that has the lock.
func (r named) Survey(ctx context.Context, side sqlkit.Link, key []byte, all bool) (
	sights []sqlkit.Sight, missing, err error,
) {
	recipe := "s.lockname = " + lit([]byte(r.lockname(key)))
	if all {
		recipe = "s.lockname >= CHAR(1)"
	}
	sights, missing, err = r.survey(ctx, side, key, all, recipe, "state = 'User lock'")
	if err != nil {
		return nil, nil, err
	}
	if all {
		return sights, missing, nil
	}
	if !slices.ContainsFunc(sights, func(s sqlkit.Sight) bool { return s.Granted }) {
		holders, err := r.elsewhere(ctx, side, key, recipe)
		if err != nil {
			return nil, nil, err
		}
		sights = append(sights, holders...)
	}
	return sights, nil, nil
}

// elsewhere returns the holder that the table of this database does not record: a session of another database, whose
// record it reads if the user may, or of another program.
func (r named) elsewhere(ctx context.Context, side sqlkit.Link, key []byte, recipe string) ([]sqlkit.Sight, error) {
	a, err := side.Run(ctx, "SELECT used.id, p.host, p.db, p.db = DATABASE() FROM (SELECT IS_USED_LOCK("+asText(r.lockname(key))+") AS id) used "+
		"LEFT JOIN information_schema.processlist p ON p.id = used.id")
	if err != nil {
		return nil, err
	}
	row := a.Last()
	conn, host, db := row.Int(0), row.Text(1), row.Text(2)
	if conn == 0 {
		return nil, nil
	}
	s := sqlkit.Sight{Granted: true, Slot: driver.NoSlot, Note: fmt.Sprintf("not of holdfast, or just begun: connection %d", conn)}
	if host != "" {
		s.Note += " from " + host
	}
	if db != "" && !row.True(3) {
		table := "`" + strings.ReplaceAll(db, "`", "``") + "`.holdfast_session"
		if found, err := r.holders(ctx, side, table, recipe+" AND s.name = "+lit(key)); err == nil && len(found) > 0 {
			return found, nil
		}
		s.Note += ", database " + db
	}
	s.Key, s.Limit, s.Conn = key, driver.Exclusive, conn
	return []sqlkit.Sight{s}, nil
}
