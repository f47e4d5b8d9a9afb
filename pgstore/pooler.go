package pgstore

import (
	"context"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/sqlkit"
)

// direct reports whether no pooler stands before the server: a pooler gives its client
// a number of its own for cancelling, and a server the number of the backend.
func direct(ctx context.Context, l *pgLink) (bool, error) {
	a, err := l.Run(ctx, "SELECT pg_backend_pid()")
	return err == nil && int64(l.conn.PID()) == a.Last().Int(0), err
}

// moves reports whether a session goes from one backend to another between its
// transactions, as it does behind a pooler in transaction mode. Such a pooler gives out
// the backend that was used last: to the transaction of another session, while which
// the first gets another backend. A busy pooler may not, so that it is tried several
// times; and each grant compares the backend again. Nothing is left in a backend.
func moves(ctx context.Context, l sqlkit.Link, dial dialer) (bool, error) {
	if p, ok := l.(*pgLink); ok {
		if is, err := direct(ctx, p); is || err != nil {
			return false, err
		}
	}
	const backend = "SELECT pg_backend_pid()"
	first, err := l.Run(ctx, backend)
	if err != nil {
		return false, err
	}
	other, err := dial(ctx)
	if err != nil {
		if ctx.Err() != nil {
			return false, driver.Errorf(driver.CodeUnavailable, "no second connection, by which a pooler in transaction mode would be seen: %w", err)
		}
		return false, err
	}
	defer other.Close()
	for range 5 {
		theirs, err := other.Run(ctx, "BEGIN", backend)
		if err != nil {
			return false, err
		}
		mine, err := l.Run(ctx, backend)
		if err != nil {
			return false, err
		}
		if _, err := other.Run(ctx, "ROLLBACK"); err != nil {
			return false, err
		}
		if id := first.Last().Int(0); theirs.Last().Int(0) == id || mine.Last().Int(0) != id {
			return true, nil
		}
	}
	return false, nil
}
