//go:build linux || darwin

package check_test

import (
	"context"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/check"
	"github.com/holdfast-go/holdfast/check/checktest"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/explore"
	"github.com/holdfast-go/holdfast/internal/must"
	"github.com/holdfast-go/holdfast/memstore"
)

func TestMain(m *testing.M) {
	check.MaybeWorker()
	flag.Parse()
	// A check waits most of its time, so more checks run at a time than the machine has
	// cores.
	if err := flag.Set("test.parallel", "4"); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

func TestMemoryStoreKeepsTheRules(t *testing.T) { tortureLocal(t, "memory") }

func TestFileStoreKeepsTheRules(t *testing.T) { tortureLocal(t, "file") }

func tortureLocal(t *testing.T, local string) {
	t.Parallel()
	// With two rounds the test shows that tokens continue to rise after all clients ended.
	r := checktest.Run(t, check.Config{Local: local, Duration: 20 * time.Second, Round: 10 * time.Second})
	kinds, err := check.FaultKinds(t.Context(), check.Config{Local: local})
	must.Succeed(t, err)
	// A plan may have no room for a kind, and the fault break may find no holder. A busy
	// machine may begin a fault too late.
	if len(r.Stats.Faults) < len(kinds)/2 {
		t.Errorf("of the faults %v only %v were injected", kinds, r.Stats.Faults)
	}
	if r.Stats.Grants < 100 || r.Stats.Queued == 0 || r.Stats.Writes == 0 {
		t.Errorf("%+v: the test tests little", r.Stats)
	}
	for _, name := range []string{check.HistoryFile, check.PageFile} {
		if st, err := os.Stat(filepath.Join(r.Dir, name)); err != nil || st.Size() == 0 {
			t.Errorf("%s: %v", name, err)
		}
	}
	explore.Replay(t, filepath.Join(r.Dir, check.HistoryFile))
}

// TestHistoryFileGivesTheSameVerdict judges the history file of a run again.
func TestHistoryFileGivesTheSameVerdict(t *testing.T) {
	t.Parallel()
	r := checktest.Run(t, check.Config{Local: "memory", Duration: time.Second, Faults: []string{}})
	events, err := check.ReadFiles(filepath.Join(r.Dir, check.HistoryFile))
	must.Succeed(t, err)
	again, err := check.Judge(events)
	must.Succeed(t, err)
	again.Stats.Took, r.Stats.Took = 0, 0
	if !reflect.DeepEqual(again.Stats, r.Stats) {
		t.Errorf("judged again: %+v, at first: %+v", again.Stats, r.Stats)
	}
}

// TestCallersTargetIsTested runs a check on a store that its caller defines.
func TestCallersTargetIsTested(t *testing.T) {
	t.Parallel()
	store := memstore.New()
	var begun atomic.Int64
	r := checktest.Run(t, check.Config{Duration: 2 * time.Second, Target: &check.Target{
		Open: func(context.Context) (driver.Store, error) { return store.Client(), nil },
		Faults: []check.StoreFault{{Kind: "own", Begin: func(context.Context, check.Fault) error {
			begun.Add(1)
			return nil
		}}},
	}, Faults: []string{"own"}})
	if n := begun.Load(); n == 0 || int64(r.Stats.Faults["own"]) != n {
		t.Errorf("the caller's own fault began %d times and was counted %d times", n, r.Stats.Faults["own"])
	}
}

func TestInvalidConfigIsRefused(t *testing.T) {
	for says, c := range map[string]check.Config{
		"give one of":             {},
		"Local \"nope\"":          {Local: "nope"},
		"Duration":                {Local: "memory", Duration: time.Millisecond},
		"Round":                   {Local: "memory", Round: time.Hour},
		"TTL":                     {Local: "memory", TTL: time.Millisecond},
		"Workers":                 {Local: "memory", Workers: 1000},
		"Lanes":                   {Local: "memory", Lanes: -1},
		"Names":                   {Local: "memory", Names: -1},
		"does not apply to":       {Local: "memory", Faults: []string{"kill"}},
		"opens its stores itself": {Target: &check.Target{}, Namespace: "n"},
		"Namespace":               {Local: "memory", Namespace: "a\xff"},
		"use Local":               {URL: "memory://"},
		"is not linked in":        {URL: "nope://user:secret@host"},
	} {
		c.Dir = t.TempDir()
		_, err := check.Run(t.Context(), c)
		if !errors.Is(err, holdfast.ErrInvalid) || !strings.Contains(err.Error(), says) {
			t.Errorf("%+v: %v, want an error that says %q", c, err, says)
		}
		if err != nil && strings.Contains(err.Error(), "secret") {
			t.Errorf("%v: contains the password", err)
		}
	}
}

// TestFailedOpenNamesTheContract requires that the error names the contract that a store
// breaks if its Open fails while no server answers.
func TestFailedOpenNamesTheContract(t *testing.T) {
	_, err := check.Run(t.Context(), check.Config{Dir: t.TempDir(), Target: &check.Target{
		Open: func(context.Context) (driver.Store, error) { return nil, errors.New("dial: connection refused") },
	}})
	if want := "if no server answers, it must return a store"; !errors.Is(err, holdfast.ErrUnavailable) || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "driver.Opener") {
		t.Errorf("%v, want an error that says %q and names driver.Opener", err, want)
	}
}
