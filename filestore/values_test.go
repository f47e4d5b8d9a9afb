//go:build linux || darwin

package filestore_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/drivertest"
	"github.com/holdfast-go/holdfast/filestore"
	"github.com/holdfast-go/holdfast/internal/must"
)

func TestValues(t *testing.T) {
	dir := tempDir(t)
	open := func(t testing.TB, namespace string) *filestore.Store {
		s, err := filestore.Open(t.Context(), dir, filestore.Namespace(namespace))
		must.Succeed(t, err)
		return s
	}
	drivertest.RunValues(t, open)

	// Put has left no temporary file behind. A file with other content is not a value.
	files, err := filepath.Glob(filepath.Join(dir, "values", ".new-*"))
	if err != nil || len(files) != 0 {
		t.Errorf("left behind: %v, %v", files, err)
	}
	files, err = filepath.Glob(filepath.Join(dir, "values", "[0-9a-f]*"))
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	s := open(t, "")
	defer s.Close(t.Context())
	for _, content := range []string{"no version", "version\nk\n" + strings.Repeat("x", 1<<20)} {
		for _, f := range files {
			must.Succeed(t, os.WriteFile(f, []byte(content), 0o600))
		}
		if _, _, err := s.Get(t.Context(), "k"); s.Classify(err) != driver.CodeRefused {
			t.Errorf("a damaged file of %d bytes: %v", len(content), err)
		}
	}
}
