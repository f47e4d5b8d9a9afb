package mysqlstore

import (
	"context"
	"database/sql"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/driver/sqlkit"
)

// failover is a link to a server that has a session of every number.
type failover struct {
	sqlkit.Link
	start  int64
	slow   int // seconds that it takes to tell its age, the next time
	asked  int
	killed []string
}

func (l *failover) Run(_ context.Context, statements ...string) (sqlkit.Answers, error) {
	text := func(n int64) sql.NullString { return sql.NullString{String: strconv.FormatInt(n, 10), Valid: true} }
	var all sqlkit.Answers
	for _, s := range statements {
		const uptime = 100_000
		switch {
		case strings.HasPrefix(s, "SHOW"):
			all = append(all, sqlkit.Rows{{{String: "Uptime", Valid: true}, text(uptime)}})
		case s == "SELECT "+unix:
			l.asked++
			all = append(all, sqlkit.Rows{{text(l.start + uptime - int64(l.slow))}})
			l.slow = max(l.slow-5, 0)
		case strings.HasPrefix(s, "SELECT"):
			all = append(all, sqlkit.Rows{{text(1), text(l.start + uptime)}})
		default:
			l.killed = append(l.killed, s)
		}
	}
	return all, nil
}

// TestOtherServer: a session is gone from a server that has not started when its own
// did, earlier or later, and a stranger who has its number there is left alone.
func TestOtherServer(t *testing.T) {
	const began = 1_700_000_000
	id := sqlkit.Identity{Conn: 7, Since: strconv.Itoa(began)}
	for off, same := range map[int64]bool{-500: false, -2: true, 0: true, 2: true, 500: false} {
		l := &failover{start: began + off}
		gone, err := sessions{}.End(t.Context(), l, id)
		if err != nil || gone == same {
			t.Errorf("started %+d s: gone %t, %v", off, gone, err)
		}
		if err := (sessions{}).Cancel(t.Context(), l, id); err != nil {
			t.Error(err)
		}
		var want []string
		if same {
			want = []string{"KILL 7", "KILL QUERY 7"}
		}
		if !slices.Equal(l.killed, want) {
			t.Errorf("started %+d s: %q; want %q", off, l.killed, want)
		}
	}
}

// TestSlowToTellItsAge: a server that takes seconds between the time and its age is asked
// again, as they do not go together.
func TestSlowToTellItsAge(t *testing.T) {
	const began = 1_700_000_000
	id := sqlkit.Identity{Conn: 7, Since: strconv.Itoa(began)}
	l := &failover{start: began, slow: 10}
	if gone, err := (sessions{}).End(t.Context(), l, id); err != nil || gone || l.asked != 3 {
		t.Errorf("gone %t, %v; asked %d times, want 3", gone, err, l.asked)
	}
	l = &failover{start: began, slow: 100}
	if gone, err := (sessions{}).End(t.Context(), l, id); err == nil || gone || len(l.killed) > 0 {
		t.Errorf("gone %t, %v, %q", gone, err, l.killed)
	}
}
