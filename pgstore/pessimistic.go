package pgstore

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/sqlkit"
)

// pessimistic is the recipe of a row lock in an open transaction; see [sqlkit.RowLocker].
//
// PostgreSQL lets overlapping readers starve a writer, and lets new requests pass the
// waiters of a row. So there is a gate before the row, an advisory lock. A waiter takes the
// gate alone, first come first served, and waits for the row while it has the gate.
// It keeps the gate when it repeats its statement. Requests that do not wait share the gate,
// if there is no waiter. The gate decides the order and nothing else.
//
// A transaction with a grant also shares an advisory lock that no session takes alone. This
// lock makes the grant visible in pg_locks, which does not show row locks.
type pessimistic struct {
	sessions
	*sqlkit.NameRows
}

func newPessimistic(s *store) pessimistic {
	r := &sqlkit.NameRows{Table: s.cfg.Table, Column: s.cfg.Column, Key: lit, In: s.in}
	r.Name = func(name []byte) string {
		if s.facts().byteColumn {
			return lit(name)
		}
		return "pg_catalog.convert_from(" + lit(name) + ", 'UTF8')"
	}
	return pessimistic{sessions{s: s}, r}
}

// place distinguishes the rows of one table and column from others. So locks of other schemas have other marks.
func (r pessimistic) place() string {
	if r.s.cfg.Table == "" {
		return r.s.in(sqlkit.NameTable)
	}
	return strings.ToLower(strings.ReplaceAll(r.s.in(r.s.cfg.Table), `"`, "") + "." + r.s.cfg.Column) // two spellings of one table
}

// gate returns the gate of a name.
func (r pessimistic) gate(key []byte) mark { return hashed("gate\x00"+r.place(), key) }

// held returns the advisory lock that makes the grants of a name visible.
func (r pessimistic) held(key []byte) mark { return hashed("held\x00"+r.place(), key) }

// wanted returns the mark of a watched name.
func (r pessimistic) wanted(key []byte) mark { return hashed("wanted\x00"+r.place(), key) }

// Check refuses limits for which there are no rows.
func (r pessimistic) Check(q *driver.Request) (time.Duration, error) {
	return r.s.cfg.CheckRow(q, unit)
}

// Lock locks the row.
func (r pessimistic) Lock(ctx context.Context, s *sqlkit.Session, a *sqlkit.LockRequest) (sqlkit.Got, error) {
	limitTokens(a)
	if a.Wait {
		// Unlike those of grantQuery, these settings outlast the transaction, which ends when a wait takes too long. A
		// session is silent while it polls.
		if err := r.setTimers(ctx, s, a, max(a.TTL, time.Second)); err != nil {
			return sqlkit.Got{}, err
		}
	}
	return sqlkit.LockRow(ctx, r, s, a)
}

// TryRow runs one transaction, which stays open if it has the lock.
func (r pessimistic) TryRow(ctx context.Context, s *sqlkit.Session, a *sqlkit.LockRequest, wait bool) (sqlkit.Got, error) {
	answers, err := s.Run(ctx, r.script(a, wait)...)
	if wait { // the wait is over
		var cancel func()
		ctx, cancel = context.WithTimeout(ctx, sqlkit.AnswerWithin)
		defer cancel()
		if waitedTooLong(err) {
			answers, err = nil, nil
		}
		answers = answers[max(len(answers)-3, 0):] // those of the script without waitQuietly
	}
	if err != nil {
		return sqlkit.Got{}, err
	}
	passedGate := answers.First(0).Text(0) == "yes"
	var before sqlkit.Row
	if r.FitsKind(a, wait) {
		before, answers = answers.First(1), answers[1:]
	}
	row := answers.First(1)
	if row != nil && row.Int(2) != s.ID.Conn {
		return sqlkit.Got{}, errMoved
	}
	locked := row != nil && !row.Null(0)
	fits := a.Limit == driver.Exclusive || row.Int(0) == int64(sqlkit.Kind(a.Limit))
	if passedGate && locked && fits && !row.Null(1) {
		a.Recorded = true // the statement has recorded the holder
		got := sqlkit.Got{Token: uint64(row.Int(1)), Tokens: int(row.Int(4)), Slot: driver.NoSlot}
		if sqlkit.Kind(a.Limit) > driver.Exclusive {
			got.Slot = int(row.Int(3))
		}
		return r.durableToken(ctx, s, a, got)
	}
	if passedGate && !locked {
		return sqlkit.Got{}, r.Missed(ctx, s, a, wait, before)
	}
	if _, err := s.Run(ctx, "ROLLBACK"); err != nil {
		return sqlkit.Got{}, err
	}
	switch {
	case passedGate && !fits:
		return sqlkit.Got{}, sqlkit.ErrKind
	case wait && !passedGate:
		return sqlkit.Got{}, sqlkit.ErrWaitAgain
	}
	return sqlkit.Got{}, sqlkit.ErrBusy
}

