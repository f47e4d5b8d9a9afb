//go:build linux || darwin

package main_test

import (
	"strings"
	"testing"
)

// TestInitReportsStatusWithoutPasswords: init does nothing at a store that needs no tables. It ends
// with the right status after bad usage and for an unreachable database, and prints no password.
// The tests in e2e use real databases.
func TestInitReportsStatusWithoutPasswords(t *testing.T) {
	w := newSandbox(t)
	url := w.file("url", w.storeURL()+"\n")
	for _, r := range []result{
		w.run("init", w.storeURL()), w.run("init", "--store-file", url),
		w.runIn([]string{"HOLDFAST_STORE=" + w.storeURL()}, "", "init"), w.runIn([]string{"HOLDFAST_STORE_FILE=" + url}, "", "init"),
	} {
		r.expectStatus(t, 0)
		if !strings.Contains(r.stderr, "needs no tables") || strings.Contains(r.stderr, "warning") {
			t.Errorf("stderr: %q", r.stderr)
		}
	}
	for _, c := range []struct {
		args    []string
		status  int
		message string
	}{
		{[]string{"init", "a:", "b:"}, 64, "one URL"},
		{[]string{"init", "mysql://u:SeCrEt@127.0.0.1/"}, 64, "schema"},
		{[]string{"init", "mysql://u:SeCrEt@127.0.0.1:1/x"}, 69, "unavailable"},
		{[]string{"init", "postgres://u:SeCrEt@127.0.0.1:1/x"}, 69, "unavailable"},
	} {
		r := w.run(c.args...).expectStatus(t, c.status)
		if !strings.Contains(r.stderr, c.message) || strings.Contains(r.stderr, "SeCrEt") {
			t.Errorf("%q: %q", c.args, r.stderr)
		}
	}
}
