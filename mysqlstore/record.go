package mysqlstore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/holdfast-go/holdfast/internal/sqlkit"
)

// recorder writes down in holdfast_session who holds what, and removes what no longer
// counts. It has connections of its own: a statement on another table could make a
// session's transaction, which is the lock, the victim of a deadlock.
type recorder struct {
	s *Store

	ctx    context.Context // ends with the store
	cancel context.CancelFunc
	tasks  sync.WaitGroup

	mu     sync.Mutex
	closed bool
	retry  time.Time // after a failure, nothing is written before this
	swept  time.Time // when rows of dead sessions were last looked for
	ended  []string  // rows of grants that were given back
	busy   bool      // a task removes rows
}

const (
	// recordWithin bounds one write, for which a renewal waits. The server itself ends
	// sooner one that waits for what others have locked.
	recordWithin = 2 * time.Second
	// connectWithin bounds it on a user's pool, which may have no connection left.
	connectWithin = time.Second / 2
	// recordRetry is how long nothing is written after a failure.
	recordRetry = time.Second / 2
	// removeAfter is how long rows are collected before they are removed together.
	removeAfter = 500 * time.Millisecond
	// sweepAfter is how often a store that writes rows looks for those of dead sessions.
	sweepAfter = 30 * time.Second
	// takenFor is how long such a row stays that says that an operator took the lock,
	// in seconds: its holder may have yet to read that.
	takenFor = 60
	// removeAtOnce is how many rows one statement removes.
	removeAtOnce = 200
)

func newRecorder(s *Store) *recorder {
	r := &recorder{s: s}
	r.ctx, r.cancel = context.WithCancel(context.Background())
	return r
}

// due reports whether a row may be written now.
func (r *recorder) due() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return !r.closed && !time.Now().Before(r.retry)
}

// write writes down who holds a grant, and reports whether it did. The row counts while
// the session has the named lock of the grant, so that a write which arrives late, or
// twice, does no harm.
func (r *recorder) write(ctx context.Context, a *sqlkit.Ask, conn int64, lockname string) bool {
	within := recordWithin
	if r.s.lent {
		within = connectWithin
	}
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	insert, hint := "", ""
	if r.s.facts().maria {
		insert = brieflyMaria
	} else {
		hint = "/*+ SET_VAR(lock_wait_timeout = 1) */ "
	}
	insert += fmt.Sprintf("INSERT "+hint+"INTO holdfast_session (held, conn, name, lockname, token, slot, taken, label) VALUES ('%s', %d, %s, %s, %d, %d, 0, '%s')"+
		" ON DUPLICATE KEY UPDATE taken = holdfast_session.taken",
		grantLock(a.ID), conn, lit(a.Key), lit([]byte(lockname)), a.Token, a.Slot, a.Label.Encode(labelRoom))
	_, err := r.s.commit(ctx, insert)
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil {
		r.retry = time.Now().Add(recordRetry)
		return false
	}
	r.beginLocked()
	return true
}

// end removes the row of a grant that was given back, later and together with others.
func (r *recorder) end(requestID string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended = append(r.ended, grantLock(requestID))
	r.beginLocked()
}

// beginLocked begins the task that removes rows, if there are any to remove: mu is held.
func (r *recorder) beginLocked() {
	if r.busy || r.closed || len(r.ended) == 0 && time.Since(r.swept) < sweepAfter {
		return
	}
	r.busy = true
	r.tasks.Go(func() {
		for r.remove() {
		}
	})
}

// remove removes what has been collected after a moment. It returns false when there is
// no more to do, or that fails; the next row that is written begins anew.
func (r *recorder) remove() bool {
	select {
	case <-time.After(removeAfter):
	case <-r.ctx.Done():
		return false
	}
	r.mu.Lock()
	rows := r.ended
	r.ended = nil
	sweep := time.Since(r.swept) >= sweepAfter
	if sweep {
		r.swept = time.Now()
	}
	r.mu.Unlock()
	ctx, cancel := context.WithTimeout(r.ctx, 10*time.Second)
	defer cancel()
	if sweep {
		dead, _ := r.dead(ctx)
		rows = append(rows, dead...)
	}
	err := r.delete(ctx, rows)
	r.mu.Lock()
	defer r.mu.Unlock()
	if more := len(r.ended) > 0 && err == nil; more {
		return true
	}
	r.busy = false
	return false
}

// dead are rows that no longer count: their sessions have ended. A row is written after
// its session has taken the named lock of the grant.
func (r *recorder) dead(ctx context.Context) (rows []string, err error) {
	a, err := r.s.commit(ctx, fmt.Sprintf("SELECT held FROM holdfast_session WHERE IS_USED_LOCK(CONVERT(held USING utf8mb4)) IS NULL AND taken < %s - %d LIMIT 10000", clock, takenFor*1_000_000))
	if err != nil {
		return nil, err
	}
	for _, row := range a[len(a)-1] {
		rows = append(rows, row.Text(0))
	}
	return rows, nil
}

func (r *recorder) delete(ctx context.Context, rows []string) error {
	for len(rows) > 0 {
		n := min(len(rows), removeAtOnce)
		var list []string
		for _, held := range rows[:n] {
			list = append(list, lit([]byte(held)))
		}
		rows = rows[n:]
		_, err := r.s.commit(ctx, "DELETE FROM holdfast_session WHERE held IN ("+strings.Join(list, ", ")+")")
		if my, answered := errors.AsType[*mysql.MySQLError](err); answered && my.Number == errDeadlock {
			continue // a later sweep finds them
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// close ends the task. Rows that are left no longer count, and another store removes them.
func (r *recorder) close() {
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	r.cancel()
	r.tasks.Wait()
}

var _ sqlkit.Recorder = sessions{}
