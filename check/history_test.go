//go:build linux || darwin

package check

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/must"
)

func TestHistoryKeepsCompleteLines(t *testing.T) {
	path := filepath.Join(t.TempDir(), "h.jsonl")
	log, err := newLog(path, "w1")
	must.Succeed(t, err)
	before := machineTime()
	log.Add(Event{K: kindLock, Name: "a<b>\u2028\"", Limit: driver.Unlimited, Op: 1})
	log.Add(Event{K: kindKill, W: "w2", T: 7})
	must.Succeed(t, log.Close())
	// A worker that is killed while it writes a line leaves a part of the line.
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	must.Succeed(t, err)
	if _, err := f.WriteString(`{"t":99,"k":"gra`); err != nil {
		t.Fatal(err)
	}
	must.Succeed(t, f.Close())
	events, err := ReadFiles(path)
	if err != nil || len(events) != 2 {
		t.Fatalf("%d events, %v; want 2", len(events), err)
	}
	kill, request := events[0], events[1]
	if kill.T != 7 || kill.W != "w2" || kill.K != kindKill {
		t.Errorf("the first in time: %+v", kill)
	}
	if request.W != "w1" || request.T < before || request.T > machineTime() || request.Name != "a<b>\u2028\"" || request.Limit != driver.Unlimited {
		t.Errorf("as written: %+v", request)
	}
	if _, err := newLog(path, ""); err == nil {
		t.Error("a history was begun in the file of another")
	}
	if _, err := readHistory(strings.NewReader("{}\nnonsense\n")); err == nil || !strings.Contains(err.Error(), "line 2") {
		t.Errorf("a line that is no event: %v", err)
	}
	if _, err := Judge(nil); err == nil {
		t.Error("an empty history has a verdict")
	}
}
