package holdfasttest_test

import (
	"context"
	"fmt"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/fence"
	"github.com/holdfast-go/holdfast/holdfasttest"
)

// A partition lasts for longer than the TTL, so the service loses its lock.
func ExampleStore() {
	ctx := context.Background()
	store := holdfasttest.NewStore()
	locker, err := holdfast.New(store)
	if err != nil {
		fmt.Println(err)
		return
	}
	lock, err := locker.Lock(ctx, "report", holdfast.TTL(100*time.Millisecond))
	if err != nil {
		fmt.Println(err)
		return
	}
	store.Partition()
	<-lock.Context().Done()
	fmt.Println(context.Cause(lock.Context()))
	store.Heal()
	_ = lock.Unlock()
	_ = locker.Close(ctx)
	// Output: holdfast: "report" on memory: lock lost (expired), token 1: cut off: context deadline exceeded (injected)
}

// report prints what a run has found.
func report(findings []holdfasttest.Finding, err error) {
	for _, f := range findings {
		fmt.Println(f)
	}
	fmt.Println(len(findings), "findings, error:", err)
}

// A job writes under a lock, without a guard. If it stands still between its last look at the context and the
// write, it overwrites what the next holder has written.
func ExampleLoseAtEachStep() {
	report(holdfasttest.LoseAtEachStep(func() holdfasttest.Service {
		balance := 0
		return func(s *holdfasttest.Store, step holdfasttest.Step) error {
			locker, err := holdfast.New(s)
			if err != nil {
				return err
			}
			defer locker.Close(context.Background())
			return locker.Do(context.Background(), "account/7", func(ctx context.Context) error {
				read := balance
				return step("write", func() error {
					balance = read + 10
					return nil
				})
			})
		}
	}))
	// Output:
	// the lock was lost within step "write", and step "write" took effect
	// 1 findings, error: <nil>
}

// The same job writes through a guard, which refuses the token of a holder before.
func ExampleLoseAtEachStep_guard() {
	report(holdfasttest.LoseAtEachStep(func() holdfasttest.Service {
		balance, guard := 0, &fence.Memory{}
		return func(s *holdfasttest.Store, step holdfasttest.Step) error {
			locker, err := holdfast.New(s)
			if err != nil {
				return err
			}
			defer locker.Close(context.Background())
			return locker.Do(context.Background(), "account/7", func(ctx context.Context) error {
				read, token := balance, holdfast.Token(ctx, "account/7")
				return step("write", func() error {
					return guard.Write(ctx, "account/7", token, func(context.Context) error {
						balance = read + 10
						return nil
					})
				})
			})
		}
	}))
	// Output: 0 findings, error: <nil>
}

// A migration makes two changes and does not look at its context between them.
func ExampleLoseAtEachStep_migration() {
	report(holdfasttest.LoseAtEachStep(func() holdfasttest.Service {
		version := 0
		change := func(to int) func() error {
			return func() error { version = to; return nil }
		}
		return func(s *holdfasttest.Store, step holdfasttest.Step) error {
			locker, err := holdfast.New(s)
			if err != nil {
				return err
			}
			defer locker.Close(context.Background())
			return locker.Do(context.Background(), "migration", func(ctx context.Context) error {
				if version == 2 {
					return nil
				}
				if err := step("add the column", change(1)); err != nil {
					return err
				}
				return step("fill the column", change(2))
			})
		}
	}))
	// Output:
	// the lock was lost within step "add the column", and step "add the column" took effect
	// the lock was lost after step "add the column", and step "fill the column" took effect
	// the lock was lost within step "fill the column", and step "fill the column" took effect
	// 3 findings, error: <nil>
}

// A leader sends messages, which no guard refuses. It looks at its context before each. So it sends at most the one
// that it has begun: all findings are within a step.
func ExampleLoseAtEachStep_leader() {
	findings, err := holdfasttest.LoseAtEachStep(func() holdfasttest.Service {
		return func(s *holdfasttest.Store, step holdfasttest.Step) error {
			locker, err := holdfast.New(s)
			if err != nil {
				return err
			}
			defer locker.Close(context.Background())
			return locker.Lead(context.Background(), "sender", func(ctx context.Context) error {
				for range 3 {
					if ctx.Err() != nil {
						return ctx.Err() // Lead waits to lead again
					}
					if err := step("send", func() error { return nil }); err != nil {
						return err
					}
				}
				return nil
			})
		}
	})
	for _, f := range findings {
		if !f.Within {
			fmt.Println(f)
		}
	}
	fmt.Println(len(findings), "findings, error:", err)
	// Output: 3 findings, error: <nil>
}
