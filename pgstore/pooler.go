package pgstore

import (
	"context"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/sqlkit"
)

// direct reports whether there is no pooler between the client and the server. A pooler
// sends a number of its own for cancellation, and a server sends the number of the backend.
func direct(ctx context.Context, l *pgLink) (bool, error) {
	a, err := l.Run(ctx, "SELECT pg_catalog.pg_backend_pid()")
	return err == nil && int64(l.conn.PID()) == a.Last().Int(0), err
}

// moves reports whether the backend of a session changes between its transactions, as it
// does behind a pooler in transaction mode. Such a pooler assigns the backend that was used
// last. moves begins a transaction on another session, which gets that backend, so that the
// first session gets another one. A busy pooler may not do that, so moves tries several
// times. In addition, each grant compares the backend. moves leaves nothing in a backend.
func moves(ctx context.Context, l sqlkit.Link, dial dialer) (bool, error) {
	const backend = "SELECT pg_catalog.pg_backend_pid()"
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
