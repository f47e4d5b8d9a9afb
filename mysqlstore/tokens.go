package mysqlstore

import (
	"fmt"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/sqlkit"
)

// clock is the time of the statement in microseconds since 1970. UTC_TIMESTAMP does not
// depend on the session's time zone.
const clock = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))"

// sysdate is the time of its evaluation in microseconds since 1970, in a session whose time
// zone is UTC. NOW and UTC_TIMESTAMP are evaluated before the wait.
const sysdate = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6))"

// pause returns an expression that waits for one microsecond per token of a request.
func pause(a *sqlkit.LockRequest) string {
	return fmt.Sprintf("SLEEP(%.6f)", (time.Duration(a.ClockTokens()) * time.Microsecond).Seconds())
}

// clocks returns statements that read the clock, and for several tokens a second time after a
// pause. They are for servers on which SYSDATE is the time of the statement.
func clocks(a *sqlkit.LockRequest, pause string) []string {
	if a.ClockTokens() == 1 {
		return []string{"SELECT " + clock}
	}
	return []string{"SELECT " + clock, "DO " + pause, "SELECT " + clock}
}

// raiseHighWater returns the statements that raise the high-water mark of tokens, and commit it. The
// mark becomes the larger of the clock and one more than the mark before. The last answer has the
// mark before, the number of changed rows, the value of flush, and the clock.
func raiseHighWater(a *sqlkit.LockRequest) []string {
	return []string{"SET @hf_now = " + clock,
		fmt.Sprintf("UPDATE holdfast_floor SET token = GREATEST(LAST_INSERT_ID(token) + 1, @hf_now) WHERE bucket = %d", sqlkit.Bucket(a.Key)),
		"SELECT LAST_INSERT_ID(), ROW_COUNT(), " + flush + ", @hf_now"}
}

// countedGrant returns got with the tokens in the answers to raiseHighWater.
func countedGrant(a *sqlkit.LockRequest, got sqlkit.Got, answers sqlkit.Answers, err error) (sqlkit.Got, error) {
	if err != nil {
		return got, err
	}
	row := answers.Last()
	before, changed, flushing, now := row.Int(0), row.True(1), row.Text(2), row.Int(3)
	switch {
	case !changed:
		return got, sqlkit.ErrSchema
	case flushing != flushed:
		return got, notDurable(flushing)
	}
	return a.Counted(got, before, max(before+1, now)), nil
}

const (
	// flush is the setting that decides whether a commit is on disk when the server acknowledges
	// it. It is, if the setting has the value flushed.
	flush        = "@@global." + flushSetting
	flushSetting = "innodb_flush_log_at_trx_commit"
	flushed      = "1"
)

// notDurable is the error for durable tokens on a server that forgets commits.
func notDurable(value string) error {
	return driver.Errorf(driver.CodeRefused, "mysqlstore: tokens=durable: the server has innodb_flush_log_at_trx_commit=%s, so that a crash forgets commits: set it to %s", value, flushed)
}
