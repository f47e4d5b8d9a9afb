package optimistic_test

import (
	"context"
	"database/sql"
	"net/http"

	"github.com/holdfast-go/holdfast/fence"
	"github.com/holdfast-go/holdfast/optimistic"
)

// A table of your own with a version column.
func ExampleRows() {
	type account struct{ Balance int64 }

	withdraw := func(ctx context.Context, db *sql.DB, id, amount int64) error {
		accounts := optimistic.Rows[account]{
			DB: db, Dialect: fence.MySQL, Table: "accounts", Key: "id", Version: "version",
			Columns: []string{"balance"}, Fields: func(a *account) []any { return []any{&a.Balance} },
		}
		return accounts.Update(ctx, id, func(_ context.Context, a *account) error {
			a.Balance -= amount
			return nil
		})
	}
	_ = withdraw
}

// The values of an object store.
func ExampleHTTP() {
	count := func(ctx context.Context, signing *http.Client) error {
		values := optimistic.HTTP{URL: "https://bucket.s3.eu-central-1.amazonaws.com/state", Client: signing}
		return optimistic.Update(ctx, values, "log", func(_ context.Context, old []byte) ([]byte, error) {
			return append(old, "started\n"...), nil
		})
	}
	_ = count
}
