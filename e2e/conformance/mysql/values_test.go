package mysql

import (
	"testing"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/mysqlstore"
)

// TestReadOnlyServerWritesNoValue requires that a Put that a read-only server refuses has no effect, although
// the server executes the statements of a user with special rights.
func TestReadOnlyServerWritesNoValue(t *testing.T) {
	t.Parallel()
	m := another(t)
	s := mariadb.StoreAt(t, m.Address, mariadb.Home, "recipe=optimistic").(*mysqlstore.Store)
	check(t, s.Init(t.Context()))
	version, err := s.Put(t.Context(), "old", []byte("1"), "")
	check(t, err)
	set(t, m, "SET GLOBAL read_only = 1")
	for key, expected := range map[string]string{"old": version, "new": ""} {
		if v, err := s.Put(t.Context(), key, []byte("2"), expected); s.Classify(err) != driver.CodeRefused {
			t.Errorf("Put(%q) = %q, %v; want refused", key, v, err)
		}
	}
	set(t, m, "SET GLOBAL read_only = 0")
	if data, v, err := s.Get(t.Context(), "old"); err != nil || string(data) != "1" || v != version {
		t.Errorf("old: %q, version %q, %v; want 1, version %q", data, v, err, version)
	}
	if data, v, err := s.Get(t.Context(), "new"); err != nil || v != "" {
		t.Errorf("new: %q, version %q, %v; want none", data, v, err)
	}
}
