package sqlkit

import "time"

// alarm is a timer that is set for each statement or lock and seldom fires. It is not stopped, and it is set again only
// for an earlier time: otherwise it would cost more than many of them. The user of an alarm guards it by a mutex.
type alarm struct {
	timer *time.Timer
	at    time.Time // when it fires, zero if it does not
}

// set makes the alarm call f at a time or before. f calls reset first.
func (a *alarm) set(at time.Time, f func()) {
	if !a.at.IsZero() && !at.Before(a.at) {
		return
	}
	a.at = at
	if left := time.Until(at); a.timer == nil {
		a.timer = time.AfterFunc(left, f)
	} else {
		a.timer.Reset(left)
	}
}

// reset records that the alarm has fired.
func (a *alarm) reset() { a.at = time.Time{} }
