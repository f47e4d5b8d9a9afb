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

// sessions has the methods that the recipes on sessions share.
type sessions struct {
	faults
	s *store
}

// Begin switches off every timeout of a session, a transaction or a statement, so that only
// the TTL ends the session. The server checks once a second whether a waiting client is
// still there.
func (r sessions) Begin(ctx context.Context, l sqlkit.Link) (sqlkit.Identity, error) {
	if err := r.findRows(ctx); err != nil {
		return sqlkit.Identity{}, err
	}
	f := r.s.facts()
	sets := map[string]string{
		"statement_timeout": "0", "lock_timeout": "0", "idle_in_transaction_session_timeout": "0", "idle_session_timeout": "0",
		"default_transaction_isolation": "read committed", "default_transaction_read_only": "off",
		"tcp_keepalives_idle": "15", "tcp_keepalives_interval": "5", "tcp_keepalives_count": "3",
	}
	if f.version >= 170000 {
		sets["transaction_timeout"] = "0"
	}
	if f.checksClients {
		sets["client_connection_check_interval"] = "1s"
	}
	q := "SELECT pg_catalog.pg_is_in_recovery(), pg_catalog.pg_backend_pid(), (SELECT extract(epoch FROM backend_start) FROM pg_catalog.pg_stat_get_activity(pg_catalog.pg_backend_pid()))"
	for name, value := range sets {
		q += fmt.Sprintf(", pg_catalog.set_config('%s', '%s', false)", name, value)
	}
	a, err := l.Run(ctx, q)
	if err != nil {
		return sqlkit.Identity{}, err
	}
	row := a.Last()
	if row.True(0) {
		return sqlkit.Identity{}, errReplica // it was the primary when the store was opened
	}
	return sqlkit.Identity{Conn: row.Int(1), Since: row.Text(2)}, nil
}

// setTimers sets the timers of a session, unless they have the values for the TTL of a request: the server ends the
// session when it has been silent for that time, also within a transaction.
//
// A statement that waits has a snapshot, for which CREATE INDEX CONCURRENTLY waits, and because of which VACUUM removes
// no rows. So no wait for a lock takes longer than 5 s, and a waiter repeats its statement.
func (r sessions) setTimers(ctx context.Context, s *sqlkit.Session, a *sqlkit.LockRequest, silence time.Duration) error {
	if s.TTL == a.TTL {
		return nil
	}
	_, err := s.Run(ctx, fmt.Sprintf("SET idle_session_timeout = %d; SET idle_in_transaction_session_timeout = %[1]d; SET lock_timeout = %d",
		silence.Milliseconds(), min(max(a.TTL, time.Second), 5*time.Second).Milliseconds()))
	if err == nil {
		s.TTL = a.TTL
	}
	return err
}

// waitQuietly returns statements that wait for the gate and then for the lock that the query take takes. They set the
// flag gate if they have got both. Otherwise they keep the gate, if they have got it, for the next time. They catch the
// error of a wait that takes too long, because the server would log it each time, unless the user has no right to
// PL/pgSQL. Their first statement has the label of the request.
func (r sessions) waitQuietly(a *sqlkit.LockRequest, gate mark, take string) []string {
	enter, flag := "SELECT pg_catalog.pg_advisory_lock("+gate.args()+")", "SELECT "+setFlag("gate", "'yes'")
	if !r.s.facts().catches {
		return []string{"SELECT " + r.comment(a) + "1", enter, take, flag}
	}
	return []string{"SELECT " + r.comment(a) + "pg_catalog.set_config('holdfast.wait', " + ascii(enter+";"+take+";"+flag) + ", true)",
		"DO $$BEGIN EXECUTE pg_catalog.current_setting('holdfast.wait'); EXCEPTION WHEN lock_not_available THEN NULL; END$$"}
}

// waitedTooLong reports whether err is that of a wait that took too long.
func waitedTooLong(err error) bool { return sqlState(err) == lockNotAvailable }

// findRows finds the tables of the locks, unless they are known.
func (r sessions) findRows(ctx context.Context) error {
	_, err := r.s.server.Read(ctx)
	if err == nil && r.s.usesTables() {
		err = r.s.resolve(ctx)
	}
	return err
}

// unit is the granularity of the server's timeouts.
const unit = time.Millisecond

// comment returns a label for a statement. The server shows a limited part of a statement.
func (r sessions) comment(a *sqlkit.LockRequest) string {
	return "/*" + a.Label.Encode(r.s.labelBytes()) + "*/ "
}

