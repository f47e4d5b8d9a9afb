// Package wakeup sends wake-ups that coalesce. Its fallback wakes a waiter whose wake-up was lost.
package wakeup

// Send wakes the goroutine that receives from c. If c is full, an earlier wake-up was not
// received yet, and stands for this one, too.
func Send(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