// InsertRow inserts the row. While another client's transaction has inserted it and is still open, the row is
// invisible, so that no statement can wait for it.
func (r pessimistic) InsertRow(ctx context.Context, s *sqlkit.Session, a *sqlkit.LockRequest) error {
	_, err := s.Run(ctx, "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE", "SET LOCAL lock_timeout = '100ms'",
		r.Insert(a.Key)+" ON CONFLICT DO NOTHING", "COMMIT")
	if sqlState(err) != lockNotAvailable {
		return err
	}
	if _, err := s.Run(ctx, "ROLLBACK"); err != nil {
		return err
	}
	return sqlkit.ErrBusy
}

// script returns the statements of TryRow. Their answers are: whether the request passed
// the gate; permits, if FitsKind; and the answer of grantQuery.
func (r pessimistic) script(a *sqlkit.LockRequest, wait bool) []string {
	// The script leaves the gate only if it has passed it. Otherwise the server would log a
	// warning.
	gate := r.gate(a.Key)
	enter := setFlag("gate", "CASE WHEN pg_catalog.pg_try_advisory_lock_shared("+gate.args()+") THEN 'yes' END")
	leave := ifFlag("gate", "pg_catalog.pg_advisory_unlock_shared("+gate.args()+")")
	script := []string{r.comment(a) + "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"}
	switch {
	case wait && a.Label.Waited > 0:
		script = append(script, r.waitQuietly(a, gate, "SELECT 1 FROM "+r.Row(a.Key)+" "+rowMode(a))...)
		enter = "pg_catalog.current_setting('holdfast.gate', true)"
	case wait:
		enter = setFlag("gate", "pg_catalog.pg_advisory_lock("+gate.args()+")::pg_catalog.text || 'yes'")
	}
	script = append(script, "SELECT "+enter)
	if r.FitsKind(a, wait) {
		script = append(script, "SELECT permits FROM "+r.Row(a.Key))
	}
	script = append(script, r.grantQuery(a, wait))
	if wait {
		// The session may have the gate more than once, and may have its turn to read the clock.
		return append(script, "SELECT "+ifFlag("gate", "pg_catalog.pg_advisory_unlock_all()"))
	}
	script = append(script, "SELECT "+leave)
	if a.Limit != driver.Exclusive {
		script = append(script, "SELECT "+ifFlag("turn", "pg_catalog.pg_advisory_unlock("+turnMark(a.Key).args()+")"))
	}
	return script
}

// rowMode returns how a request locks the row.
func rowMode(a *sqlkit.LockRequest) string {
	if a.Limit != driver.Exclusive {
		return "FOR SHARE"
	}
	return "FOR UPDATE"
}

