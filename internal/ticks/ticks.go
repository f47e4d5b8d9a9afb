// Package ticks has the clock of schedules, the names of their locks, and the reason that these record. Each tick of
// Locker.Every has two locks; the command shows those of a job as one.
package ticks

import (
	"fmt"
	"strings"
	"time"
)

// The kinds of a tick's locks.
const (
	Claim  = "tick"
	Marker = "run"
)

// Slots is the number of slots of a day.
const Slots = 16

// Lock returns the name of a job's lock. Odd is set for the slots of odd days.
func Lock(job, kind, slot string) string { return job + ":" + kind + "-" + slot }

// Slot returns the name of a slot: whether its day is odd, and its number within the day.
func Slot(odd int64, n int) string { return fmt.Sprintf("%d-%02d", odd, n%Slots) }

// Locks returns the names of a job's locks: the markers, then the claims.
func Locks(job string) (names []string) {
	for _, kind := range []string{Marker, Claim} {
		for odd := range int64(2) {
			for n := range Slots {
				names = append(names, Lock(job, kind, Slot(odd, n)))
			}
		}
	}
	return names
}

const layout = time.RFC3339Nano

// Reason returns the reason that the locks of a tick record.
func Reason(at time.Time) string { return "tick " + at.UTC().Format(layout) }

// At returns the tick of a reason, and false if it is not of a tick.
func At(reason string) (time.Time, bool) {
	text, ok := strings.CutPrefix(reason, "tick ")
	at, err := time.Parse(layout, text)
	return at, ok && err == nil
}

// Job returns the job and the kind of a lock, and false for the name of another lock.
func Job(name string) (job, kind string, ok bool) {
	i := strings.LastIndexByte(name, ':')
	if i < 0 {
		return "", "", false
	}
	job = name[:i]
	kind, slot, _ := strings.Cut(name[i+1:], "-")
	for odd := range int64(2) {
		for n := range Slots {
			if slot == Slot(odd, n) {
				return job, kind, kind == Claim || kind == Marker
			}
		}
	}
	return "", "", false
}
