//go:build linux

package s3

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/holdfast-go/holdfast/e2e/conformance/requests"
	"github.com/holdfast-go/holdfast/e2e/servertest"
)

// TestExamineFindsVersioning: no check finds anything at a good bucket. A bucket that keeps old versions is found.
func TestExamineFindsVersioning(t *testing.T) {
	t.Setenv("VGW_VERSIONING_DIR", t.TempDir())
	g := start(t)
	s := g.open(t, "")
	requests.Found(t, s)
	if g.Root != "" {
		servertest.Check(t, unix.Setxattr(g.Root, "user.versioning", []byte{1}, 0)) // enabled
		requests.Finds(t, s, "versioning", "Enabled")
	}
}

// TestExamineFindsLifecycleRules: a rule that deletes the objects of locks is found, one of another prefix is not.
func TestExamineFindsLifecycleRules(t *testing.T) {
	g := start(t)
	s := g.open(t, "")
	for rule, evidence := range map[string]string{
		"<Filter><Prefix>logs/</Prefix></Filter>":                                                           "",
		"<Filter><Tag><Key>a</Key><Value>b</Value></Tag></Filter>":                                          "",
		"<Filter><Prefix></Prefix></Filter>":                                                                "deletes objects of *",
		"<Filter><And><Prefix>lo</Prefix><Tag><Key>a</Key><Value>b</Value></Tag></And></Filter>":            "",
		"<Filter><And><Prefix>lock</Prefix><ObjectSizeGreaterThan>1</ObjectSizeGreaterThan></And></Filter>": "deletes objects of lock*",
	} {
		body := `<LifecycleConfiguration xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Rule><ID>old</ID>` + rule +
			`<Status>Enabled</Status><Expiration><Days>7</Days></Expiration></Rule></LifecycleConfiguration>`
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, "http://"+g.Address+"/locks?lifecycle", strings.NewReader(body))
		servertest.Check(t, err)
		resp, err := http.DefaultClient.Do(req)
		servertest.Check(t, err)
		text, _ := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if g.Root != "" {
			t.Skip("versitygw has no life cycle rules; make release runs this on SeaweedFS")
		}
		if resp.StatusCode != http.StatusOK {
			t.Fatalf("%s: %s: %s", rule, resp.Status, text)
		}
		if evidence == "" {
			requests.Found(t, s)
		} else {
			requests.Finds(t, s, "lifecycle", evidence)
		}
	}
}

// TestExamineNamesMissingRights: the rights of the page suffice for locks, not to read the configuration.
func TestExamineNamesMissingRights(t *testing.T) {
	_, url := withRights(t, documented(t))
	requests.Finds(t, openAt(t, url, ""), "unread", "versioning: 403 Forbidden")
}
