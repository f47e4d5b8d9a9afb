package mysqlstore

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base32"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/sqlkit"
)

// named is the recipe of GET_LOCK.
type named struct{ sessions }

// The longest names of GET_LOCK: MySQL counts characters and folds case; MariaDB
// counts bytes and does not.
const (
	mostChars8 = 64
	mostBytes  = 192
)

// readable is how much of a name can be read in the name of its lock.
const readable = 24

// hashedName is what GET_LOCK is given: at most 64 characters in lower case, which
// begin with what can be read of the name. The rest is its hash.
func hashedName(key []byte) string {
	sum := sha256.Sum256(key)
	_, name, _ := bytes.Cut(key, []byte{0})
	var plain strings.Builder
	for _, c := range strings.ToLower(string(name)) {
		if plain.Len() == readable {
			break
		}
		if c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || strings.ContainsRune("-_./:", c) {
			plain.WriteRune(c)
		} else {
			plain.WriteByte('~')
		}
	}
	return "hf:" + plain.String() + ":" + strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(sum[:20]))
}

func (r named) lockname(key []byte) string {
	if r.s.cfg.exact {
		_, name, _ := bytes.Cut(key, []byte{0})
		return string(name)
	}
	return hashedName(key)
}

// lockOf is the lock of a request, as an argument of GET_LOCK.
func (r named) lockOf(a *sqlkit.Ask) string {
	if a.Lockname == "" {
		a.Lockname = r.lockname(a.Key)
	}
	return asText(a.Lockname)
}

// Check answers for what GET_LOCK does not have.
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
	case !f.maria: // or not known: the strictest will do
		if n := utf8.RuneCountInString(name); n > mostChars8 {
			return driver.Errorf(driver.CodeInvalid, "name %q has %d characters: GET_LOCK of MySQL takes %d (without names=exact any name will do)", name, n, mostChars8)
		}
		if i := strings.IndexFunc(name, unicode.IsUpper); i >= 0 {
			return driver.Errorf(driver.CodeInvalid, "name %q has upper case, which GET_LOCK of MySQL does not tell from lower (without names=exact any name will do)", name)
		}
	case len(name) > mostBytes:
		return driver.Errorf(driver.CodeInvalid, "name %q has %d bytes: GET_LOCK of MariaDB takes %d (without names=exact any name will do)", name, len(name), mostBytes)
	}
	return nil
}

// asText is a name as GET_LOCK's argument: a string in UTF-8. What no character set
// and no sql_mode reads otherwise is written as it is, which the server reads faster.
func asText(s string) string {
	for _, c := range []byte(s) {
		if !(c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == ':' || c == '.' || c == '_' || c == '-' || c == '/') {
			return "CONVERT(" + lit([]byte(s)) + " USING utf8mb4)"
		}
	}
	return "'" + s + "'"
}

// Lock takes the lock and reads the clock in one statement, in that order.
func (r named) Lock(ctx context.Context, s *sqlkit.Session, a *sqlkit.Ask) (sqlkit.Got, error) {
	label, wait := "", "0"
	if a.Wait {
		label, wait = comment(a), strconv.Itoa(forever)
	}
	query := "SELECT " + label + markNew(s) + ", GET_LOCK(" + r.lockOf(a) + ", " + wait + "), " + sysdate + ", CONNECTION_ID(), @@global.read_only"
	script := append(timeout(s, a.TTL), query)
	more := 0
	if r.s.facts().sysdateNow {
		script, more = append(script, "SELECT "+clock), 1
	}
	answers, err := s.Run(ctx, script...)
	if err != nil {
		return sqlkit.Got{}, err
	}
	s.TTL = a.TTL
	marked(s)
	row := answers.First(0)
	got := sqlkit.Got{Token: uint64(row.Int(2)), Slot: driver.NoSlot}
	if more > 0 {
		got.Token = uint64(answers.Last().Int(0))
	}
	switch {
	case row.Int(3) != s.ID.Conn:
		return sqlkit.Got{}, errMoved
	case row.Null(1):
		return sqlkit.Got{}, driver.Errorf(driver.CodeUnknown, "GET_LOCK was interrupted")
	case isReadOnly(row.Text(4)):
		return sqlkit.Got{}, sqlkit.ErrReadOnly
	case !row.True(1):
		return sqlkit.Got{}, sqlkit.ErrBusy
	}
	if r.s.cfg.Durable {
		brief, cancel := sqlkit.TokenWithin(ctx, a)
		answers, err := s.Run(brief, durable(a)...)
		cancel()
		if err == nil {
			got.Token, err = durableOf(answers)
		}
		if err != nil {
			return got, sqlkit.GiveBack(ctx, r, s, err)
		}
	}
	return got, nil
}

