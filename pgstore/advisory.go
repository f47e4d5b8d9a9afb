package pgstore

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/sqlkit"
)

// advisory is the recipe of session-level advisory locks.
type advisory struct{ sessions }

// hashed returns the 64-bit key of a name: the first bytes of the SHA-256 of namespace, NUL
// and name. Two names with the same key exclude each other.
func hashed(salt string, key []byte) mark {
	h := sha256.New()
	h.Write([]byte(salt))
	h.Write(key)
	k := binary.BigEndian.Uint64(h.Sum(nil))
	return mark{uint32(k >> 32), uint32(k), 1}
}

// parseGivenKey parses a key that a user of advisory locks has chosen.
func parseGivenKey(name string) (mark, error) {
	a, b, two := strings.Cut(name, ",")
	if two {
		x, err1 := strconv.ParseInt(a, 10, 32)
		y, err2 := strconv.ParseInt(b, 10, 32)
		if err1 == nil && err2 == nil && name == fmt.Sprintf("%d,%d", x, y) {
			return mark{uint32(x), uint32(y), 2}, nil
		}
	} else if k, err := strconv.ParseInt(a, 10, 64); err == nil && strconv.FormatInt(k, 10) == name {
		return mark{uint32(uint64(k) >> 32), uint32(k), 1}, nil
	}
	return mark{}, driver.Errorf(driver.CodeInvalid, "name %q: with keys=given a name is a signed 64-bit number in decimal, or two of 32 bits with a comma between, as in 42 or 7,1", name)
}

// mark returns the advisory lock of a name.
func (r advisory) mark(key []byte) (mark, error) {
	_, name, _ := bytes.Cut(key, []byte{0})
	if r.s.cfg.givenKeys {
		return parseGivenKey(string(name))
	}
	return hashed("", key), nil
}

// Check refuses limits that advisory locks do not support.
func (r advisory) Check(q *driver.Request) (time.Duration, error) {
	if q.Limit != driver.Exclusive && q.Limit != driver.Unlimited {
		return 0, driver.Errorf(driver.CodeUnsupported, "limit %d: advisory locks are exclusive or shared; recipe=pessimistic and recipe=optimistic have semaphores", q.Limit)
	}
	if r.s.cfg.givenKeys {
		if _, err := parseGivenKey(q.Name); err != nil {
			return 0, err
		}
	}
	return sqlkit.RoundTTL(q.TTL, unit)
}

// sharedSuffix returns the end of the name of a function for the lock of a request.
func sharedSuffix(a *sqlkit.LockRequest) string {
	if a.Limit == driver.Unlimited {
		return "_shared"
	}
	return ""
}

// Lock takes the lock and then reads the clock. A request that does not wait uses a statement
// that is parsed and planned once per session. A waiter's statement carries a label, which
// shows its owner.
func (r advisory) Lock(ctx context.Context, s *sqlkit.Session, a *sqlkit.LockRequest) (sqlkit.Got, error) {
	m, err := r.mark(a.Key)
	if err != nil {
		return sqlkit.Got{}, err
	}
	limitTokens(a)
	if err := r.setTimers(ctx, s, a, a.TTL); err != nil {
		return sqlkit.Got{}, err
	}
	var row sqlkit.Row
	if a.Wait {
		row, err = r.await(ctx, s, a, m)
	} else {
		row, err = r.try(ctx, s, a, m)
	}
	switch {
	case err != nil:
		return sqlkit.Got{}, err
	case row.Int(1) != s.ID.Conn:
		return sqlkit.Got{}, errMoved
	case row.Null(0):
		return sqlkit.Got{}, sqlkit.ErrBusy
	}
	got := sqlkit.Got{Token: uint64(row.Int(0)), Tokens: int(row.Int(2)), Slot: driver.NoSlot}
	return sqlkit.DurableToken(ctx, a, got, func(ctx context.Context) (sqlkit.Got, error) {
		answers, err := s.Run(ctx, r.durableStatement(a))
		return durableGrant(a, got, answers, err)
	})
}

