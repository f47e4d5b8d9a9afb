package fence_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"

	"github.com/holdfast-go/holdfast/fence"
	"github.com/holdfast-go/holdfast/memstore"
)

// The first holder is paused, a second one takes over, and the late write of the
// first is refused.
func ExampleMemory() {
	var guard fence.Memory
	ctx := context.Background()
	total := 0
	add := func(n int) func(context.Context) error {
		return func(context.Context) error { total += n; return nil }
	}

	const first, second = 33, 34 // lock.Token() of each

	fmt.Println(guard.Write(ctx, "invoices", first, add(1)))
	fmt.Println(guard.Write(ctx, "invoices", second, add(10)))
	fmt.Println(guard.Write(ctx, "invoices", first, add(100)))
	fmt.Println("total", total)
	// Output:
	// <nil>
	// <nil>
	// fence: stale token: "invoices" has seen token 34, this write carries 33: a newer holder is at work
	// total 11
}

// A holder that reads before it writes raises the token before it reads.
func ExampleFiles() {
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	files, err := fence.NewFiles(dir)
	if errors.Is(err, fence.ErrUnsupported) {
		return
	}
	ctx := context.Background()

	fmt.Println(files.Write(ctx, "state.json", 33, []byte(`{"next": 7}`)))
	fmt.Println(files.Raise(ctx, "state.json", 34))
	state, _ := os.ReadFile(filepath.Join(dir, "state.json"))
	fmt.Printf("%s\n", state)

	var stale *fence.StaleError
	if err := files.Write(ctx, "state.json", 33, []byte(`{"next": 8}`)); errors.As(err, &stale) {
		fmt.Println("refused:", stale.Token, "after", stale.Newest)
	}
	// Output:
	// <nil>
	// <nil>
	// {"next": 7}
	// refused: 33 after 34
}

// The server refuses a stale request, and the client learns both tokens.
func ExampleHandler() {
	var guard fence.Memory
	save := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Println("saved", r.PathValue("id")) })
	mux := http.NewServeMux()
	mux.Handle("PUT /invoices/{id}", fence.Handler(&guard, func(r *http.Request) string { return r.PathValue("id") }, save))
	srv := httptest.NewServer(mux)
	defer srv.Close()

	for _, token := range []uint64{34, 33} {
		req, _ := http.NewRequest("PUT", srv.URL+"/invoices/17", nil)
		if err := fence.SetHeader(req, token); err != nil {
			panic(err)
		}
		resp, err := srv.Client().Do(req)
		if err != nil {
			panic(err)
		}
		fmt.Println(resp.StatusCode, fence.FromResponse(resp))
		resp.Body.Close()
	}
	// Output:
	// saved 17
	// 200 <nil>
	// 412 fence: stale token: "17" has seen token 34, this write carries 33: a newer holder is at work
}

// The token changes in the same transaction as the rows that it guards.
func ExampleSQL_Check() {
	guard := fence.SQL{Dialect: fence.PostgreSQL}
	pay := func(ctx context.Context, db *sql.DB, token uint64) error {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer tx.Rollback() // does nothing after a commit
		if err := guard.Check(ctx, tx, "invoice/17", token); err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, "UPDATE invoices SET paid = true WHERE id = $1", 17); err != nil {
			return err
		}
		return tx.Commit()
	}

	db, err := sql.Open("pgx", "postgres://localhost/app")
	if err != nil {
		panic(err)
	}
	defer db.Close()
	const first, second = 33, 34 // lock.Token() of each
	fmt.Println(pay(context.Background(), db, second))
	fmt.Println(errors.Is(pay(context.Background(), db, first), fence.ErrStale))
	// With a server that has both tables it prints:
	// <nil>
	// true
}

// A migration creates the table with the statement that Schema returns.
func ExampleSQL_Schema() {
	schema, _ := fence.SQL{Dialect: fence.SQLite}.Schema()
	fmt.Println(schema)
	// Output:
	// CREATE TABLE IF NOT EXISTS holdfast_fence (
	// 	resource BLOB NOT NULL PRIMARY KEY,
	// 	token    INTEGER NOT NULL
	// ) WITHOUT ROWID
}

