//go:build linux || darwin

package filestore_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/drivertest"
	"github.com/holdfast-go/holdfast/filestore"
)

func TestConformance(t *testing.T) {
	dir := tempDir(t)
	drivertest.Run(t, drivertest.Harness{
		Open: func(t testing.TB, namespace string) driver.Store {
			s, err := filestore.Open(context.Background(), dir, filestore.Namespace(namespace))
			if err != nil {
				t.Fatal(err)
			}
			return s
		},
		OpenWithoutFallback: func(t testing.TB, namespace string) driver.Store {
			s, err := filestore.Open(context.Background(), dir, filestore.Namespace(namespace))
			if err != nil {
				t.Fatal(err)
			}
			s.NoFallback()
			return s
		},
		Leftovers: func(t testing.TB) []string { return leftovers(t, dir) },
	})
}

// leftovers returns the entries and the session files that are left in the directory.
func leftovers(t testing.TB, dir string) (left []string) {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, "sessions", "*"))
	if err != nil {
		t.Fatal(err)
	}
	left = append(left, paths...)
	paths, err = filepath.Glob(filepath.Join(dir, "buckets", "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range paths {
		raw, err := os.ReadFile(p)
		if err != nil {
			t.Fatal(err)
		}
		if n, err := filestore.Entries(raw); err != nil || n > 0 {
			left = append(left, fmt.Sprintf("%s: %d entries, %v", p, n, err))
		}
	}
	return left
}
