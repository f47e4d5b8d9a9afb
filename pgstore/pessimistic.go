package pgstore

import (
	"bytes"
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/sqlkit"
)

// pessimistic is the recipe of a row lock in an open transaction.
//
// Each name has a row. An exclusive grant locks the row alone, and all other grants share
// it. Before a request shares the row, its client ensures, with the row locked, that the
// column permits has its kind. That is 0 for readers, and n for a semaphore of n. A change
// of permits locks the row alone. So readers and permits, and semaphores of different
// sizes, never have grants at the same time. They wait for one another, although their
// limits would admit some of them. Each permit also locks a row of its own.
//
// PostgreSQL lets overlapping readers starve a writer, and lets new requests pass the
// waiters of a row. So there is a gate before the row, an advisory lock. A waiter takes the
// gate alone, first come first served, and waits for the row while it has the gate.
// Requests that do not wait share the gate, if there is no waiter. The gate decides the
// order and nothing else.
//
// A transaction with a grant also shares an advisory lock that no session takes alone. This
// lock makes the grant visible in pg_locks, which does not show row locks.
type pessimistic struct{ sessions }

func gate(key []byte) mark { return hashed("gate\x00", key) }
func sign(key []byte) mark { return hashed("held\x00", key) }

// own reports whether the rows are those of a user's table.
func (r pessimistic) own() bool { return r.s.cfg.Table != "" }

// Check refuses limits for which there are no rows.
func (r pessimistic) Check(q *driver.Request) (time.Duration, error) {
	if err := r.s.cfg.CheckLimit(q.Limit); err != nil {
		return 0, err
	}
	return sqlkit.RoundTTL(q.TTL, unit)
}

// row returns the condition that finds a name's row.
func (r pessimistic) row(key []byte) string {
	if !r.own() {
		return "holdfast_name WHERE name = " + lit(key)
	}
	return fmt.Sprintf("%s WHERE %s = %s", r.s.cfg.Table, r.s.cfg.Column, r.value(key))
}

// value returns a name for a user's table: bytes or text, like its column.
func (r pessimistic) value(key []byte) string {
	_, name, _ := bytes.Cut(key, []byte{0})
	if r.s.facts().bytes {
		return lit(name)
	}
	return "convert_from(" + lit(name) + ", 'UTF8')"
}

func (r pessimistic) insert(key []byte) string {
	if !r.own() {
		return fmt.Sprintf("INSERT INTO holdfast_name (name) VALUES (%s) ON CONFLICT DO NOTHING", lit(key))
	}
	return fmt.Sprintf("INSERT INTO %s (%s) VALUES (%s) ON CONFLICT DO NOTHING", r.s.cfg.Table, r.s.cfg.Column, r.value(key))
}

// Lock locks the row.
func (r pessimistic) Lock(ctx context.Context, s *sqlkit.Session, a *sqlkit.LockRequest) (sqlkit.Got, error) {
	limit(a)
	return sqlkit.LockRow(ctx, r, s, a)
}

// TryRow runs one transaction, which stays open if it has the lock.
func (r pessimistic) TryRow(ctx context.Context, s *sqlkit.Session, a *sqlkit.LockRequest, wait bool) (sqlkit.Got, error) {
	answers, err := s.Run(ctx, r.script(a, wait)...)
	if err != nil {
		return sqlkit.Got{}, err
	}
	if wait { // the wait is over
		var cancel func()
		ctx, cancel = context.WithTimeout(ctx, sqlkit.AnswerWithin)
		defer cancel()
	}
	passed, row, there := answers.First(0).Text(0) == "yes", answers.First(1), answers.First(2).True(0)
	if row != nil && row.Int(2) != s.ID.Conn {
		return sqlkit.Got{}, errMoved
	}
	have := int64(-1) // permits, or -1 if the row is locked
	if row != nil && !row.Null(0) {
		have = row.Int(0)
	}
	fits := have >= 0 && (a.Limit == driver.Exclusive || have == int64(sqlkit.Kind(a.Limit)))
	if passed && fits && !row.Null(1) {
		a.Recorded = true // the statement has recorded the holder
		got := sqlkit.Got{Token: uint64(row.Int(1)), Tokens: int(row.Int(4)), Slot: driver.NoSlot}
		if sqlkit.Kind(a.Limit) > driver.Exclusive {
			got.Slot = int(row.Int(3))
		}
		if r.s.cfg.Durable {
			return r.durableToken(ctx, s, a, got)
		}
		return got, nil
	}
	if _, err := s.Run(ctx, "ROLLBACK"); err != nil {
		return sqlkit.Got{}, err
	}
	switch {
	case !there:
		_, err := s.Run(ctx, "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE", "SET LOCAL lock_timeout = '100ms'", r.insert(a.Key), "COMMIT")
		if state(err) == "55P03" {
			// Another client's transaction has inserted the row and is still open. The row
			// is invisible until the commit, so that no statement can wait for it.
			if _, err = s.Run(ctx, "ROLLBACK"); err == nil {
				err = sqlkit.ErrBusy
			}
		}
		if err != nil {
			return sqlkit.Got{}, err
		}
		return sqlkit.Got{}, sqlkit.ErrRow
	case passed && have >= 0 && !fits:
		return sqlkit.Got{}, sqlkit.ErrKind
	case wait && passed && have < 0:
		return sqlkit.Got{}, sqlkit.ErrRow // another client has inserted the row meanwhile: the next try waits for it
	}
	return sqlkit.Got{}, sqlkit.ErrBusy
}

