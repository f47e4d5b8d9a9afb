//go:build linux || darwin

package filestore_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/drivertest"
	"github.com/holdfast-go/holdfast/filestore"
	"github.com/holdfast-go/holdfast/internal/must"
	"github.com/holdfast-go/holdfast/internal/wakeup"
)

func TestConformance(t *testing.T) {
	dir := tempDir(t)
	drivertest.Run(t, drivertest.Harness{
		Open: func(t testing.TB, namespace string) driver.Store {
			s, err := filestore.Open(context.Background(), dir, filestore.Namespace(namespace))
			must.Succeed(t, err)
			return s
		},
		OpenWithoutFallback: func(t testing.TB, namespace string) driver.Store {
			s, err := filestore.Open(context.Background(), dir, filestore.Namespace(namespace))
			must.Succeed(t, err)
			return wakeup.WithoutFallback(s)
		},
		Outside: func(t testing.TB, namespace string) driver.Store {
			s, err := filestore.Open(context.Background(), tempDir(t), filestore.Namespace(namespace))
			must.Succeed(t, err)
			return s
		},
		Leftovers: func(t testing.TB) []string { return leftovers(t, dir) },
		Forge:     func(t testing.TB, _ string, ids []string, _ uint64) { forge(t, dir, ids) },
	})
}

// forge sends messages of every kind to every session. It returns when the sessions have handled them.
func forge(t testing.TB, dir string, ids []string) {
	t.Helper()
	sockets, err := filepath.Glob(filepath.Join(dir, "sessions", "*.sock"))
	if err != nil || len(sockets) == 0 {
		t.Fatal("no session", err)
	}
	for _, socket := range sockets {
		conn, err := net.Dial("unix", socket)
		must.Succeed(t, err)
		defer conn.Close()
		for _, text := range append(ids, strings.TrimSuffix(filepath.Base(socket), ".sock"), "../../"+session, strings.Repeat("x", 255)) {
			for kind := range 256 {
				if _, err := conn.Write(append([]byte{byte(len(text)), byte(kind)}, text...)); err != nil {
					t.Fatal(err)
				}
			}
		}
		// The store closes the connection after it has handled all messages.
		must.Succeed(t, conn.(*net.UnixConn).CloseWrite())
		if _, err := io.Copy(io.Discard, conn); err != nil {
			t.Fatal(err)
		}
	}
}

// leftovers returns the entries and the session files that are left in the directory.
func leftovers(t testing.TB, dir string) (left []string) {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, "sessions", "*"))
	must.Succeed(t, err)
	left = append(left, paths...)
	paths, err = filepath.Glob(filepath.Join(dir, "buckets", "*"))
	must.Succeed(t, err)
	for _, p := range paths {
		raw, err := os.ReadFile(p)
		must.Succeed(t, err)
		if n, err := filestore.Entries(raw); err != nil || n > 0 {
			left = append(left, fmt.Sprintf("%s: %d entries, %v", p, n, err))
		}
	}
	return left
}
