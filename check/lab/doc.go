// Package lab contains the classic mistakes of distributed locks. Package check convicts each of them. So
// a reader sees the effect of a mistake, and a test shows that the check finds it.
//
// Each [Mistake] is a lock as in many programs, on a small key-value server in this process, wrong in one
// respect. [Run] lets workers compete for it under the faults that expose the mistake, and returns the
// verdict. The check acquits the same lock without a mistake, [Control].
package lab