// Account 17 carries the token of its last writer in a column of its own.
func ExampleColumn() {
	ctx := context.Background()
	db, err := sql.Open("mysql", "root@tcp(localhost)/app")
	if err != nil {
		panic(err)
	}
	defer db.Close()
	guard := fence.Column{Dialect: fence.MySQL, Table: "balances", Key: "id", Column: "fence"}.Guard(db, nil)
	debit := func(ctx context.Context) error {
		_, err := fence.Tx(ctx).ExecContext(ctx, "UPDATE balances SET amount = amount - 1 WHERE id = 17")
		return err
	}

	const first, second = 33, 34 // lock.Token() of each
	fmt.Println(guard.Write(ctx, "17", second, debit))
	fmt.Println(guard.Write(ctx, "17", first, debit))
	// With a server that has the row it prints:
	// <nil>
	// fence: stale token: "balances id=17" has seen token 34, this write carries 33: a newer holder is at work
}

// The client sends the token of the lock in its context. If the lock has ended, the client does
// not send the request.
func ExampleTransport() {
	var guard fence.Memory
	srv := httptest.NewServer(fence.Handler(&guard, func(r *http.Request) string { return r.URL.Path },
		http.HandlerFunc(func(http.ResponseWriter, *http.Request) { fmt.Println("saved") })))
	defer srv.Close()

	token := uint64(34) // in a program: holdfast.Token(ctx, "invoices")
	client := &http.Client{Transport: fence.Transport{Token: func(context.Context) uint64 { return token }}}
	for _, token = range []uint64{34, 33, 0} {
		resp, err := client.Post(srv.URL+"/invoices", "", nil)
		if err != nil {
			fmt.Println("not sent:", errors.Is(err, fence.ErrInvalid))
			continue
		}
		fmt.Println(resp.StatusCode, fence.FromResponse(resp))
		resp.Body.Close()
	}
	// Output:
	// saved
	// 200 <nil>
	// 412 fence: stale token: "/invoices" has seen token 34, this write carries 33: a newer holder is at work
	// not sent: true
}

// An object store that compares versions keeps token and content in one object.
func ExampleObjects() {
	// In a program: optimistic.HTTP{URL: "https://bucket.s3.amazonaws.com/state", Client: signing}
	guard := fence.Objects{Values: memstore.New()}
	ctx := context.Background()

	fmt.Println(guard.Write(ctx, "report.json", 34, []byte("new")))
	fmt.Println(guard.Write(ctx, "report.json", 33, []byte("late")))
	content, token, err := guard.Read(ctx, "report.json")
	fmt.Println(string(content), token, err)
	// Output:
	// <nil>
	// fence: stale token: "report.json" has seen token 34, this write carries 33: a newer holder is at work
	// new 34 <nil>
}

// Each permit of a semaphore is a resource of its own.
func ExampleSlot() {
	var guard fence.Memory
	ctx := context.Background()
	fmt.Println(guard.Raise(ctx, fence.Slot("gpu", 0), 41)) // lock.Slot(), lock.Token()
	fmt.Println(guard.Raise(ctx, fence.Slot("gpu", 1), 40))
	fmt.Println(guard.Raise(ctx, fence.Slot("gpu", 0), 39))
	// Output:
	// <nil>
	// <nil>
	// fence: stale token: "gpu#0" has seen token 41, this write carries 39: a newer holder is at work
}

// A reader under a shared lock checks after it has read that no newer writer came between.
func ExampleVerify() {
	var guard fence.Memory
	ctx := context.Background()
	_ = guard.Raise(ctx, "ledger", 50) // a writer

	for _, token := range []uint64{52, 51, 49} { // readers; those of 52 and 51 hold the lock together
		// read the ledger, then
		fmt.Println(fence.Verify(ctx, &guard, "ledger", token))
	}
	// Output:
	// <nil>
	// <nil>
	// fence: stale token: "ledger" has seen token 50, this write carries 49: a newer holder is at work
}
