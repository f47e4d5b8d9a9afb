// Package servertest skips tests if their servers are missing.
package servertest

import (
	"errors"
	"os"
	"testing"

	"github.com/holdfast-go/holdfast/internal/must"
	"github.com/holdfast-go/holdfast/internal/servers"
)

// Missing skips t because of err: a program that t needs is missing. With
// HOLDFAST_REQUIRE_SERVERS=1 it fails t instead.
func Missing(t testing.TB, err error) {
	t.Helper()
	if os.Getenv("HOLDFAST_REQUIRE_SERVERS") == "1" {
		t.Fatal(err)
	}
	t.Skip(err)
}

// Started calls Missing if err reports that a server is not installed. It fails t for any other
// error, and does nothing if err is nil.
func Started(t testing.TB, err error) {
	t.Helper()
	if errors.Is(err, servers.ErrNotInstalled) {
		Missing(t, err)
	}
	Check(t, err)
}

// Check ends t at an error.
var Check = must.Succeed
