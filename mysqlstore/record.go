package mysqlstore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/internal/calls"
	"github.com/holdfast-go/holdfast/internal/sqlkit"
)

// recorder records holders in holdfast_session, and removes rows that no longer count. It
// has connections of its own: a statement on another table could make a session's
// transaction, which is the lock, the victim of a deadlock.
type recorder struct {
	s     *store
	calls *calls.Calls

	mu    sync.Mutex
	retry time.Time // after a failure, nothing is written before this
	swept time.Time // when rows of dead sessions were last removed
	ended []string  // rows of released grants
	busy  bool      // a task removes rows
}

const (
	// recordWithin limits one write, for which a renewal waits. The server ends a write that
	// waits for a lock sooner.
	recordWithin = 2 * time.Second
	// connectWithin limits one write on a user's pool, which may have no free connection.
	connectWithin = time.Second / 2
	// recordRetry is how long the client writes nothing after a failure.
	recordRetry = time.Second / 2
	// removeAfter is how long the client collects rows before it removes them together.
	removeAfter = 500 * time.Millisecond
	// removeWithin limits one removal.
	removeWithin = 10 * time.Second
	// sweepAfter is the interval at which a writing client removes rows of dead sessions.
	sweepAfter = 30 * time.Second
	// takenFor is how long, in seconds, the row of a broken grant stays, so that its holder
	// can still read it.
	takenFor = 60
	// removeAtOnce is the number of rows that one statement removes.
	removeAtOnce = 200
)

func newRecorder(s *store) *recorder {
	return &recorder{s: s, calls: calls.New()}
}

// due reports whether a row may be written now.
func (r *recorder) due() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return !r.calls.Stopped() && !time.Now().Before(r.retry)
}

// write records the holder of a grant, and reports whether that succeeded. The row counts
// while the session has the named lock of the grant, so that a late or repeated write does
// no harm.
func (r *recorder) write(ctx context.Context, a *sqlkit.LockRequest, conn int64, lockname string) bool {
	within := recordWithin
	if r.s.dialer == nil {
		within = connectWithin
	}
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	// MariaDB ignores the hint.
	insert := fmt.Sprintf(brieflyMaria+"INSERT /*+ SET_VAR(lock_wait_timeout = 1) */ INTO holdfast_session (held, conn, name, lockname, token, slot, taken, label) VALUES ('%s', %d, %s, %s, %d, %d, 0, '%s')"+
		" ON DUPLICATE KEY UPDATE taken = holdfast_session.taken",
		grantLock(a.ID), conn, lit(a.Key), lit([]byte(lockname)), a.Token, a.Slot, a.Label.Encode(labelBytes))
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

// end removes the row of a released grant, later and together with others.
func (r *recorder) end(requestID string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended = append(r.ended, grantLock(requestID))
	r.beginLocked()
}

// beginLocked starts the task that removes rows, if there are any. The caller holds mu.
func (r *recorder) beginLocked() {
	if r.busy || len(r.ended) == 0 && time.Since(r.swept) < sweepAfter {
		return
	}
	r.busy = r.calls.Go(func() {
		for r.remove() {
		}
	})
}

// remove waits for removeAfter, and then removes the collected rows. It returns false when nothing is
// left, or after a failure. The next row that is written or ended starts a new task.
func (r *recorder) remove() bool {
	if backoff.Sleep(r.calls.Ctx, removeAfter) != nil {
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
	ctx, cancel := context.WithTimeout(r.calls.Ctx, removeWithin)
	defer cancel()
	if sweep {
		dead, _ := r.dead(ctx)
		rows = append(rows, dead...)
	}
	err := r.delete(ctx, rows)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.busy = len(r.ended) > 0 && err == nil
	return r.busy
}

// dead returns the rows whose sessions have ended: no session has the named lock of their
// grants. A session takes this lock before the client writes the row.
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
			continue // a later sweep removes them
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// close ends the task. The remaining rows no longer count, and another client removes them.
func (r *recorder) close() {
	r.calls.Stop()
	r.calls.Cancel()
	r.calls.Tasks.Wait()
}
