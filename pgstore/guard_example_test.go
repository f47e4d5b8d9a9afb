package pgstore_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/fence"
	"github.com/holdfast-go/holdfast/pgstore"
)

// The guard begins the transaction, compares, and commits after the write.
func ExampleGuard() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, "postgres://localhost/app")
	if err != nil {
		panic(err)
	}
	defer pool.Close()
	locker, err := holdfast.Open(ctx, "postgres://localhost/app?recipe=optimistic")
	if err != nil {
		panic(err)
	}
	defer locker.Close(ctx)
	guard := pgstore.Guard{DB: pool}
	pay := func(ctx context.Context) error {
		_, err := pgstore.Tx(ctx).Exec(ctx, "UPDATE invoices SET paid = true WHERE id = $1", 17)
		return err
	}

	err = locker.Do(ctx, "invoices", func(ctx context.Context) error {
		return guard.Write(ctx, "invoices", holdfast.Token(ctx, "invoices"), pay)
	})
	fmt.Println(err)
	// A holder that was paused has an older token.
	fmt.Println(errors.Is(guard.Write(ctx, "invoices", 1, pay), fence.ErrStale))
	// With a server that has the tables of fence.SQL, of the recipe and of the program it
	// prints:
	// <nil>
	// true
}
