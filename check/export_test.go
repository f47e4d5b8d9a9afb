//go:build linux || darwin

package check

// Explain makes explain available to the tests in package check_test.
var Explain = explain
