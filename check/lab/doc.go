// Package lab makes the classic mistakes of distributed locks on purpose, and lets
// package check convict them: to see what a mistake looks like, and that the check
// finds it.
//
// Each [Mistake] is a lock as it stands in many programs, on a small key-value
// server in this process, wrong in one respect. [Run] lets workers compete for it
// under the faults that bring the mistake to light, and answers the verdict. The
// same lock without a mistake, [Control], is acquitted.
package lab
