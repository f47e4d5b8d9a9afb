package tusdlock_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/adapters/tusdlock"
	"github.com/holdfast-go/holdfast/internal/adaptertest"
	"github.com/holdfast-go/holdfast/internal/must"
	"github.com/holdfast-go/holdfast/memstore"
	tusfiles "github.com/tus/tusd/v2/pkg/filestore"
	"github.com/tus/tusd/v2/pkg/handler"
	"github.com/tus/tusd/v2/pkg/memorylocker"
	"golang.org/x/exp/slog"
)

// server is one of several servers of tusd with a common directory.
func server(t *testing.T, dir string, locker interface {
	UseIn(*handler.StoreComposer)
}) *httptest.Server {
	c := handler.NewStoreComposer()
	tusfiles.New(dir).UseIn(c)
	locker.UseIn(c)
	h, err := handler.NewHandler(handler.Config{BasePath: "/files/", StoreComposer: c,
		Logger: slog.New(slog.NewTextHandler(io.Discard, nil))})
	must.Succeed(t, err)
	s := httptest.NewServer(http.StripPrefix("/files/", h))
	t.Cleanup(s.Close)
	return s
}

func request(ctx context.Context, method, url string, body io.Reader, header ...string) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, method, url, body)
	if err != nil {
		return nil, err
	}
	r.Header.Set("Tus-Resumable", "1.0.0")
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return nil, err
	}
	_, err = io.Copy(io.Discard, resp.Body)
	return resp, errors.Join(err, resp.Body.Close())
}

// TestReturningClientTakesItsUploadOver: a request for an upload stands still at one server, and the client returns
// to another one. With the lock the first request ends, so the client gets the offset at which it continues. Without
// it the second server answers while the first one still writes.
func TestReturningClientTakesItsUploadOver(t *testing.T) {
	for name, locked := range map[string]bool{"memory locker": false, "tusdlock": true} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			dir, s := t.TempDir(), memstore.New()
			var servers [2]*httptest.Server
			for i := range servers {
				if locked {
					servers[i] = server(t, dir, tusdlock.New(adaptertest.Open(t, s.Client())))
				} else {
					servers[i] = server(t, dir, memorylocker.New())
				}
			}
			resp, err := request(ctx, http.MethodPost, servers[0].URL+"/files/", nil, "Upload-Length", "8")
			if err != nil || resp.StatusCode != http.StatusCreated {
				t.Fatal(resp, err)
			}
			id := resp.Header.Get("Location")[strings.LastIndex(resp.Header.Get("Location"), "/")+1:]
			upload := func(i int) string { return fmt.Sprintf("%s/files/%s", servers[i].URL, id) }

			body, stalled := io.Pipe()
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				_, _ = request(ctx, http.MethodPatch, upload(0), body, "Upload-Offset", "0", "Content-Type", "application/offset+octet-stream")
			}()
			if _, err := stalled.Write([]byte("abc")); err != nil {
				t.Fatal(err)
			}
			for { // until the first server has written what it has
				if got, _ := os.ReadFile(filepath.Join(dir, id)); string(got) == "abc" || ctx.Err() != nil {
					break
				}
				time.Sleep(time.Millisecond)
			}
			resp, err = request(ctx, http.MethodHead, upload(1), nil)
			if err != nil || resp.StatusCode != http.StatusOK || resp.Header.Get("Upload-Offset") != "3" {
				t.Fatalf("HEAD: %v, %v", resp, err)
			}
			over := false
			if locked { // the request is interrupted before the other server answers
				<-ended
				over = true
			} else {
				select {
				case <-ended:
					over = true
				default:
				}
			}
			if over != locked {
				t.Errorf("the first request has ended: %t", over)
			}
			resp, err = request(ctx, http.MethodPatch, upload(1), strings.NewReader("defgh"), "Upload-Offset", "3",
				"Content-Type", "application/offset+octet-stream")
			if err != nil || resp.StatusCode != http.StatusNoContent {
				t.Fatalf("PATCH: %v, %v", resp, err)
			}
			if !locked { // the first request goes on behind the second one
				_, _ = stalled.Write([]byte("XYZ"))
			}
			_ = stalled.Close()
			<-ended
			got, err := os.ReadFile(filepath.Join(dir, id))
			if err != nil || (string(got) == "abcdefgh") != locked {
				t.Errorf("the upload is %q, %v", got, err)
			}
		})
	}
}

// TestLockTimeout: the end of the context ends the wait, with the error of tusd.
func TestLockTimeout(t *testing.T) {
	s := memstore.New()
	k, err := adaptertest.Open(t, s).Lock(t.Context(), tusdlock.Prefix+"a")
	must.Succeed(t, err)
	l, err := tusdlock.New(adaptertest.Open(t, s.Client())).NewLock("a")
	must.Succeed(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := l.Lock(ctx, func() { t.Error("requestUnlock without a lock") }); !errors.Is(err, handler.ErrLockTimeout) {
		t.Errorf("Lock: %v", err)
	}
	if err := k.Unlock(); err != nil {
		t.Error(err)
	}
}

// TestLossRequestsUnlock: a request whose lock is lost ends, and Unlock returns the loss.
func TestLossRequestsUnlock(t *testing.T) {
	s := memstore.New()
	other := adaptertest.Open(t, s)
	l, err := tusdlock.New(adaptertest.Open(t, s.Client())).NewLock("a")
	must.Succeed(t, err)
	requested := make(chan struct{})
	must.Succeed(t, l.Lock(t.Context(), func() { close(requested) }))
	adaptertest.Break(t, other, tusdlock.Prefix+"a")
	<-requested
	if err := l.Unlock(); !errors.Is(err, holdfast.ErrLost) {
		t.Errorf("Unlock: %v", err)
	}
}