// setName returns an expression that sets application_name to the token and the ID of an exclusive or
// shared grant. If the grant has several tokens, their number follows. If token is NULL, the name is
// the empty string.
func setName(a *sqlkit.LockRequest, token, tokens string) string {
	return fmt.Sprintf("pg_catalog.set_config('application_name', coalesce('hf ' || (%s) || ' %s' || CASE WHEN (%s) > 1 THEN ' x' || (%[3]s) ELSE '' END, ''), false)", token, a.ID, tokens)
}

// nameBytes is how many bytes of application_name the server keeps.
const nameBytes = 63

// limitTokens makes a request reserve one token if application_name has no space for more.
func limitTokens(a *sqlkit.LockRequest) {
	if a.Tokens > 1 && len("hf  x")+len(strconv.FormatInt(time.Now().UnixMicro(), 10))+len(a.ID)+len(strconv.Itoa(a.Tokens)) > nameBytes {
		a.Tokens = 1
	}
}

// tokenCount returns an expression for how many tokens a grant has. The server evaluates it with the lock,
// and reads the clock until it is n microseconds after token, the first one. The value is then n, or one
// if the clock does not get there. pg_sleep would wait for a millisecond.
func tokenCount(token, n string) string {
	return fmt.Sprintf("CASE WHEN %[1]s IS NOT NULL THEN coalesce((SELECT %[2]s FROM (SELECT pg_catalog.generate_series(1, 50 * %[2]s), %[3]s AS now) c WHERE now >= %[1]s + %[2]s LIMIT 1), 1) END",
		token, n, clock)
}

// resetName is an expression that restores the original application_name of the session.
const resetName = "pg_catalog.set_config('application_name', NULL, false)"

// holding is a grant as the application_name of its session shows it.
type holding struct {
	token  uint64
	tokens int
	id     string
	slot   int
}

// parseName parses the application_name of a holder: "hf TOKEN ID", then SLOT of a permit, or xTOKENS of a
// grant with several tokens.
func parseName(application string) (h holding, ok bool) {
	f := strings.Fields(application)
	if len(f) < 3 || f[0] != "hf" {
		return h, false
	}
	token, err := strconv.ParseUint(f[1], 10, 64)
	h = holding{token: token, id: f[2], slot: driver.NoSlot}
	if len(f) > 3 {
		if n, ok := strings.CutPrefix(f[3], "x"); ok {
			h.tokens, _ = strconv.Atoi(n)
		} else if slot, err := strconv.Atoi(f[3]); err == nil {
			h.slot = slot
		}
	}
	return h, err == nil
}

// Ping runs a statement whose comment shows the owner, and reports whether the session is the same.
func (r sessions) Ping(ctx context.Context, s *sqlkit.Session, a *sqlkit.LockRequest) (bool, error) {
	answers, err := s.Run(ctx, "SELECT "+r.comment(a)+"pg_catalog.pg_backend_pid()")
	if err != nil {
		return false, err
	}
	return answers.Last().Int(0) == s.ID.Conn, nil
}

// Cause returns the cause of the end of a session, from the last error that the server sent on its
// connection.
func (r sessions) Cause(s *sqlkit.Session, a *sqlkit.LockRequest, _ *sqlkit.Pool) (driver.Cause, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_, err := s.Run(ctx, "SELECT 1")
	switch sqlState(err) {
	case adminShutdown:
		return driver.CauseTaken, err
	case idleSessionTimeout, idleInTransactionTimeout, transactionTimeout:
		return driver.CauseExpired, err
	}
	return driver.CauseSessionEnded, err
}

// Ended reports whether an error means that the server has ended the session.
func (sessions) Ended(err error) bool {
	switch sqlState(err) {
	case adminShutdown, crashShutdown, idleSessionTimeout, idleInTransactionTimeout, transactionTimeout:
		return true
	}
	return false
}

// sessionRow returns the condition for the session's row of pg_stat_activity.
func sessionRow(id sqlkit.Identity) string {
	return fmt.Sprintf("pid = %d AND extract(epoch FROM backend_start) = %s", id.Conn, id.Since)
}

// Runs reports whether a session runs a statement: otherwise it waits for one of its client.
func (r sessions) Runs(ctx context.Context, side sqlkit.Link, id sqlkit.Identity) (bool, error) {
	a, err := side.Run(ctx, "SELECT 1 FROM pg_catalog.pg_stat_get_activity("+fmt.Sprint(id.Conn)+") WHERE "+sessionRow(id)+" AND wait_event IS DISTINCT FROM 'ClientRead'")
	return a.Last() != nil, err
}

