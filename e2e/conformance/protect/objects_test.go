package protect

import (
	"context"
	"net/http/httptest"
	"strconv"
	"sync"
	"testing"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"

	"github.com/holdfast-go/holdfast/fence"
	"github.com/holdfast-go/holdfast/fence/fencetest"
	"github.com/holdfast-go/holdfast/internal/must"
	"github.com/holdfast-go/holdfast/optimistic"
)

// bucket returns a bucket of a server that speaks S3. Its ETags are hashes of the content.
func bucket(t *testing.T) optimistic.HTTP {
	t.Helper()
	backend := s3mem.New()
	check(t, backend.CreateBucket("state"))
	srv := httptest.NewServer(gofakes3.New(backend).Server())
	t.Cleanup(srv.Close)
	return optimistic.HTTP{URL: srv.URL + "/state", Client: srv.Client()}
}

func TestObjectsPassFencetestOnS3(t *testing.T) {
	guard := fence.Objects{Values: bucket(t)}
	fencetest.Run(t, fencetest.Harness[[]byte]{
		Guard: guard, NeedsContent: true,
		Write: func(_, content string) []byte { return []byte(content) },
		Read: func(t testing.TB, resource string) string {
			content, _, err := guard.Read(t.Context(), resource)
			must.Report(t, err)
			return string(content)
		},
	})
}

// TestEqualContentWithNewTokenRefusesLateWrite: a holder writes the content that the object already
// has, under a new token. A write under an older token is refused, although the server's ETag is a
// hash of the content.
func TestEqualContentWithNewTokenRefusesLateWrite(t *testing.T) {
	values := bucket(t)
	guard := fence.Objects{Values: paused{values, func() {
		// Another holder writes the same content between the read and the write.
		must.Report(t, (fence.Objects{Values: values}).Write(t.Context(), "r", 34, []byte("same")))
	}}}
	check(t, (fence.Objects{Values: values}).Write(t.Context(), "r", 32, []byte("same")))
	fencetest.Stale(t, guard.Write(t.Context(), "r", 33, []byte("late")), 33, 34)
}

// paused runs a function before each write.
type paused struct {
	optimistic.Values
	before func()
}

func (p paused) Put(ctx context.Context, key string, data []byte, version string) (string, error) {
	p.before()
	return p.Values.Put(ctx, key, data, version)
}

func TestUpdateLosesNoWriteOnS3(t *testing.T) {
	values := bucket(t)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 10 {
				err := optimistic.Update(t.Context(), values, "n", func(_ context.Context, old []byte) ([]byte, error) {
					n, err := strconv.Atoi("0" + string(old))
					return strconv.AppendInt(nil, int64(n+1), 10), err
				})
				must.Report(t, err)
			}
		})
	}
	wg.Wait()
	if data, _, err := optimistic.Get(t.Context(), values, "n"); string(data) != "80" || err != nil {
		t.Errorf("%q, %v; want 80", data, err)
	}
}