// grantQuery returns the query that locks the row. It returns permits, the token, the backend, the slot
// and how many tokens the grant has. The query l locks the row, p a permit, t reads the clock with them,
// and g reads it again for several tokens.
func (r pessimistic) grantQuery(a *sqlkit.LockRequest, wait bool) string {
	mode := rowMode(a)
	switch {
	case wait && a.Label.Waited > 0:
		mode = "AND " + ifFlag("gate", "true") // waitQuietly has locked the row then
	case !wait:
		mode += " SKIP LOCKED"
		if r.FitsKind(a, wait) {
			mode = fmt.Sprintf("AND permits = %d ", sqlkit.Kind(a.Limit)) + mode // the server locks no row of another kind
		}
	}
	with := fmt.Sprintf("l AS MATERIALIZED (SELECT %s AS permits FROM %s %s)", r.Permits(), r.Row(a.Key), mode)
	slot, from, fits := "-1", "l", "true"
	if k := sqlkit.Kind(a.Limit); a.Limit != driver.Exclusive {
		fits = fmt.Sprintf("l.permits = %d", k)
		if k > 0 {
			with += fmt.Sprintf(", p AS MATERIALIZED (SELECT slot FROM %s WHERE name = %s AND slot < %d AND EXISTS (SELECT 1 FROM l WHERE l.permits = %d) ORDER BY slot LIMIT 1 FOR UPDATE SKIP LOCKED)",
				r.s.in(sqlkit.SlotTable), lit(a.Key), k, k)
			slot, from = "p.slot", "l LEFT JOIN p ON true"
			fits += " AND p.slot IS NOT NULL"
		}
		// Shared grants read the clock one after the other, so that no two have the same
		// token.
		fits += " AND " + setFlag("turn", "pg_catalog.pg_advisory_lock("+turnMark(a.Key).args()+")::pg_catalog.text || 'yes'") + " IS NOT NULL"
	}
	with += fmt.Sprintf(", t AS MATERIALIZED (SELECT l.permits, %s AS slot, CASE WHEN %s AND pg_catalog.pg_advisory_xact_lock_shared(%s)::pg_catalog.text IS NOT NULL THEN %s END AS token FROM %s)",
		slot, fits, r.held(a.Key).args(), clock, from)
	tokens, grant := "1", "t"
	if n := a.ClockTokens(); n > 1 {
		with += ", g AS MATERIALIZED (SELECT t.*, " + tokenCount("token", strconv.Itoa(n)) + " AS tokens FROM t)"
		tokens, grant = "tokens", "g"
	}
	return fmt.Sprintf("WITH %s SELECT permits, token, pg_catalog.pg_backend_pid(), slot, %s, %s, pg_catalog.set_config('idle_in_transaction_session_timeout', '%d', false) FROM %s",
		with, tokens, r.setName(a, "token", tokens, "slot"), a.TTL.Milliseconds(), grant)
}

// Pass keeps the transaction if no session waits at the gate. The statement names the next
// holder.
func (r pessimistic) Pass(ctx context.Context, s *sqlkit.Session, old, next *sqlkit.LockRequest) (sqlkit.Got, sqlkit.PassOutcome, error) {
	limitTokens(next)
	gate, last := r.gate(old.Key).args(), driver.LastToken(old.Token, old.Reserved)
	answers, err := s.Run(ctx, fmt.Sprintf("WITH f AS MATERIALIZED (SELECT %spg_catalog.pg_try_advisory_lock_shared(%s) AS free), c AS MATERIALIZED (SELECT CASE WHEN free AND pg_catalog.pg_advisory_unlock_shared(%[2]s) THEN %[3]s END AS now FROM f), "+
		"t AS MATERIALIZED (SELECT now, greatest(%d, now - %d) + 1 AS token FROM c WHERE now > %[4]d) SELECT now, pg_catalog.pg_backend_pid(), %[6]s FROM t",
		r.comment(next), gate, clock, last, next.Tokens, setName(next, "token", "now - token + 1")))
	row := answers.Last()
	switch {
	case err != nil:
		return sqlkit.Got{}, 0, err
	case row == nil:
		return sqlkit.Got{}, sqlkit.PassRefused, nil
	case row.Int(1) != s.ID.Conn:
		return sqlkit.Got{}, 0, errMoved
	}
	next.Recorded = true
	return next.Passed(old, row.Int(0))
}

// setFlag returns an expression that sets a flag of the transaction to value, an expression
// that is NULL or 'yes'.
func setFlag(name, value string) string {
	return fmt.Sprintf("pg_catalog.set_config('holdfast.%s', %s, true)", name, value)
}

// ifFlag returns the expression then, and NULL if the flag is not set.
func ifFlag(name, then string) string {
	return fmt.Sprintf("CASE WHEN pg_catalog.current_setting('holdfast.%s', true) = 'yes' THEN %s END", name, then)
}

