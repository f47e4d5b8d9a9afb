//go:build linux || darwin

package check

// Explain is for the tests outside of the package.
var Explain = explain
