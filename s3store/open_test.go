package s3store

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/must"
)

// TestBadURLIsRefused: Open refuses a URL before it connects, names the parameter, and shows no secret.
func TestBadURLIsRefused(t *testing.T) {
	for rest, says := range map[string]string{
		"":                                   "s3://bucket/prefix",
		"B/x":                                "s3://bucket/prefix",
		"bucket:80/x":                        "s3://bucket/prefix",
		"bucket/a//b":                        "a prefix of at most",
		"bucket/a/../b":                      "a prefix of at most",
		"bucket/a%20b":                       "a prefix of at most",
		"bucket/" + strings.Repeat("x", 201): "a prefix of at most",
		"bucket?region=a/b":                  "region",
		"bucket?endpoint=host":               "endpoint",
		"bucket?endpoint=ftp://host":         "endpoint",
		"bucket?endpoint=http://u:hush@h":    "endpoint",
		"bucket?endpoint=http://h/path":      "endpoint",
		"bucket?endpoint=http://h&ca=/x":     "give endpoint=https",
		"bucket?endpoint=http://h&require_tls=true": "give endpoint=https",
		"bucket?skew=-1s": "skew: give 0s to 1m",
		"bucket?skew=2m":  "skew: give 0s to 1m",
		"bucket?bucket=b": `"bucket"`,
	} {
		_, err := Open(t.Context(), "s3://key:hush@"+rest, "")
		if driver.CodeOf(err) != driver.CodeInvalid || !strings.Contains(err.Error(), says) ||
			strings.Contains(err.Error(), "hush") {
			t.Errorf("%s: %v, want %s", rest, err, says)
		}
	}
	if _, err := Open(t.Context(), "s3://k:s@bucket", "\xff"); driver.CodeOf(err) != driver.CodeInvalid {
		t.Errorf("a bad namespace: %v", err)
	}
	t.Setenv("AWS_ACCESS_KEY_ID", "id")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "")
	if _, err := Open(t.Context(), "s3://bucket", ""); driver.CodeOf(err) != driver.CodeInvalid ||
		!strings.Contains(err.Error(), "AWS_SECRET_ACCESS_KEY") {
		t.Errorf("without credentials: %v", err)
	}
}

// TestPlainSecretIsReported: the store reports a URL that sends requests to another machine without TLS.
func TestPlainSecretIsReported(t *testing.T) {
	for at, exposed := range map[string]bool{"http://h": true, "http://127.0.0.1": false, "https://h": false} {
		s, err := Open(t.Context(), "s3://key:hush@bucket?endpoint="+at, "")
		must.Succeed(t, err)
		if (s.Exposed() != "") != exposed || strings.Contains(s.Exposed()+s.String(), "hush") {
			t.Errorf("%s: %q, %s", at, s.Exposed(), s)
		}
		_ = s.Close(t.Context())
	}
}

// TestEachRequestGetsKeys: OpenWithKeys gets the keys of each request, and its error ends the request before it is
// sent.
func TestEachRequestGetsKeys(t *testing.T) {
	s := serve(t, faults{})
	var failure error
	store, err := OpenWithKeys("s3://"+s.bucket+"/locks?endpoint="+s.URL, "", func(context.Context) (Keys, error) {
		return Keys{ID: "id", Secret: "secret", Session: "session"}, failure
	})
	must.Succeed(t, err)
	defer store.Close(context.Background())
	if _, err := store.Put(t.Context(), "key", nil, ""); err != nil {
		t.Fatal(err)
	}
	failure = errors.New("the role is gone")
	if _, err := store.Put(t.Context(), "other", nil, ""); driver.CodeOf(err) != driver.CodeUnavailable ||
		!strings.Contains(err.Error(), "the role is gone") {
		t.Errorf("Put: %v", err)
	}
	if n := s.count("PUT value_00_00other"); n != 0 {
		t.Errorf("%d requests", n)
	}
}

// FuzzLeavesAreKeys: the name of an object has only characters and a length that every server allows, and stands for
// one key alone.
func FuzzLeavesAreKeys(f *testing.F) {
	f.Add("lock\x00ns\x00a/b.c _ü~+%=*>", "lock\x00ns\x00a/b")
	f.Add("lock\x00\x00..", "lock\x00\x00"+strings.Repeat("/", 512))
	f.Fuzz(func(t *testing.T, key, other string) {
		name := leaf(key)
		const allowed = "~_.-ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
		if strings.Trim(name, allowed) != "" || len(name) > 193 {
			t.Errorf("%q is %q", key, name)
		}
		if key != other && leaf(other) == name {
			t.Errorf("%q and %q are both %q", key, other, name)
		}
		if !strings.Contains(name, "~") && keyOf(name, nil) != key {
			t.Errorf("%q is %q after %q", key, keyOf(name, nil), name)
		}
	})
}
