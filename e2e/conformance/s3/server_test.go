package s3

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/e2e/conformance/requests"
	"github.com/holdfast-go/holdfast/e2e/servertest"
	"github.com/holdfast-go/holdfast/internal/servers"
)

// TestLongNamesAreListed: a name whose object has a hash in its name is listed like the others. The list has several
// pages.
func TestLongNamesAreListed(t *testing.T) {
	g := start(t)
	s := g.open(t, "")
	long := "list/" + strings.Repeat("/ü", 168)
	want := map[string]bool{"list/short": true, long: true, long + "x": true}
	for name := range want {
		requests.Must(t, s, requests.New(name, driver.Exclusive, requests.Long))
	}
	for i := range 1000 { // not written by a client of the store
		servertest.Check(t, os.WriteFile(filepath.Join(g.Root, fmt.Sprintf("lock_00_00list_2G%d", i)), nil, 0o600))
	}
	for st, err := range s.List(t.Context(), "list/") {
		servertest.Check(t, err)
		if !want[st.Name] {
			t.Errorf("%q is listed", st.Name)
		}
		delete(want, st.Name)
	}
	if len(want) > 0 {
		t.Errorf("not listed: %v", want)
	}
}

// TestWrongCredentialsAreRefused: the error shows no secret. So is a bucket that does not exist.
func TestWrongCredentialsAreRefused(t *testing.T) {
	g := start(t)
	right := servers.S3URL(g.proxy.Address())
	for wrong, text := range map[string]string{
		strings.Replace(right, servers.S3Secret, "hush", 1): "SignatureDoesNotMatch",
		strings.Replace(right, servers.S3ID, "nobody", 1):   "XAdminUserNotFound",
		strings.Replace(right, "@locks", "@missing", 1):     "NoSuchBucket",
	} {
		_, err := openAt(t, wrong, "").Put(t.Context(), "key", nil, "")
		if driver.CodeOf(err) != driver.CodeRefused || !strings.Contains(err.Error(), text) ||
			strings.Contains(err.Error(), "hush") {
			t.Errorf("want %s: %v", text, err)
		}
	}
	if _, err := openAt(t, right, "").Put(t.Context(), "key", nil, ""); err != nil {
		t.Error(err)
	}
}
