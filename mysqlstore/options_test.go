package mysqlstore

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// TestBadInputIsRefused: Open refuses bad input before any I/O. The error names the mistake,
// and never the password.
func TestBadInputIsRefused(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for raw, says := range map[string]string{
		"mysql://u:SeCrEt@h/db?recipe=x":                         "recipe",
		"mysql://u:SeCrEt@h/":                                    "schema",
		"mysql://u:SeCrEt@h/a/b":                                 "schema",
		"mysql://u:SeCrEt@h/db?names=all":                        "names",
		"mysql://u:SeCrEt@h/db?tokens=x":                         "tokens",
		"mysql://u:SeCrEt@h/db?names=exact":                      "exact names",
		"mysql://u:SeCrEt@h/db?recipe=optimistic&tokens=durable": "durable",
		"mysql://u:SeCrEt@h/db?table=t":                          "column",
		"mysql://u:SeCrEt@h/db?table=t&column=a%20b":             "column",
		"mysql://u:SeCrEt@h/db?recipe=named&recipe=named":        "more than once",
		"mysql://u:SeCrEt@h/db?socket=/x":                        "socket",
		"mysql://u:SeCrEt@h/db#x":                                "give mysql",
		"http://u:SeCrEt@h/db":                                   "scheme",
		"mysql://u:SeCrEt@h:bad/db":                              "scheme",
		"mysql://u:SeCrEt@h/db?parseTime=maybe":                  "parameters",
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
	if _, err := Open(ctx, "mysql://u@127.0.0.1:1/db", Namespace("a\x00b")); driver.CodeOf(err) != driver.CodeInvalid {
		t.Errorf("a bad namespace: %v", err)
	}
	s, err := Open(ctx, "mysql://u:SeCrEt@127.0.0.1:1/db")
	if err != nil || strings.Contains(s.String(), "SeCrEt") {
		t.Fatalf("%v, %v; want no password", s, err)
	}
	_ = s.Close(ctx)
}