// script returns the statements of TryRow. Their answers are: whether the request passed
// the gate; permits, the token, the backend, the slot and how many tokens the grant has;
// and whether the name has a row.
func (r pessimistic) script(a *sqlkit.LockRequest, wait bool) []string {
	permits := "permits"
	if r.own() {
		permits = "0"
	}
	mode, g := "FOR UPDATE", gate(a.Key).args()
	if a.Limit != driver.Exclusive {
		mode = "FOR SHARE"
	}
	// The script leaves the gate only if it has passed it. Otherwise the server would log a
	// warning.
	enter := flag("gate", "pg_advisory_lock("+g+")::text || 'yes'")
	leave := ifFlag("gate", "pg_advisory_unlock("+g+")")
	if !wait {
		mode += " SKIP LOCKED"
		enter = flag("gate", "CASE WHEN pg_try_advisory_lock_shared("+g+") THEN 'yes' END")
		leave = ifFlag("gate", "pg_advisory_unlock_shared("+g+")")
	}
	slot, from, turn := "-1", "l", ""
	with := fmt.Sprintf("l AS MATERIALIZED (SELECT %s AS permits FROM %s %s)", permits, r.row(a.Key), mode)
	fits := "true"
	if k := sqlkit.Kind(a.Limit); a.Limit != driver.Exclusive {
		fits = fmt.Sprintf("l.permits = %d", k)
		if k > 0 {
			with += fmt.Sprintf(", p AS MATERIALIZED (SELECT slot FROM holdfast_slot WHERE name = %s AND slot < %d AND EXISTS (SELECT 1 FROM l WHERE l.permits = %d) ORDER BY slot LIMIT 1 FOR UPDATE SKIP LOCKED)",
				lit(a.Key), k, k)
			slot, from = "p.slot", "l LEFT JOIN p ON true"
			fits += " AND p.slot IS NOT NULL"
		}
		// Shared grants read the clock one after the other, so that no two have the same
		// token.
		turn = hashed("token\x00", a.Key).args()
		fits += " AND " + flag("turn", "pg_advisory_lock("+turn+")::text || 'yes'") + " IS NOT NULL"
	}
	with += fmt.Sprintf(", t AS MATERIALIZED (SELECT l.permits, %s AS slot, CASE WHEN %s AND pg_advisory_xact_lock_shared(%s)::text IS NOT NULL THEN %s END AS token FROM %s)",
		slot, fits, sign(a.Key).args(), clock, from)
	tokens, grant := "1", "t"
	if n := r.tokens(a); n > 1 {
		with += ", g AS MATERIALIZED (SELECT t.*, " + several("token", strconv.Itoa(n)) + " AS tokens FROM t)"
		tokens, grant = "tokens", "g"
	}
	script := []string{
		r.comment(a) + "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE",
		"SELECT " + enter,
		fmt.Sprintf("WITH %s SELECT permits, token, pg_backend_pid(), slot, %s, %s, set_config('idle_in_transaction_session_timeout', '%d', false) FROM %s",
			with, tokens, r.name(a, "token", tokens, "slot"), a.TTL.Milliseconds(), grant),
		"SELECT EXISTS (SELECT 1 FROM " + r.row(a.Key) + ")",
		"SELECT " + leave,
	}
	if turn != "" {
		script = append(script, "SELECT "+ifFlag("turn", "pg_advisory_unlock("+turn+")"))
	}
	return script
}

