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

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/fence"
	"github.com/holdfast-go/holdfast/fence/fencetest"
	"github.com/holdfast-go/holdfast/memstore"
)

func TestMemoryPassesFencetest(t *testing.T) {
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

func TestFilesPassFencetest(t *testing.T) {
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

// TestPausedHolderInMemory: on the memory store, the grant of A ends while A continues, and B
// writes. Module e2e repeats this with processes on every other store.
func TestPausedHolderInMemory(t *testing.T) {
	store := memstore.New()
	a, err := holdfast.New(store)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close(context.Background())
	b, err := holdfast.New(store.Client())
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close(context.Background())
	lockA, err := a.Lock(t.Context(), "n")
	if err != nil {
		t.Fatal(err)
	}
	_ = store.Script().Lose("n", holdfast.CauseExpired)
	lockB, err := b.Lock(t.Context(), "n")
	if err != nil {
		t.Fatal(err)
	}
	var guard fence.Memory
	content := ""
	write := func(by string) fence.Func {
		return func(context.Context) error { content = by; return nil }
	}
	if err := guard.Write(t.Context(), "n", lockB.Token(), write("B")); err != nil {
		t.Fatal(err)
	}
	fencetest.Stale(t, guard.Write(t.Context(), "n", lockA.Token(), write("A")), lockA.Token(), lockB.Token())
	if content != "B" {
		t.Errorf("after the guarded write of A the content is %q", content)
	}
	if _ = write("A")(t.Context()); content != "A" {
		t.Errorf("without a guard the content is %q", content)
	}
}
