package servertest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/servers"
)

// RefusedLogins is a process whose login the server refuses.
type RefusedLogins struct {
	Row    string // the first words of a row in docs/security.md
	Client *holdfast.Locker
	Busy   string // a name that another client holds
	// Refuse makes the server refuse the login, and ends the connections. Accept makes it accept the login again.
	Refuse, Accept func()
	Count          func() int // the logins so far
}

// Test requires that the process logs in no more often than the table says, and goes on after Accept. The process has a
// holder, a waiter and a candidate for an election, and repeats each request.
func (r RefusedLogins) Test(t *testing.T) {
	t.Helper()
	page, err := os.ReadFile("../../../docs/security.md")
	Check(t, err)
	row := regexp.MustCompile(`(?mi)^\| ` + regexp.QuoteMeta(r.Row) + `[^|]*\| (\d+) \|`).FindSubmatch(page)
	if row == nil {
		t.Fatalf("docs/security.md has no row %q", r.Row)
	}
	aMinute, err := strconv.Atoi(string(row[1]))
	Check(t, err)

	_, err = r.Client.Lock(t.Context(), "held")
	Check(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	running.Go(func() {
		for ctx.Err() == nil {
			_, _ = r.Client.Lock(ctx, r.Busy)
			time.Sleep(50 * time.Millisecond)
		}
	})
	leads := make(chan struct{}, 1)
	running.Go(func() {
		_ = r.Client.Lead(ctx, "leader", func(ctx context.Context) error {
			select {
			case leads <- struct{}{}:
			default:
			}
			<-ctx.Done()
			return ctx.Err()
		})
	})
	<-leads

	before, began, refused := r.Count(), time.Now(), 0
	r.Refuse()
	for {
		trying, end := context.WithTimeout(t.Context(), 4*time.Second)
		if _, err := r.Client.TryLock(trying, "free"); errors.Is(err, holdfast.ErrRefused) {
			refused++
		}
		end()
		enough := refused >= 100 || refused > 0 && time.Since(began) > 4*time.Second
		if enough && (testing.Short() || time.Since(began) > time.Minute) {
			break
		}
		if enough {
			time.Sleep(10 * time.Millisecond)
		}
	}
	n := r.Count() - before
	t.Logf("%s: %d logins in %s", r.Row, n, time.Since(began))
	if most := aMinute * (1 + int(time.Since(began)/time.Minute)); n > most {
		t.Errorf("%d logins in %s, want at most %d a minute", n, time.Since(began), aMinute)
	}
	r.Accept()
	began = time.Now()
	Check(t, servers.Until(t.Context(), func() error {
		k, err := r.Client.TryLock(t.Context(), "free")
		if err != nil {
			return fmt.Errorf("after the login is accepted again: %w", err)
		}
		return k.Unlock()
	}))
	t.Logf("%s: a lock %s after the right password", r.Row, time.Since(began).Round(time.Millisecond))
}