// Pass keeps the transaction if no session waits at the gate. The statement names the next
// holder.
func (r pessimistic) Pass(ctx context.Context, s *sqlkit.Session, old, next *sqlkit.LockRequest) (sqlkit.Got, sqlkit.PassOutcome, error) {
	if r.s.cfg.Durable {
		return sqlkit.Got{}, sqlkit.PassRefused, nil
	}
	limit(next)
	g, last := gate(old.Key).args(), driver.LastToken(old.Token, old.Reserved)
	answers, err := s.Run(ctx, fmt.Sprintf("WITH f AS MATERIALIZED (SELECT %spg_try_advisory_lock_shared(%s) AS free), c AS MATERIALIZED (SELECT CASE WHEN free AND pg_advisory_unlock_shared(%[2]s) THEN %[3]s END AS now FROM f), "+
		"t AS MATERIALIZED (SELECT now, greatest(%d, now - %d) + 1 AS token FROM c WHERE now > %[4]d) SELECT now, pg_backend_pid(), %[6]s FROM t",
		r.comment(next), g, clock, last, next.Tokens, named(next, "token", "now - token + 1")))
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

// flag returns an expression that sets a flag of the transaction to value, an expression
// that is NULL or 'yes'.
func flag(name, value string) string {
	return fmt.Sprintf("set_config('holdfast.%s', %s, true)", name, value)
}

func ifFlag(name, then string) string {
	return fmt.Sprintf("CASE WHEN current_setting('holdfast.%s', true) = 'yes' THEN %s END", name, then)
}

// name returns the expression that sets application_name to the token, the ID, and the slot or
// number of tokens of a grant.
func (r pessimistic) name(a *sqlkit.LockRequest, token, tokens, slot string) string {
	if sqlkit.Kind(a.Limit) > driver.Exclusive {
		return fmt.Sprintf("set_config('application_name', coalesce('hf ' || %s || ' %s ' || %s, ''), false)", token, a.ID, slot)
	}
	return named(a, token, tokens)
}

// durableToken commits the token on another connection, since this one's transaction is open.
func (r pessimistic) durableToken(ctx context.Context, s *sqlkit.Session, a *sqlkit.LockRequest, got sqlkit.Got) (sqlkit.Got, error) {
	return sqlkit.DurableToken(ctx, r, s, a, got, func(ctx context.Context) (sqlkit.Got, error) {
		answers, err := r.s.links.Run(ctx, durable(a))
		got, err := durableOf(a, got, answers, err)
		if err == nil {
			_, err = s.Run(ctx, "SELECT "+r.comment(a)+r.name(a, fmt.Sprint(got.Token), strconv.Itoa(got.Tokens), fmt.Sprint(got.Slot)))
		}
		return got, err
	})
}

// SwitchKind sets permits to the kind of the request, if the row is not locked.
func (r pessimistic) SwitchKind(ctx context.Context, s *sqlkit.Session, a *sqlkit.LockRequest) error {
	k := sqlkit.Kind(a.Limit)
	answers, err := s.Run(ctx, fmt.Sprintf(`WITH l AS MATERIALIZED (SELECT name FROM %s FOR UPDATE SKIP LOCKED),
		u AS (UPDATE holdfast_name n SET permits = %d FROM l WHERE n.name = l.name RETURNING n.name),
		i AS (INSERT INTO holdfast_slot (name, slot) SELECT u.name, g FROM u, generate_series(0, %d - 1) AS g ON CONFLICT DO NOTHING)
		SELECT count(*) FROM u`, r.row(a.Key), k, k))
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
	answers, err := s.Run(ctx, "ROLLBACK", "SELECT pg_backend_pid()")
	if err != nil {
		return false, err
	}
	return answers.Last().Int(0) == s.ID.Conn, nil
}

// Clear ends the transaction and leaves the gate.
func (r pessimistic) Clear(ctx context.Context, s *sqlkit.Session) error {
	_, err := s.Run(ctx, "ROLLBACK", "SELECT pg_advisory_unlock_all()")
	return err
}

// Survey reads pg_locks. A session with the sign is a holder. A session that waits for the
// gate, or has the gate and waits for the row, is a waiter.
func (r pessimistic) Survey(ctx context.Context, side sqlkit.Link, key []byte, all bool) ([]sqlkit.Sight, []sqlkit.Identity, error) {
	where := "l.objsubid = 1"
	if !all {
		where = "(" + sign(key).where() + ") OR (" + gate(key).where() + ")"
	}
	list, err := r.sights(ctx, side, where)
	if err != nil {
		return nil, nil, err
	}
	var sights []sqlkit.Sight
	for _, f := range list {
		if !f.ours && !all && (f.mark == gate(key) && f.blocked || f.mark == sign(key) && f.Hidden) {
			f.Key, f.ours = key, true // the server does not show its statement
		}
		switch {
		case !f.ours:
		case f.mark == sign(f.Key):
			sights = append(sights, f.Sight)
		case f.mark == gate(f.Key) && f.blocked:
			f.Granted, f.Token = false, 0
			sights = append(sights, f.Sight)
		}
	}
	return sights, nil, nil
}
