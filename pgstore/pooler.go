package pgstore

import (
	"context"
	"crypto/rand"

	"github.com/holdfast-go/holdfast/driver/sqlkit"
)

// poolerMoves tells whether a session goes from one backend to another between its
// transactions, as it does behind a pooler in transaction mode. A server that tells
// its client the same number as its backend has is none. Else something is left in
// the session, and looked for from another while that has a transaction open: such a
// pooler gives out the backend that was used last. A busy one may not, so that it is
// asked several times; and each grant compares the backend again.
func (s *Store) poolerMoves(ctx context.Context, l sqlkit.Link) (bool, error) {
	a, err := l.Run(ctx, "SELECT pg_backend_pid()")
	if err != nil {
		return false, err
	}
	if p, ok := l.(*pgLink); ok && int64(p.conn.PID()) == a.Last().Int(0) {
		return false, nil
	}
	other, err := s.dial(ctx)
	if err != nil {
		return false, err
	}
	defer other.Close()
	const look = "SELECT current_setting('holdfast.probe', true)"
	for range 5 {
		left := rand.Text()
		if _, err := l.Run(ctx, "SELECT set_config('holdfast.probe', '"+left+"', false)"); err != nil {
			return false, err
		}
		theirs, err := other.Run(ctx, "BEGIN", look)
		if err != nil {
			return false, err
		}
		mine, err := l.Run(ctx, look)
		if err != nil {
			return false, err
		}
		if _, err := other.Run(ctx, "ROLLBACK"); err != nil {
			return false, err
		}
		if theirs.Last().Text(0) == left || mine.Last().Text(0) != left {
			return true, nil
		}
	}
	return false, nil
}
