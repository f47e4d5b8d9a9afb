package pgstore_test

import (
	"context"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/pgstore"
)

// The guard begins the transaction, compares, and commits after the write.
func ExampleGuard() {
	save := func(ctx context.Context, pool *pgxpool.Pool) error {
		guard := pgstore.Guard{DB: pool}
		return guard.Write(ctx, "invoices", holdfast.Token(ctx, "invoices"), func(ctx context.Context) error {
			_, err := pgstore.Tx(ctx).Exec(ctx, "UPDATE invoices SET paid = true WHERE id = $1", 17)
			return err
		})
	}
	_ = save
}
