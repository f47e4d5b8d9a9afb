package shape

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/must"
	"github.com/holdfast-go/holdfast/memstore"
)

// TestJobOfEveryIsOneRow: all locks that Every leaves at the store are one row, beside another lock of the job's name.
func TestJobOfEveryIsOneRow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, err := holdfast.New(memstore.New())
		must.Succeed(t, err)
		defer l.Close(context.Background())
		var last time.Time
		for tick, err := range l.Every(t.Context(), "a:job", holdfast.Period(time.Minute)) {
			must.Succeed(t, err)
			if last = tick.Time; last.Minute() == 20 {
				break
			}
		}
		for _, name := range []string{"a", "a:job", "a:job:tick-0-99", "a:job:run-1-00"} {
			k, err := l.Lock(t.Context(), name, holdfast.Reason("mine"))
			must.Succeed(t, err)
			defer k.Unlock()
		}
		var states []holdfast.State
		for st, err := range l.List(t.Context(), "") {
			must.Succeed(t, err)
			states = append(states, st)
		}
		var rows []string
		for _, st := range Jobs(states, "a") {
			h := st.Holders[0]
			rows = append(rows, st.Name+", "+h.Reason+", "+h.Note)
		}
		want := []string{"a, mine, ", "a:job, mine, ", "a:job, tick " + last.Format(time.RFC3339) + ", N locks of Every",
			"a:job:run-1-00, mine, ", "a:job:tick-0-99, mine, "}
		if len(states) < 8 || len(rows) != len(want) {
			t.Fatalf("%d locks, rows %q", len(states), rows)
		}
		for i, row := range rows {
			if before, after, found := strings.Cut(want[i], "N"); row != want[i] && (!found || !strings.HasPrefix(row, before) || !strings.HasSuffix(row, after)) {
				t.Errorf("row %q, want %q", row, want[i])
			}
		}
		if got := Jobs(states, "a:job:"); len(got) != len(states) {
			t.Errorf("a longer prefix: %d rows of %d locks", len(got), len(states))
		}
	})
}
