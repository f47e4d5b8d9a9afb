package natsstore

import (
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/driver"
)

// TestBadURLIsRefused: Open refuses a URL before it connects, names the parameter, and shows no password.
func TestBadURLIsRefused(t *testing.T) {
	for rest, says := range map[string]string{
		"h":                           "bucket=NAME",
		"h?bucket=a.b":                "letters, digits",
		"h/path?bucket=a":             "bucket=NAME",
		"?bucket=a":                   "bucket=NAME",
		"h?bucket=a&replicas=0":       "replicas: give 1 to 5",
		"h?bucket=a&replicas=6":       "replicas: give 1 to 5",
		"h?bucket=a&skew=1ms":         "skew: give 10ms to 10s",
		"h?bucket=a&skew=11s":         "skew: give 10ms to 10s",
		"h?bucket=a&ca=/ca.pem":       "give tls=true",
		"h?bucket=a&require_tls=true": "give tls=true",
		"h?bucket=a&creds=/nosuch":    "creds",
		"h?bucket=a&ttl=3s":           `"ttl"`,
	} {
		_, err := Open(t.Context(), "nats://u:hush@"+rest, "")
		if driver.CodeOf(err) != driver.CodeInvalid || !strings.Contains(err.Error(), says) ||
			strings.Contains(err.Error(), "hush") {
			t.Errorf("%s: %v, want %s", rest, err, says)
		}
	}
	if _, err := Open(t.Context(), "nats://h?bucket=a", "\xff"); driver.CodeOf(err) != driver.CodeInvalid {
		t.Errorf("a bad namespace: %v", err)
	}
}

// FuzzKeysAreDecoded: a key of the engine is a key of a bucket, which stands for it alone.
func FuzzKeysAreDecoded(f *testing.F) {
	f.Add("lock\x00ns\x00a/b.c _ü~+%=*>")
	f.Add("lock\x00\x00.")
	f.Fuzz(func(t *testing.T, key string) {
		encoded := encode(key)
		if decode(encoded) != key {
			t.Errorf("%q is %q after %q", key, decode(encoded), encoded)
		}
		if bad := strings.Trim(encoded, "-/_=.ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"); bad != "" {
			t.Errorf("%q is %q, with %q", key, encoded, bad)
		}
	})
}
