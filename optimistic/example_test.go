package optimistic_test

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/holdfast-go/holdfast/fence"
	"github.com/holdfast-go/holdfast/optimistic"
)

// An update changes a row of a table that has a version column.
func ExampleRows() {
	ctx := context.Background()
	db, err := sql.Open("mysql", "root@tcp(localhost)/app")
	if err != nil {
		panic(err)
	}
	defer db.Close()
	type account struct{ Amount int64 }
	accounts := optimistic.Rows[account]{
		DB: db, Dialect: fence.MySQL, Table: "balances", Key: "id", Version: "version",
		Columns: []string{"amount"}, Fields: func(a *account) []any { return []any{&a.Amount} },
	}

	err = accounts.Update(ctx, 18, func(_ context.Context, a *account) error {
		a.Amount -= 10
		return nil
	})
	fmt.Println(err)
	fmt.Println(accounts.Get(ctx, 18))
	// With a server whose row 18 had the amount 100 and the version 0 it prints:
	// <nil>
	// {90} 1 <nil>
}

// An update changes a value in an object store.
func ExampleHTTP() {
	ctx := context.Background()
	// Client signs the requests, where the server requires it.
	values := optimistic.HTTP{URL: "https://bucket.s3.eu-central-1.amazonaws.com/state"}
	err := optimistic.Update(ctx, values, "log", func(_ context.Context, old []byte) ([]byte, error) {
		return append(old, "started\n"...), nil
	})
	fmt.Println(err)
	data, _, err := optimistic.Get(ctx, values, "log")
	fmt.Printf("%q %v\n", data, err)
	// With a bucket that has no such object it prints:
	// <nil>
	// "started\n" <nil>
}
