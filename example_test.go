package holdfast_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/fence"
	"github.com/holdfast-go/holdfast/memstore"
)

// The examples use the memory store so that they run anywhere; a program opens
// the store it has: holdfast.Open(ctx, "file:///var/lib/app/locks").
func open() *holdfast.Locker {
	locker, err := holdfast.New(memstore.New())
	if err != nil {
		panic(err)
	}
	return locker
}

func Example() {
	ctx := context.Background()
	locker := open()
	defer locker.Close(ctx)

	err := locker.Do(ctx, "order/4711", func(ctx context.Context) error {
		// ctx ends when the lock is lost.
		fmt.Println("billing, fencing token", holdfast.Token(ctx, "order/4711"))
		return nil
	})
	fmt.Println(err)
	// Output:
	// billing, fencing token 1
	// <nil>
}

// A cron job that runs on every replica and is to be done by one: the others go
// away, and MinHold keeps one whose clock is a little behind from doing it again.
func ExampleLocker_TryDo() {
	ctx := context.Background()
	locker := open()

	nightly := func() {
		ran, err := locker.TryDo(ctx, "nightly-report", func(context.Context) error {
			return nil // the report
		}, holdfast.MinHold(100*time.Millisecond), holdfast.Reason("nightly report"))
		fmt.Println(ran, err)
	}
	nightly()
	nightly()
	_ = locker.Close(ctx)
	// Output:
	// true <nil>
	// false <nil>
}

// A migration at start-up: every instance waits, one migrates, the others find
// it done.
func ExampleLocker_Do() {
	ctx := context.Background()
	locker := open()
	defer locker.Close(ctx)

	version := 0
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			err := locker.Do(ctx, "schema", func(ctx context.Context) error {
				if version == 1 {
					return nil
				}
				fmt.Println("migrating")
				version = 1
				return ctx.Err()
			}, holdfast.Wait(time.Minute))
			if err != nil {
				fmt.Println(err)
			}
		})
	}
	wg.Wait()
	// Output: migrating
}

// A leader's loop: lead while the lock is held, and stand again when it was
// lost.
func ExampleLocker_Lock() {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	locker := open()
	defer locker.Close(context.Background())

	terms := 0
	for ctx.Err() == nil {
		lock, err := locker.Lock(ctx, "leader/shard-7", holdfast.TTL(10*time.Second))
		if err != nil {
			break // ctx has ended, or the store refuses
		}
		lead := func(ctx context.Context) { // until ctx ends
			terms++
			if terms == 2 {
				stop()
			}
		}
		lead(lock.Context())
		_ = lock.Unlock()
	}
	fmt.Println(terms, "terms")
	// Output: 2 terms
}

// Readers together, a writer alone.
func ExampleShared() {
	ctx := context.Background()
	locker := open()
	defer locker.Close(ctx)

	first, _ := locker.Lock(ctx, "catalogue", holdfast.Shared())
	second, _ := locker.Lock(ctx, "catalogue", holdfast.Shared())
	_, err := locker.TryLock(ctx, "catalogue")
	fmt.Println("a writer beside readers:", errors.Is(err, holdfast.ErrBusy))
	_, _ = first.Unlock(), second.Unlock()
	writer, err := locker.TryLock(ctx, "catalogue")
	fmt.Println("a writer alone:", err)
	_ = writer.Unlock()
	// Output:
	// a writer beside readers: true
	// a writer alone: <nil>
}

// Four GPUs: the slot says which one is ours.
func ExampleLimit() {
	ctx := context.Background()
	locker := open()
	defer locker.Close(ctx)

	for range 2 {
		lock, err := locker.Lock(ctx, "gpu", holdfast.Limit(4))
		if err != nil {
			fmt.Println(err)
			return
		}
		defer lock.Unlock()
		fmt.Println("CUDA_VISIBLE_DEVICES =", lock.Slot())
	}
	// Output:
	// CUDA_VISIBLE_DEVICES = 0
	// CUDA_VISIBLE_DEVICES = 1
}

// Several names: all or none, without deadlock whatever the order.
func ExampleLocker_DoAll() {
	ctx := context.Background()
	locker := open()
	defer locker.Close(ctx)

	err := locker.DoAll(ctx, []string{"account/7", "account/3"}, func(ctx context.Context) error {
		fmt.Println(holdfast.Token(ctx, "account/3") > 0, holdfast.Token(ctx, "account/7") > 0)
		return nil
	})
	fmt.Println(err)
	// Output:
	// true true
	// <nil>
}

// A function that takes a lock may be called by one that holds it.
func ExampleReentrant() {
	ctx := context.Background()
	locker := open()
	defer locker.Close(ctx)

	audit := func(ctx context.Context) error {
		return locker.Do(ctx, "ledger", func(context.Context) error { return nil }, holdfast.Reentrant())
	}
	err := locker.Do(ctx, "ledger", audit)
	fmt.Println(err)
	err = locker.Do(ctx, "ledger", func(ctx context.Context) error {
		return locker.Do(ctx, "ledger", func(context.Context) error { return nil })
	})
	fmt.Println(errors.Is(err, holdfast.ErrSelfDeadlock))
	// Output:
	// <nil>
	// true
}

// An HTTP handler under a lock that tells the resource behind it which grant it
// acts under: the resource refuses the write of a holder that has been overtaken.
func ExampleToken() {
	locker := open()
	defer locker.Close(context.Background())

	var guard fence.Memory // at the resource; fence has others for SQL and files
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		err := locker.Do(r.Context(), "invoice/9", func(ctx context.Context) error {
			return guard.Write(ctx, "invoice/9", holdfast.Token(ctx, "invoice/9"), func(context.Context) error {
				fmt.Fprint(w, "written")
				return nil
			})
		})
		if err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		}
	})
	answer := httptest.NewRecorder()
	handler.ServeHTTP(answer, httptest.NewRequest(http.MethodPost, "/", strings.NewReader("")))
	fmt.Println(answer.Code, answer.Body)
	// Output: 200 written
}

// A test of one's own code: the lock is lost half-way.
func ExampleLostError() {
	ctx := context.Background()
	store := memstore.New()
	locker, _ := holdfast.New(store)
	defer locker.Close(ctx)

	err := locker.Do(ctx, "job", func(ctx context.Context) error {
		_ = store.Script().Lose("job", holdfast.CauseTaken) // as an operator would
		<-ctx.Done()
		return errors.New("stopped after 3 of 5 steps")
	})
	var lost *holdfast.LostError
	fmt.Println(errors.As(err, &lost), lost.Cause, "-", lost.Work)
	// Output: true taken - stopped after 3 of 5 steps
}
