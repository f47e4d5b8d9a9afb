package fence_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/fence"
	"github.com/holdfast-go/holdfast/fence/fencetest"
	"github.com/holdfast-go/holdfast/internal/must"
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

// pausing are values with a pause between the read and the write of each update.
type pausing struct{ driver.Values }

func (p pausing) Put(ctx context.Context, key string, data []byte, version string) (string, error) {
	time.Sleep(2 * time.Millisecond)
	return p.Values.Put(ctx, key, data, version)
}

// careless are values whose Put ignores the version.
type careless struct{ driver.Values }

func (c careless) Put(ctx context.Context, key string, data []byte, _ string) (version string, err error) {
	for {
		_, version, err = c.Get(ctx, key)
		if err != nil {
			return "", err
		}
		if version, err = c.Values.Put(ctx, key, data, version); driver.CodeOf(err) != driver.CodeConflict || err == nil {
			return version, err
		}
	}
}

func objects(t *testing.T, values driver.Values) {
	guard := fence.Objects{Values: pausing{values}}
	fencetest.Run(t, fencetest.Harness[[]byte]{
		Guard: guard, NeedsContent: true,
		Write: func(_, content string) []byte { return []byte(content) },
		Read: func(t testing.TB, resource string) string {
			data, _, err := guard.Read(t.Context(), resource)
			must.Report(t, err)
			return string(data)
		},
	})
}

// TestObjectsPassFencetest pauses each write of the guard between its read and its write.
func TestObjectsPassFencetest(t *testing.T) { objects(t, memstore.New()) }

const carelessEnv = "FENCE_TEST_CARELESS"

// TestCarelessGuardIsConvicted: a guard compares the tokens, and its write may follow the write of a larger
// token. A test of fencetest convicts it.
func TestCarelessGuardIsConvicted(t *testing.T) {
	if os.Getenv(carelessEnv) != "" {
		objects(t, careless{memstore.New()})
		return
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run", "^TestCarelessGuardIsConvicted$/^Overtaken$")
	cmd.Env = append(os.Environ(), carelessEnv+"=1")
	out, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "--- FAIL: TestCarelessGuardIsConvicted/Overtaken") {
		t.Errorf("%v:\n%s", err, out)
	}
}

func TestFilesPassFencetest(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("no flock")
	}
	dir := t.TempDir()
	guard, err := fence.NewFiles(dir)
	must.Succeed(t, err)
	other, err := fence.NewFiles(dir)
	must.Succeed(t, err)
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
	must.Succeed(t, err)
	defer a.Close(context.Background())
	b, err := holdfast.New(store.Client())
	must.Succeed(t, err)
	defer b.Close(context.Background())
	lockA, err := a.Lock(t.Context(), "n")
	must.Succeed(t, err)
	_ = store.Script().Lose("n", holdfast.CauseExpired)
	lockB, err := b.Lock(t.Context(), "n")
	must.Succeed(t, err)
	var guard fence.Memory
	content := ""
	write := func(by string) fence.Func {
		return func(context.Context) error { content = by; return nil }
	}
	must.Succeed(t, guard.Write(t.Context(), "n", lockB.Token(), write("B")))
	fencetest.Stale(t, guard.Write(t.Context(), "n", lockA.Token(), write("A")), lockA.Token(), lockB.Token())
	if content != "B" {
		t.Errorf("after the guarded write of A the content is %q", content)
	}
	if _ = write("A")(t.Context()); content != "A" {
		t.Errorf("without a guard the content is %q", content)
	}
}