// await waits for the lock. A statement that waits again has the gate alone. So it is not overtaken by others that wait
// again, nor by the first statements of others, which share the gate. It takes the lock for its transaction, then leaves
// the gate, and takes the lock for the session.
func (r advisory) await(ctx context.Context, s *sqlkit.Session, a *sqlkit.LockRequest, m mark) (sqlkit.Row, error) {
	gate, shared := waitMark(a.Key), sharedSuffix(a)
	enter := "SELECT " + r.comment(a) + "pg_catalog.pg_advisory_xact_lock_shared(" + gate.args() + ")"
	var script []string
	if a.Label.Waited > 0 {
		script = r.waitQuietly(a, gate, fmt.Sprintf("SELECT pg_catalog.pg_advisory_xact_lock%s(%s)", shared, m.args()))
		enter = "SELECT pg_catalog.pg_advisory_unlock_all() WHERE " + ifFlag("gate", "true")
	}
	answers, err := s.Run(ctx, append(script, fmt.Sprintf("WITH w AS MATERIALIZED (%s), l AS MATERIALIZED (SELECT pg_catalog.pg_advisory_lock%s(%s) FROM w), %s",
		enter, shared, m.args(), grantOf(r.clockFor(a), severalTokens(a))))...)
	switch {
	case waitedTooLong(err) && (shared != "" || a.Label.Waited == 0):
		// A statement that waits too long at the moment of the grant fails, and its session has the lock. A shared lock may
		// also have waited for its turn to read the clock.
		_, err = s.Run(ctx, "SELECT pg_catalog.pg_advisory_unlock_all()")
	case waitedTooLong(err):
		err = nil
	}
	if row := answers.Last(); err != nil || len(row) > 1 {
		return row, err
	}
	return nil, sqlkit.ErrWaitAgain
}

// waitMark returns the gate of a name, an advisory lock that a session has while it waits for the lock of the name.
// If no session has the gate, no session waits, and a holder can hand its lock off.
func waitMark(key []byte) mark { return hashed("wait\x00", key) }

// pass is the statement of Pass.
const pass = "SELECT CASE WHEN pg_catalog.pg_try_advisory_xact_lock($1::bigint) THEN " + clock + " WHEN pg_catalog.pg_advisory_unlock($2::bigint) THEN 0 ELSE -1 END, pg_catalog.pg_backend_pid(), CASE WHEN $3::boolean THEN " + resetName + " END"

// Pass keeps the lock if no session shares the lock of the waiters, and otherwise frees it,
// in one statement.
func (r advisory) Pass(ctx context.Context, s *sqlkit.Session, old, next *sqlkit.LockRequest) (sqlkit.Got, sqlkit.PassOutcome, error) {
	m, err := r.mark(old.Key)
	p, ok := s.Link.(*pgLink)
	if err != nil || !ok || m.sub != 1 {
		return sqlkit.Got{}, sqlkit.PassRefused, err
	}
	limitTokens(next)
	row, err := p.prepared(ctx, pass, waitMark(old.Key).args(), m.args(), strconv.FormatBool(old.Recorded))
	switch now := row.Int(0); {
	case err != nil:
		return sqlkit.Got{}, 0, err
	case row.Int(1) != s.ID.Conn:
		return sqlkit.Got{}, 0, errMoved
	case now < 0:
		return sqlkit.Got{}, sqlkit.PassNotHeld, nil
	case now == 0:
		return sqlkit.Got{}, sqlkit.PassReleased, nil
	default:
		return next.Passed(old, now)
	}
}

// grantOf returns the rest of a statement that takes the lock in a query l. The statement
// returns the token and the backend. If n, an expression, is not empty, the grant shall
// have n tokens, and the statement also returns how many it has.
func grantOf(token, n string) string {
	tokens := ""
	if n != "" {
		tokens = ", " + tokenCount("token", n)
	}
	return "t AS MATERIALIZED (SELECT " + token + " AS token FROM l) SELECT token, pg_catalog.pg_backend_pid()" + tokens + " FROM t"
}

// severalTokens returns how many tokens a request reserves, as an argument of grantOf. It is empty for one.
func severalTokens(a *sqlkit.LockRequest) string {
	if n := a.ClockTokens(); n > 1 {
		return strconv.Itoa(n)
	}
	return ""
}

// tryOne is the statement of a try for an exclusive lock that reserves one token. CASE evaluates the clock after its
// condition, and so with the lock. So tryOne needs no query l, which would cost the server as much as the lock itself.
const tryOne = "SELECT CASE WHEN pg_catalog.pg_try_advisory_lock($1::bigint) THEN " + clock + " END, pg_catalog.pg_backend_pid()"

// clockFor returns the expression for the token. Shared grants read the clock one after the
// other, so that no two have the same token.
func (r advisory) clockFor(a *sqlkit.LockRequest) string {
	if a.Limit == driver.Exclusive {
		return clock
	}
	return "CASE WHEN pg_catalog.pg_advisory_xact_lock(" + turnMark(a.Key).args() + ")::pg_catalog.text IS NOT NULL THEN " + clock + " END"
}

// turnMark returns the advisory lock that a session has while it reads the clock for a shared grant.
func turnMark(key []byte) mark { return hashed("token\x00", key) }

