package transport

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/cmd/holdfast/command"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/servers"
)

// commandEnv makes the test binary the command holdfast, with the stores of this package.
const commandEnv = "HOLDFAST_TEST_COMMAND"

func TestMain(m *testing.M) {
	if os.Getenv(commandEnv) != "" {
		os.Exit(command.Main(os.Args[1:]))
	}
	os.Exit(m.Run())
}

// shows reports whether a text shows a part of the password, also as numbers.
func shows(text string) bool {
	return strings.Contains(text, "hush") || strings.Contains(text, "0x68, 0x75, 0x73, 0x68") || strings.Contains(text, "104 117 115 104")
}

// forms returns URLs of a store: with the right password first, with wrong ones, with ones that are not escaped, and with
// other mistakes.
func forms(t *testing.T, s store, addresses []string) []string {
	t.Helper()
	closed, err := servers.FreePort()
	must(t, err)
	var nowhere []string
	for range addresses {
		nowhere = append(nowhere, fmt.Sprintf("127.0.0.1:%d", closed))
		closed++
	}
	right := s.at(s.clear, encoded, "", addresses)
	all := []string{right, s.at(s.clear, "hush"+encoded, "", addresses), s.at(s.clear, encoded, "", nowhere)}
	for _, c := range `%:/?#&=+@ '"$(\;é` {
		all = append(all, s.at(s.clear, "hush"+string(c)+"hush", "", addresses))
	}
	separator := "&"
	if !strings.Contains(right, "?") {
		separator = "?"
	}
	for _, parameter := range []string{"nosuch=1", "password", "sentinel_password=hush&hush", "password=hush&hush", "recpie=x", "ca=/nosuch", "layout=x", "a=%zz"} {
		all = append(all, right+separator+parameter)
	}
	return append(all, "floppy"+right, strings.Replace(right, "://", ":", 1), strings.Replace(right, "://", "//", 1), right+"/a/b")
}

// TestNoErrorOrLogShowsAPassword: a store is opened with right and wrong URLs and passwords, and used. Neither an error, a
// log, nor the printed store shows a part of the password.
func TestNoErrorOrLogShowsAPassword(t *testing.T) {
	for _, s := range stores {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			granted := 0
			for _, raw := range forms(t, s, s.start(t)) {
				var log syncedBuffer
				hooks := holdfast.LogHooks(slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})))
				err := tryLock(t, raw, holdfast.WithHooks(hooks), holdfast.RequestTimeout(time.Second))
				if err == nil {
					granted++
				}
				if text := fmt.Sprintf("%v %+v %#v\n%s\n%s", err, err, err, log.String(), printed(t, raw)); shows(text) {
					t.Errorf("%s:\n%s", raw, text)
				}
			}
			if granted == 0 {
				t.Error("no lock was granted")
			}
		})
	}
}

// printed opens a store itself, and prints it in every form.
func printed(t *testing.T, raw string) string {
	u, err := url.Parse(raw)
	if err != nil {
		return ""
	}
	open, ok := driver.OpenerOf(u.Scheme)
	if !ok {
		return ""
	}
	s, err := open(t.Context(), u, "")
	if err != nil {
		return err.Error()
	}
	defer s.Close(background)
	return fmt.Sprintf("%v %+v %#v %s", s, s, s, s)
}

// syncedBuffer is a buffer that a background task may still write to.
type syncedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncedBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncedBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// ancestors prints the arguments and the environment of the command that runs under the lock, and of the processes
// above it.
const ancestors = `p=$$; while [ "$p" -gt 1 ]; do tr '\0' '\n' </proc/$p/cmdline; tr '\0' '\n' </proc/$p/environ
p=$(sed 's/.*) . \([0-9]*\) .*/\1/' /proc/$p/stat); done; echo "end of $HOLDFAST_NAME"`

// TestCommandShowsNoPassword: the URL is in a file. Neither the command's output, nor the arguments and the environment of
// its processes, show a part of the password.
func TestCommandShowsNoPassword(t *testing.T) {
	for _, s := range stores {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			file := filepath.Join(dir, "url")
			for i, raw := range forms(t, s, s.start(t)) {
				must(t, os.WriteFile(file, []byte(raw+"\n"), 0o600))
				all := [][]string{
					{"ls"}, {"run", "--verbose", "--try", "n", "--", "sh", "-c", ancestors}, {"show", "n"}, {"break", "--token", "1", "n"},
					{"stores", "--store-file", file}, {"init", "--store-file", file}, {"__complete", "show", ""},
				}
				if i > 2 { // all subcommands resolve and open in the same way
					all = all[:1]
				}
				for _, args := range all {
					ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
					c := exec.CommandContext(ctx, os.Args[0], args...)
					c.Env = append(os.Environ(), commandEnv+"=1", "HOLDFAST_STORE_FILE="+file, "HOME="+dir)
					out, err := c.CombinedOutput()
					cancel()
					if shows(string(out)) || len(out) == 0 && err != nil {
						t.Errorf("%s, %s: %v\n%s", raw, args, err, out)
					}
					if i == 0 && args[0] == "run" && !strings.Contains(string(out), "end of n\n") {
						t.Errorf("%s: %v\n%s", raw, err, out)
					}
				}
			}
		})
	}
}
