package fence_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"

	"github.com/holdfast-go/holdfast/fence"
	"github.com/holdfast-go/holdfast/fence/fencetest"
)

func TestGuardMemory(t *testing.T) {
	var guard fence.Memory
	var mu sync.Mutex
	contents := map[string]string{}
	fencetest.Run(t, fencetest.Harness[fence.Func]{
		Guard: &guard,
		Write: func(resource, content string) fence.Func {
			return func(context.Context) error {
				mu.Lock()
				defer mu.Unlock()
				contents[resource] = content
				return nil
			}
		},
		Read: func(_ testing.TB, resource string) string {
			mu.Lock()
			defer mu.Unlock()
			return contents[resource]
		},
	})
}

func TestGuardFiles(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("no flock")
	}
	dir := t.TempDir()
	guard, err := fence.NewFiles(dir)
	if err != nil {
		t.Fatal(err)
	}
	other, err := fence.NewFiles(dir)
	if err != nil {
		t.Fatal(err)
	}
	fencetest.Run(t, fencetest.Harness[[]byte]{
		Guard: guard, Other: other,
		Write: func(_, content string) []byte { return []byte(content) },
		Read: func(t testing.TB, resource string) string {
			data, err := os.ReadFile(filepath.Join(dir, resource))
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				t.Error(err)
			}
			return string(data)
		},
	})
}
