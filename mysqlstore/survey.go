package mysqlstore

import (
	"bytes"
	"context"
	"encoding/hex"
	"fmt"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/sqlkit"
)

// survey returns the holders of a recipe that are recorded, and the waiters: of one name, or of all names that begin
// with the key. recipe is the condition for the recipe's rows of holdfast_session, and waits that for a session
// whose statement waits. missing is the error for grants that could not be recorded.
func (r sessions) survey(ctx context.Context, side sqlkit.Link, key []byte, all bool, recipe, waits string) (
	sights []sqlkit.Sight, missing, err error,
) {
	if missing, err = r.unrecorded(ctx, side); err != nil {
		return nil, nil, err
	}
	name, matches := "s.name", bytes.Equal
	if all {
		name, matches = fmt.Sprintf("LEFT(s.name, %d)", len(key)), bytes.HasPrefix
	}
	holders, err := r.holders(ctx, side, "holdfast_session", recipe+" AND "+name+" = "+lit(key))
	if err != nil {
		return nil, nil, err
	}
	waiters, err := r.waiters(ctx, side, func(l *sqlkit.Label) bool { return matches(l.Key, key) }, waits)
	return append(holders, waiters...), missing, err
}

// unrecorded returns missing if sessions have grants that they could not record. It returns ErrReadOnly from a
// server that was demoted.
func (r sessions) unrecorded(ctx context.Context, side sqlkit.Link) (missing, err error) {
	a, err := side.Run(ctx, "SELECT @@global.read_only, COUNT(*) FROM "+r.processes()+" p WHERE IS_USED_LOCK(CONCAT(_utf8mb4'hf:unrecorded:', id)) = id")
	if err != nil {
		return nil, err
	}
	row := a.Last()
	if isReadOnly(row.Text(0)) {
		return nil, sqlkit.ErrReadOnly
	}
	if n := row.Int(1); n > 0 {
		missing = driver.Errorf(driver.CodeUnavailable, "mysqlstore: %d sessions hold locks that they could not record in holdfast_session, so that not all holders can be shown: the table is locked or full, or their user has no right to INSERT", n)
	}
	return missing, nil
}

// holders returns the sessions whose grants a table records. It finds the numbers that the
// sessions have on this server by the named locks of their grants.
func (r sessions) holders(ctx context.Context, side sqlkit.Link, table, where string) ([]sqlkit.Sight, error) {
	a, err := side.Run(ctx, "SELECT s.now, s.token, s.slot, s.label, p.micros, p.command, s.held, HEX(s.name) FROM"+
		" (SELECT IS_USED_LOCK(CONVERT(s.held USING utf8mb4)) AS now, s.held, s.token, s.slot, s.label, s.name FROM "+table+" s WHERE "+where+") s"+
		" LEFT JOIN "+r.processes()+" p ON p.id = s.now WHERE s.now IS NOT NULL")
	if err != nil {
		return nil, err
	}
	var sights []sqlkit.Sight
	for _, row := range a[len(a)-1] {
		label, ok := sqlkit.FindLabel(row.Text(3))
		if !ok {
			key, err := hex.DecodeString(row.Text(7))
			if err != nil {
				return nil, err
			}
			broken := driver.Broken("holdfast_session "+string(key), "its label cannot be decoded")
			sights = append(sights, sqlkit.Sight{Label: sqlkit.Label{Key: key}, Broken: broken})
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

// processes returns a query for the server's list of sessions, with the microseconds since
// each of them changed its state.
func (r sessions) processes() string {
	return "(SELECT id, host, command, state, info, /*M! CAST(time_ms * 1000 AS SIGNED) */ /*!50700 time * 1000000 */ AS micros FROM information_schema.processlist)"
}
