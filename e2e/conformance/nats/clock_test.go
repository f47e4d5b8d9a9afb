package nats

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/servers"
)

// aheadEnv names the file whose one byte has the hours by which the clock of a server is ahead.
const aheadEnv = "HOLDFAST_TEST_AHEAD"

// setClock lets a test set the clock of the servers that it starts, in hours. A program in Go reads the clock without the
// C library, so libfaketime cannot change it. The server is built with another time.Now instead.
func setClock(t *testing.T) func(testing.TB, time.Duration) {
	t.Helper()
	root, err := exec.CommandContext(t.Context(), "go", "env", "GOROOT").Output()
	check(t, err)
	source := filepath.Join(strings.TrimSpace(string(root)), "src/time/time.go")
	text, err := os.ReadFile(source)
	check(t, err)
	const before = "func Now() Time {\n\tsec, nsec, mono := runtimeNow()\n"
	if !strings.Contains(string(text), before) {
		t.Fatalf("%s does not have the lines that the test changes", source)
	}
	changed := strings.Replace(string(text), before, before+"\tif len(ahead) > 0 {\n\t\tsec += int64(int8(ahead[0])) * 3600\n\t}\n", 1)
	changed = strings.Replace(changed, "import (\n", "import (\n\t\"syscall\"\n", 1) + `
var ahead = func() []byte {
	name, _ := syscall.Getenv("` + aheadEnv + `")
	file, err := syscall.Open(name, syscall.O_RDONLY, 0)
	if err != nil {
		panic(err)
	}
	hours, err := syscall.Mmap(file, 0, 1, syscall.PROT_READ, syscall.MAP_SHARED)
	if err != nil {
		panic(err)
	}
	return hours
}()
`
	dir := t.TempDir()
	overlay, err := json.Marshal(map[string]map[string]string{"Replace": {source: filepath.Join(dir, "time.go")}})
	check(t, err)
	for name, data := range map[string]string{"time.go": changed, "overlay.json": string(overlay)} {
		check(t, os.WriteFile(filepath.Join(dir, name), []byte(data), 0o600))
	}
	build := exec.CommandContext(t.Context(), "go", "build", "-overlay", filepath.Join(dir, "overlay.json"), "-o", dir,
		"github.com/nats-io/nats-server/v2")
	build.Dir, build.Env = "../../tools/nats", append(os.Environ(), "GOWORK=off")
	if output, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, output)
	}
	hours, err := os.Create(filepath.Join(dir, "ahead"))
	check(t, err)
	t.Cleanup(func() { _ = hours.Close() })
	set := func(t testing.TB, ahead time.Duration) {
		t.Helper()
		if _, err := hours.WriteAt([]byte{byte(int8(ahead / time.Hour))}, 0); err != nil {
			t.Fatal(err)
		}
	}
	set(t, 0)
	t.Setenv(aheadEnv, hours.Name())
	t.Setenv(servers.Dirs, dir)
	return set
}
