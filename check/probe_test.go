//go:build linux || darwin

package check

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/must"
)

// keeper is a store that keeps a lock after its release, and whose first answer to that is lost. It finds no
// grant at the repetition.
type keeper struct {
	driver.Store
	codes []driver.Code
}

func (k *keeper) Release(context.Context, driver.Grant, time.Duration) error {
	code := k.codes[0]
	k.codes = k.codes[1:]
	if code == done {
		return nil
	}
	return driver.Errorf(code, "scripted")
}

// done is the code of a release without an error.
const done driver.Code = -1

func (k *keeper) Classify(err error) driver.Code { return driver.CodeOf(err) }

// TestRepeatedReleaseDoesNotFreeKeptLock: a release with a MinHold had no answer, and its repetition finds no
// grant. The store may keep the lock. A first release that finds no grant shows that the name is free.
func TestRepeatedReleaseDoesNotFreeKeptLock(t *testing.T) {
	for name, c := range map[string]struct {
		codes []driver.Code
		want  []Kind
	}{
		"after a lost answer":                 {[]driver.Code{driver.CodeUnknown, driver.CodeNotHeld}, []Kind{kindUnsure}},
		"after an answer that the link loses": {[]driver.Code{done, driver.CodeNotHeld}, []Kind{kindLeave}},
		"at the first release":                {[]driver.Code{driver.CodeNotHeld}, []Kind{kindFreed}},
		"after two lost answers":              {[]driver.Code{driver.CodeUnknown, driver.CodeUnknown, driver.CodeNotHeld}, []Kind{kindUnsure, kindUnsure}},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), HistoryFile)
			log, err := newLog(path, "w1")
			must.Succeed(t, err)
			p := newProbe(&keeper{codes: c.codes}, log, 1)
			for _, code := range c.codes {
				if code == done {
					p.link.Lose(1)
				}
				if err := p.Release(t.Context(), driver.Grant{ID: "a", Name: "n", Token: 1}, time.Minute); err == nil {
					t.Fatal("a release without an error")
				}
			}
			must.Succeed(t, log.Close())
			events, err := ReadFiles(path)
			if err != nil || len(events) != len(c.want) {
				t.Fatalf("%+v, %v, want %v", events, err, c.want)
			}
			for i, e := range events {
				if e.K != c.want[i] {
					t.Errorf("%s, want %s", e.K, c.want[i])
				}
			}
		})
	}
}
