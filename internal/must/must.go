// Package must ends a test at an error that the test does not expect.
package must

import "testing"

// Succeed ends t if err is not nil.
func Succeed(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Report fails t if err is not nil, and lets it continue.
func Report(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}