// setName returns the expression that sets application_name to the token, the ID, and the slot or
// number of tokens of a grant.
func (r pessimistic) setName(a *sqlkit.LockRequest, token, tokens, slot string) string {
	if sqlkit.Kind(a.Limit) > driver.Exclusive {
		return fmt.Sprintf("pg_catalog.set_config('application_name', coalesce('hf ' || %s || ' %s ' || %s, ''), false)", token, a.ID, slot)
	}
	return setName(a, token, tokens)
}

// durableToken commits the token on another connection, since this one's transaction is open.
func (r pessimistic) durableToken(ctx context.Context, s *sqlkit.Session, a *sqlkit.LockRequest, got sqlkit.Got) (sqlkit.Got, error) {
	return sqlkit.DurableToken(ctx, a, got, func(ctx context.Context) (sqlkit.Got, error) {
		answers, err := r.s.links.Run(ctx, r.durableStatement(a))
		got, err := durableGrant(a, got, answers, err)
		if err == nil {
			_, err = s.Run(ctx, "SELECT "+r.comment(a)+r.setName(a, fmt.Sprint(got.Token), strconv.Itoa(got.Tokens), fmt.Sprint(got.Slot)))
		}
		return got, err
	})
}

// SwitchKind sets permits to the kind of the request, if they differ and the row is not locked.
func (r pessimistic) SwitchKind(ctx context.Context, s *sqlkit.Session, a *sqlkit.LockRequest) error {
	k := sqlkit.Kind(a.Limit)
	answers, err := s.Run(ctx, fmt.Sprintf(`WITH l AS MATERIALIZED (SELECT name FROM %[1]s AND permits <> %[2]d FOR UPDATE SKIP LOCKED),
		u AS (UPDATE %[3]s n SET permits = %[2]d FROM l WHERE n.name = l.name RETURNING n.name),
		i AS (INSERT INTO %[4]s (name, slot) SELECT u.name, g FROM u, pg_catalog.generate_series(0, %[2]d - 1) AS g ON CONFLICT DO NOTHING)
		SELECT pg_catalog.count(*) FROM u`, r.Row(a.Key), k, r.s.in(sqlkit.NameTable), r.s.in(sqlkit.SlotTable)))
	if err != nil {
		return err
	}
	if !answers.Last().True(0) {
		return sqlkit.ErrBusy
	}
	return nil
}

// Unlock ends the transaction. The transaction has written nothing, so that a rollback
// costs no write to the log. The transaction ends with its session at the latest.
func (r pessimistic) Unlock(ctx context.Context, s *sqlkit.Session, _ *sqlkit.LockRequest) (bool, error) {
	answers, err := s.Run(ctx, "ROLLBACK", "SELECT pg_catalog.pg_backend_pid()")
	if err != nil {
		return false, err
	}
	return answers.Last().Int(0) == s.ID.Conn, nil
}

// Survey reads pg_locks. A session with the mark of holders is a holder. A session that waits for the
// gate, or has the gate and waits for the row, is a waiter.
func (r pessimistic) Survey(ctx context.Context, side sqlkit.Link, key []byte, all bool) (
	sights []sqlkit.Sight, missing, err error,
) {
	if err := r.findRows(ctx); err != nil {
		return nil, nil, err
	}
	where := "l.objsubid = 1"
	if !all {
		where = "(" + r.held(key).where() + ") OR (" + r.gate(key).where() + ")"
	}
	list, err := r.sights(ctx, side, where)
	if err != nil {
		return nil, nil, err
	}
	for _, f := range list {
		if !f.ours && !all && (f.mark == r.gate(key) && (f.blocked || f.Hidden) || f.mark == r.held(key) && f.Hidden) {
			// The server does not show its statement, or whether that waits.
			f.Key, f.ours, f.blocked = key, true, true
		}
		switch {
		case !f.ours:
		case f.mark == r.held(f.Key):
			sights = append(sights, f.Sight)
		case f.mark == r.gate(f.Key) && f.blocked:
			f.Granted, f.Token = false, 0
			sights = append(sights, f.Sight)
		}
	}
	return sights, nil, nil
}