// End ends a session and reports whether it is gone.
func (r sessions) End(ctx context.Context, side sqlkit.Link, id sqlkit.Identity) (bool, error) {
	a, err := side.Run(ctx, "SELECT pg_catalog.pg_terminate_backend(pid) FROM pg_catalog.pg_stat_activity WHERE "+sessionRow(id))
	if err != nil {
		return false, err
	}
	return len(a[len(a)-1]) == 0, nil
}

// Evict ends the session of a grant, unless its application_name has changed.
func (r sessions) Evict(ctx context.Context, side sqlkit.Link, seen sqlkit.Sight) error {
	_, err := side.Run(ctx, fmt.Sprintf("SELECT pg_catalog.pg_terminate_backend(pid) FROM pg_catalog.pg_stat_activity WHERE %s AND application_name LIKE 'hf %d %s%%'",
		sessionRow(seen.Identity), seen.Token, seen.Owner.ID))
	return err
}

// mark is an advisory lock by which Survey finds grants and waiters.
type mark struct {
	classid, objid uint32
	sub            int // 1: one 64-bit key, 2: two of 32 bits
}

func (m mark) where() string {
	return fmt.Sprintf("l.classid = %d AND l.objid = %d AND l.objsubid = %d", m.classid, m.objid, m.sub)
}

// args returns a mark as the arguments of an advisory function.
func (m mark) args() string {
	if m.sub == 1 {
		return strconv.FormatInt(int64(uint64(m.classid)<<32|uint64(m.objid)), 10)
	}
	return fmt.Sprintf("%d, %d", int32(m.classid), int32(m.objid))
}

// sights returns the advisory locks of the server that match where, with the sessions that hold them
// or wait for them. The view pg_stat_activity would cost more, for the names of databases and users.
func (r sessions) sights(ctx context.Context, side sqlkit.Link, where string) ([]found, error) {
	a, err := side.Run(ctx, `SELECT l.pid, extract(epoch FROM a.backend_start), l.granted, a.application_name, a.query,
		(extract(epoch FROM coalesce(l.waitstart, a.query_start)) * 1000000)::bigint, (extract(epoch FROM clock_timestamp() - a.state_change) * 1000000)::bigint,
		a.state, coalesce(host(a.client_addr), ''), l.classid, l.objid, l.objsubid, coalesce(a.wait_event_type, '')
		FROM pg_catalog.pg_locks l JOIN pg_catalog.pg_stat_get_activity(NULL) a ON a.pid = l.pid
		WHERE l.locktype = 'advisory' AND l.database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database()) AND (`+where+`)
		ORDER BY l.granted DESC, l.waitstart NULLS FIRST`)
	if err != nil {
		return nil, err
	}
	var all []found
	for _, row := range a[len(a)-1] {
		all = append(all, foundIn(row))
	}
	return all, nil
}

// foundIn parses a row of sights.
func foundIn(row sqlkit.Row) found {
	pid, backendStart, granted := row.Int(0), row.Text(1), row.True(2)
	application, query := row.Text(3), row.Text(4)
	since, inState := row.Int(5), row.Int(6) // microseconds
	state, clientAddress := row.Text(7), row.Text(8)
	key, waitEvent := mark{uint32(row.Int(9)), uint32(row.Int(10)), int(row.Int(11))}, row.Text(12)

	f := found{mark: key, blocked: waitEvent == "Lock"}
	f.Identity = sqlkit.Identity{Conn: pid, Since: backendStart}
	f.Label, f.ours = sqlkit.FindLabel(query)
	f.Granted, f.Slot, f.Sight.Since = granted, driver.NoSlot, time.UnixMicro(since).Add(-f.Waited)
	f.Tokens = 0 // application_name has the number
	name, recorded := parseName(application)
	switch {
	case f.ours && granted && recorded && name.id == f.Owner.ID:
		f.Token, f.Tokens, f.Slot = name.token, name.tokens, name.slot
		f.Sight.Since = time.UnixMicro(int64(name.token))
	case !f.ours || granted && !f.blocked:
		f.Label, f.ours = sqlkit.Label{}, false
		f.Note = fmt.Sprintf("not of holdfast, just begun, or not visible to this user: backend %d", pid)
		f.Owner.Host = clientAddress
		f.Limit = driver.Exclusive
		f.Hidden = row.Null(7) || state == "disabled" // another user's, or track_activities is off
	}
	f.Left = f.TTL
	if strings.HasPrefix(state, "idle") {
		f.Left -= time.Duration(inState) * time.Microsecond
	}
	return f
}

// found is a sight and the mark by which it was found.
type found struct {
	sqlkit.Sight
	mark    mark
	ours    bool // the session's statement has the label of the grant or of a waiter
	blocked bool // its statement waits for a lock
}