// Ping asks the server which session has the lock.
func (r named) Ping(ctx context.Context, s *sqlkit.Session, a *sqlkit.Ask) (bool, error) {
	lock := r.lockOf(a)
	return r.prove(ctx, s, a, r.lockname(a.Key), "SELECT IS_USED_LOCK("+lock+") = CONNECTION_ID()")
}

// errMoved: a session that is not the one it was is no session.
var errMoved = fmt.Errorf("the connection has another number than before: a proxy that shares connections stands between")

// durable raises the floor of tokens, committed before the grant is given.
func durable(a *sqlkit.Ask) []string {
	return []string{fmt.Sprintf("UPDATE holdfast_floor SET token = LAST_INSERT_ID(GREATEST(token + 1, %s)) WHERE bucket = %d", clock, sqlkit.Bucket(a.Key)),
		"SELECT LAST_INSERT_ID(), ROW_COUNT(), " + flush}
}

// durableOf is the token of its answers.
func durableOf(answers sqlkit.Answers) (uint64, error) {
	row := answers.Last()
	switch {
	case !row.True(1):
		return 0, sqlkit.ErrSchema
	case row.Text(2) != flushed:
		return 0, notDurable(row.Text(2))
	}
	return uint64(row.Int(0)), nil
}

// Unlock looks at the server's answer: a lock that the session does not have is
// none of ours.
func (r named) Unlock(ctx context.Context, s *sqlkit.Session, a *sqlkit.Ask) (bool, error) {
	answers, err := s.Run(ctx, "SELECT RELEASE_LOCK("+r.lockOf(a)+"), "+unmark(s, a))
	if err != nil {
		return false, err
	}
	if a.Record {
		r.s.record.end(a.ID)
	}
	return answers.First(0).True(0), nil
}

// Clear gives back a lock that came in the moment of its cancelling.
func (r named) Clear(ctx context.Context, s *sqlkit.Session) error {
	_, err := s.Run(ctx, "SELECT RELEASE_ALL_LOCKS()", "SELECT GET_LOCK("+identityLock(s.ID)+", 0)")
	s.Untold = s.Untold && err != nil
	return err
}

// Survey lists the sessions that have what is written down of them, and those whose
// statements wait.
func (r named) Survey(ctx context.Context, side sqlkit.Link, key []byte, all bool) ([]sqlkit.Sight, []sqlkit.Identity, error) {
	// First the sessions that have yet to write: what they write meanwhile is seen below.
	untold, err := r.untold(ctx, side)
	if err != nil {
		return nil, nil, err
	}
	where := "s.lockname <> ''"
	match := func(l *sqlkit.Label) bool { return bytes.HasPrefix(l.Key, key) }
	if !all {
		where = fmt.Sprintf("s.name = %s AND %s", lit(key), where)
		match = func(l *sqlkit.Label) bool { return bytes.Equal(l.Key, key) }
	}
	sights, err := r.holders(ctx, side, where)
	if err != nil {
		return nil, nil, err
	}
	if !all && len(sights) == 0 {
		a, err := side.Run(ctx, "SELECT IS_USED_LOCK("+asText(r.lockname(key))+")")
		if err != nil {
			return nil, nil, err
		}
		if conn := a.Last().Int(0); conn != 0 {
			s := sqlkit.Sight{Granted: true, Slot: driver.NoSlot, Note: fmt.Sprintf("not of holdfast, or just begun: connection %d", conn)}
			s.Key, s.Limit, s.Conn = key, driver.Exclusive, conn
			sights = append(sights, s)
		}
	}
	waiting, err := r.waiters(ctx, side, match)
	return append(sights, waiting...), untold, err
}
