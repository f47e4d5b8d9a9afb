package pgstore

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// TestBadInputIsRefused: Open refuses bad input before any I/O. The error names the
// mistake, and never the password.
func TestBadInputIsRefused(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for raw, says := range map[string]string{
		"postgres://u:SeCrEt@h/db?recipe=x":                         "recipe",
		"postgres://u:SeCrEt@h/db?keys=all":                         "keys",
		"postgres://u:SeCrEt@h/db?tokens=x":                         "tokens",
		"postgres://u:SeCrEt@h/db?recipe=optimistic&keys=given":     "given keys",
		"postgres://u:SeCrEt@h/db?recipe=optimistic&tokens=durable": "durable",
		"postgres://u:SeCrEt@h/db?recipe=pessimistic&table=t":       "column",
		"postgres://u:SeCrEt@h/db?table=t&column=c":                 "table of your own",
		"postgres://u:SeCrEt@h/db?recipe=advisory&recipe=advisory":  "more than once",
		"postgres://u:SeCrEt@h/db#x":                                "give postgres",
		"http://u:SeCrEt@h/db":                                      "scheme",
		"postgres://u:SeCrEt@h:bad/db":                              "scheme",
		"postgres://u:SeCrEt@h/db?sslmode=maybe":                    "sslmode",
	} {
		_, err := Open(ctx, raw)
		if driver.CodeOf(err) != driver.CodeInvalid || err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v; want %q", raw, err, says)
		}
		if err != nil && strings.Contains(err.Error(), "SeCrEt") {
			t.Errorf("%s: the password is shown: %v", raw, err)
		}
	}
	if _, err := New(ctx, nil); driver.CodeOf(err) != driver.CodeInvalid {
		t.Errorf("no pool: %v", err)
	}
	if _, err := Open(ctx, "postgres://u@127.0.0.1:1/db", Namespace("a\x00b")); driver.CodeOf(err) != driver.CodeInvalid {
		t.Errorf("a bad namespace: %v", err)
	}
	s, err := Open(ctx, "postgres://u:SeCrEt@127.0.0.1:1/db")
	if err != nil || strings.Contains(s.String(), "SeCrEt") {
		t.Fatalf("%v, %v; want no password", s, err)
	}
	_ = s.Close(ctx)
}
