// Package lab contains the classic mistakes of distributed locks. Package check convicts
// each of them. So a reader sees the effect of a mistake, and a test shows that the check
// finds it.
//
// Each [Mistake] is a lock as many programs have it, wrong in one respect. It uses a small
// key-value server in this process. [Run] lets workers compete for the lock under the
// faults that expose the mistake, and returns the verdict. The check acquits the same lock
// without a mistake, [Control].
package lab
