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

// A cron job starts on every replica, and one replica does the work. The other replicas
// return at once. MinHold keeps a replica with a late clock from doing the work again.
func ExampleLocker_TryDo() {
	ctx := context.Background()
	locker := open()
	defer locker.Close(ctx)

	nightly := func() {
		ran, err := locker.TryDo(ctx, "nightly-report", func(context.Context) error {
			return nil // the report
		}, holdfast.MinHold(100*time.Millisecond), holdfast.Reason("nightly report"))
		fmt.Println(ran, err)
	}
	nightly()
	nightly()
	// Output:
	// true <nil>
	// false <nil>
}

// At start-up every instance waits for the lock. The first one migrates the schema, and the
// others find it migrated.
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

// One of many replicas leads until SIGTERM. Lead campaigns again after a loss and after
// an outage of the store.
func ExampleLocker_Lead() {
	// ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	locker := open()
	defer locker.Close(context.Background())

	terms := 0
	err := locker.Lead(ctx, "leader/shard-7", func(ctx context.Context) error {
		if terms++; terms == 2 {
			stop() // like a SIGTERM
		}
		<-ctx.Done() // lead until ctx ends
		return ctx.Err()
	}, holdfast.TTL(10*time.Second), holdfast.MaxHold(50*time.Millisecond))
	fmt.Println(terms, "terms:", errors.Is(err, context.Canceled))
	// Output: 2 terms: true
}

// Any process can follow the leader, with the token of the term.
func ExampleLocker_Leaders() {
	ctx, stop := context.WithTimeout(context.Background(), time.Minute)
	defer stop()
	locker := open()
	defer locker.Close(context.Background())

	_ = locker.Lead(ctx, "leader/shard-8", func(ctx context.Context) error {
		for leader, err := range locker.Leaders(ctx, "leader/shard-8") {
			if err != nil {
				continue // the store is away, and Leaders continues
			}
			if leader.Token == holdfast.Token(ctx, "leader/shard-8") {
				fmt.Println("this process leads:", leader.Self)
				return nil // resign
			}
		}
		return ctx.Err()
	})
	// Output: this process leads: true
}

// A job runs on every replica at fixed times, and one of them does the work.
func ExampleLocker_Every() {
	ctx, stop := context.WithTimeout(context.Background(), time.Minute)
	defer stop()
	locker := open()
	defer locker.Close(context.Background())

	// A cron schedule serves as well, such as that of robfig/cron's ParseStandard.
	for tick, err := range locker.Every(ctx, "heartbeat", holdfast.Period(time.Second)) {
		if err != nil {
			continue // log it: a missed tick, or the store was away
		}
		fmt.Println("once on all replicas, with", tick.Time.Nanosecond(), "ns")
		break
	}
	// Output: once on all replicas, with 0 ns
}

// A service stops at SIGTERM. It stops waiting at once, and finishes the work that it has
// begun, under the lock.
func ExampleWaitContext() {
	// ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	ctx, sigterm := context.WithCancel(context.Background())
	defer sigterm()
	locker := open()
	defer locker.Close(context.Background())

	err := locker.Do(context.WithoutCancel(ctx), "order/4712", func(ctx context.Context) error {
		sigterm()
		fmt.Println("while the order is billed:", ctx.Err())
		return nil
	}, holdfast.WaitContext(ctx))
	fmt.Println(err)
	err = locker.Do(context.WithoutCancel(ctx), "order/4713", func(context.Context) error {
		return nil
	}, holdfast.WaitContext(ctx))
	fmt.Println("the next order:", errors.Is(err, context.Canceled))
	// Output:
	// while the order is billed: <nil>
	// <nil>
	// the next order: true
}

// The work ends at SIGTERM, and records how far it has come. The lock is held until that is
// done.
func ExampleDrainContext() {
	// ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	ctx, sigterm := context.WithCancel(context.Background())
	defer sigterm()
	locker := open()
	defer locker.Close(context.Background())

	save := func(ctx context.Context, items int) error {
		fmt.Println("saved after", items, "items:", ctx.Err())
		return nil
	}
	err := locker.Do(ctx, "import", func(ctx context.Context) error {
		items := 0
		for ; ctx.Err() == nil; items++ {
			if items == 2 {
				sigterm()
			}
		}
		return save(holdfast.DrainContext(ctx), items)
	})
	fmt.Println(err)
	// Output:
	// saved after 3 items: <nil>
	// <nil>
}

// A caller uses a handle instead of a function, and handles each error.
func ExampleLocker_Lock() {
	ctx := context.Background()
	locker := open()
	defer locker.Close(ctx)

	lock, err := locker.Lock(ctx, "invoice/7", holdfast.Wait(10*time.Second))
	switch {
	case errors.Is(err, context.Canceled): // the caller's context has ended
	case errors.Is(err, holdfast.ErrBusy): // held during the whole wait: try later
	case errors.Is(err, holdfast.ErrUnavailable): // the store is away: try later, and alert
	}
	if err != nil {
		fmt.Println(err)
		return
	}
	defer lock.Unlock()
	fmt.Println("writing, with a token:", lock.Token() > 0)
	// Output: writing, with a token: true
}

// Readers hold the lock together, a writer holds it alone.
func ExampleShared() {
	ctx := context.Background()
	locker := open()
	defer locker.Close(ctx)

	err := locker.Do(ctx, "catalogue", func(context.Context) error {
		return locker.Do(ctx, "catalogue", func(context.Context) error { // for example on another goroutine
			ran, err := locker.TryDo(ctx, "catalogue", func(context.Context) error { return nil })
			fmt.Println("a writer beside readers:", ran)
			return err
		}, holdfast.Shared())
	}, holdfast.Shared())
	if err != nil {
		fmt.Println(err)
		return
	}
	err = locker.Do(ctx, "catalogue", func(context.Context) error { return nil })
	fmt.Println("a writer alone:", err)
	// Output:
	// a writer beside readers: false
	// a writer alone: <nil>
}

// Four GPUs share a limit; the slot is the number of the GPU to use.
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

// A caller locks several names: all or none, without deadlock in any order.
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

// A function that takes a lock may be called by a function that holds it.
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

// An HTTP handler writes to a resource under a lock, and sends the lock's fencing token with
// the write. The resource refuses a write whose token is smaller than the largest that it has
// seen.
func ExampleToken() {
	locker := open()
	defer locker.Close(context.Background())

	var guard fence.Memory // the guard at the resource; fence has others for SQL and files
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

// A test of an application simulates that an operator breaks the lock during the work.
func ExampleLostError() {
	ctx := context.Background()
	store := memstore.New()
	locker, _ := holdfast.New(store)
	defer locker.Close(ctx)

	err := locker.Do(ctx, "job", func(ctx context.Context) error {
		_ = store.Script().Lose("job", holdfast.CauseTaken) // an operator breaks the lock
		<-ctx.Done()
		return errors.New("stopped after 3 of 5 steps")
	})
	var lost *holdfast.LostError
	fmt.Println(errors.As(err, &lost), lost.Cause, "-", lost.Work)
	// Output: true taken - stopped after 3 of 5 steps
}
