//go:build !linux && !darwin

package driver

import "time"

// suspended is unknown on this system. The core still notices a suspend by the wall clock, and
// by the store's answers.
func suspended() time.Duration { return 0 }