// try takes the lock if it is free.
func (r advisory) try(ctx context.Context, s *sqlkit.Session, a *sqlkit.LockRequest, m mark) (sqlkit.Row, error) {
	if p, ok := s.Link.(*pgLink); ok && a.Limit == driver.Exclusive && m.sub == 1 && a.ClockTokens() == 1 {
		return p.prepared(ctx, tryOne, m.args())
	}
	answers, err := s.Run(ctx, fmt.Sprintf("WITH l AS MATERIALIZED (SELECT pg_catalog.pg_try_advisory_lock%s(%s) AS ok), %s", sharedSuffix(a), m.args(),
		grantOf("CASE WHEN ok THEN "+r.clockFor(a)+" END", severalTokens(a))))
	return answers.Last(), err
}

// Ping records the holder.
func (r advisory) Ping(ctx context.Context, s *sqlkit.Session, a *sqlkit.LockRequest) (bool, error) {
	answers, err := s.Run(ctx, "SELECT "+r.comment(a)+"pg_catalog.pg_backend_pid(), "+setName(a, fmt.Sprint(a.Token), strconv.Itoa(a.Reserved)))
	if err != nil {
		return false, err
	}
	a.Recorded = true
	return answers.Last().Int(0) == s.ID.Conn, nil
}

// errMoved is the error of a connection that has another session than before.
var errMoved = fmt.Errorf("the connection has another backend than before: a pooler in transaction mode stands between")

// durableStatement returns a statement that raises the high-water mark of tokens. The mark is on
// disk before the client returns the grant. The statement returns the marks before and
// after. If the server repeats the update because another client has just changed the row,
// it evaluates the expression anew.
func (r sessions) durableStatement(a *sqlkit.LockRequest) string {
	return fmt.Sprintf("UPDATE %s SET token = GREATEST(pg_catalog.set_config('holdfast.mark', token::pg_catalog.text, true)::bigint + 1, %s) WHERE bucket = %d AND "+flushed+
		" RETURNING pg_catalog.current_setting('holdfast.mark'), token", r.s.in(sqlkit.FloorTable), clock, sqlkit.Bucket(a.Key))
}

// durableGrant returns the grant with the tokens in the answer of durableStatement.
func durableGrant(a *sqlkit.LockRequest, got sqlkit.Got, answers sqlkit.Answers, err error) (sqlkit.Got, error) {
	if err != nil {
		return got, err
	}
	if row := answers.Last(); row != nil {
		return a.Counted(got, row.Int(0), row.Int(1)), nil
	}
	return got, sqlkit.ErrSchema
}

// Unlock reports what pg_advisory_unlock returns: false if the session does not have the
// lock. It also removes the record of the session, so that a client that ends the session by
// that record does not end the next grant.
func (r advisory) Unlock(ctx context.Context, s *sqlkit.Session, a *sqlkit.LockRequest) (bool, error) {
	m, err := r.mark(a.Key)
	if err != nil {
		return false, err
	}
	if p, ok := s.Link.(*pgLink); ok && a.Limit == driver.Exclusive && m.sub == 1 && !a.Recorded {
		row, err := p.prepared(ctx, "SELECT pg_catalog.pg_advisory_unlock($1::bigint)", m.args())
		return row.True(0), err
	}
	script := fmt.Sprintf("SELECT pg_catalog.pg_advisory_unlock%s(%s)", sharedSuffix(a), m.args())
	if a.Recorded {
		script += ", " + resetName
	}
	answers, err := s.Run(ctx, script)
	if err != nil {
		return false, err
	}
	return answers.Last().True(0), nil
}

// Survey returns the holders and waiters in pg_locks.
func (r advisory) Survey(ctx context.Context, side sqlkit.Link, key []byte, all bool) (
	sights []sqlkit.Sight, missing, err error,
) {
	where := "true"
	if !all {
		m, err := r.mark(key)
		if err != nil {
			return nil, nil, err
		}
		where = "(" + m.where() + ") OR (" + waitMark(key).where() + ")"
	}
	list, err := r.sights(ctx, side, where)
	if err != nil {
		return nil, nil, err
	}
	for _, f := range list {
		switch gate := f.mark == waitMark(f.Key) || !all && f.mark == waitMark(key); {
		case gate && f.Granted:
			continue // it waits for the lock
		case gate && f.ours:
			sights = append(sights, f.Sight)
			continue
		}
		if m, err := r.mark(f.Key); err != nil || m != f.mark {
			f.ours = false // the label is missing, or for another lock, which this session does not have
		}
		if !f.ours {
			if all {
				continue
			}
			f.Key = key
		}
		sights = append(sights, f.Sight)
	}
	return sights, nil, nil
}
