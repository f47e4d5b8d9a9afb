package printable_test

import (
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/internal/printable"
)

func TestRedactHidesPasswords(t *testing.T) {
	for in, want := range map[string]string{
		"nothing to hide":                          "nothing to hide",
		"file:///var/lib/locks":                    "file:///var/lib/locks",
		"file:///a:b@c":                            "file:///a:b@c",
		"redis://host:6379/0":                      "redis://host:6379/0",
		"redis://me:pw@host:6379/0":                "redis://me:xxxxx@host:6379/0",
		"redis://:pw@host":                         "redis://:xxxxx@host",
		"two: a://b:c@d and e://f:g@h":             "two: a://b:xxxxx@d and e://f:xxxxx@h",
		"an @ in it: a://b:p@w@d":                  "an @ in it: a://b:xxxxx@d",
		"a / in it: a://b:p/w@d":                   "a / in it: a://b:xxxxx@d",
		`quoted "a://b:pw@d"`:                      `quoted "a://b:xxxxx@d"`,
		"pg://h/db?user=u&password=pw&sslmode=off": "pg://h/db?user=u&password=xxxxx&sslmode=off",
		"pg://h/db?sslPassword=pw":                 "pg://h/db?sslPassword=xxxxx",
	} {
		if got := printable.Redact(in); got != want {
			t.Errorf("Redact(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestSecretsHideDecodedPasswords(t *testing.T) {
	const raw = "redis://me:p%40ss%2Fword@host"
	secrets := printable.Secrets(raw)
	for _, message := range []string{"AUTH p@ss/word failed", "AUTH p%40ss%2Fword failed"} {
		if got := printable.Redact(message, secrets...); got != "AUTH xxxxx failed" {
			t.Errorf("Redact(%q) = %q", message, got)
		}
	}
	for raw, want := range map[string]bool{raw: true, "redis://me@host": false, "file:///dir": false, "x://h?pass=w": true,
		"etcds://h?cert=/c.pem&key=/k.pem": false, "postgres://h/d?sslkey=k": false, "x://h?key=/k.pem&apikey=w": true} {
		if got := printable.HasPassword(raw); got != want {
			t.Errorf("HasPassword(%q) = %v", raw, got)
		}
	}
}

func FuzzRedactHidesPasswords(f *testing.F) {
	f.Add("me", "pw", "host")
	f.Fuzz(func(t *testing.T, user, password, host string) {
		const hidden = "verysecret"
		if strings.ContainsAny(user+host, "/:@\" \t\r\n\f\v") || strings.ContainsAny(password, " \t\r\n\f\v\"") || strings.Contains(user+host, hidden) {
			t.Skip()
		}
		if got := printable.Redact("x://" + user + ":" + password + hidden + "@" + host); strings.Contains(got, hidden) {
			t.Errorf("%q", got)
		}
	})
}
