//go:build linux

package s3

import (
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/e2e/conformance/requests"
	"github.com/holdfast-go/holdfast/e2e/servertest"
	"github.com/holdfast-go/holdfast/internal/servers"
)

// withRights starts a server whose user app has the rights of a policy, and returns the URL of the user.
func withRights(t *testing.T, policy string) (*gateway, string) {
	t.Helper()
	users := t.TempDir()
	servertest.Check(t, os.WriteFile(filepath.Join(users, "users.json"),
		[]byte(`{"accessAccounts":{"app":{"access":"app","secret":"app-secret","role":"user"}}}`), 0o600))
	s, err := servers.StartS3(t.Context(), t.TempDir(), "--iam-dir", users)
	servertest.Started(t, err)
	t.Cleanup(s.Kill)
	policy = strings.ReplaceAll(policy, `"Effect": "Allow"`, `"Effect": "Allow", "Principal": {"AWS": ["app"]}`)
	servertest.Check(t, unix.Setxattr(s.Root, "user.policy", []byte(policy), 0))
	return &gateway{S3: s}, "s3://app:app-secret@locks/locks?endpoint=" + url.QueryEscape("http://"+s.Address)
}

// documented returns the policy of docs/s3.md for the bucket locks.
func documented(t *testing.T) string {
	t.Helper()
	page, err := os.ReadFile("../../../docs/s3.md")
	servertest.Check(t, err)
	m := regexp.MustCompile("(?s)```json\n(.*?)```").FindSubmatch(page)
	if m == nil {
		t.Fatal("the page has no policy")
	}
	return strings.ReplaceAll(string(m[1]), "my-bucket", "locks")
}

// TestUserWithDocumentedRightsDoesEverything: the policy of the page suffices, and the probe leaves nothing.
func TestUserWithDocumentedRightsDoesEverything(t *testing.T) {
	g, url := withRights(t, documented(t))
	servertest.Check(t, requests.Uses(t, openAt(t, url, "ns"), "a/b"))
	left, err := os.ReadDir(filepath.Join(g.Root, "locks", "probe"))
	if len(left) > 0 || err != nil && !os.IsNotExist(err) {
		t.Errorf("the probe has left %v, %v", left, err)
	}
}

// TestMissingRightIsRefused: without one of the rights, the error is a refusal. The probe does without the right to
// delete.
func TestMissingRightIsRefused(t *testing.T) {
	for _, right := range []string{"s3:GetObject", "s3:PutObject", "s3:ListBucket", "s3:DeleteObject"} {
		t.Run(right, func(t *testing.T) {
			_, url := withRights(t, strings.ReplaceAll(documented(t), `"`+right+`"`, `"s3:GetObjectTagging"`))
			s := openAt(t, url, "")
			_, err := s.Put(t.Context(), "key", nil, "")
			for _, listErr := range s.List(t.Context(), "") {
				if err == nil {
					err = listErr
				}
			}
			if want := right != "s3:DeleteObject"; want != (driver.CodeOf(err) == driver.CodeRefused && err != nil) {
				t.Errorf("%v", err)
			}
		})
	}
}
