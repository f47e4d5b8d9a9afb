// Package redact removes passwords from all output.
package redact

import (
	"net/url"
	"regexp"
	"slices"
	"strings"
)

const mask = "xxxxx"

// inURL finds user:password@ in all text that looks like a URL, also one that does not
// parse. In doubt it hides too much.
var inURL = regexp.MustCompile(`(://[^\s/:@"]*):[^\s"]*@`)

// inQuery finds the values of parameters with secret names.
var inQuery = regexp.MustCompile(`(?i)([?&;][^\s=&"]*(?:pass|pwd|secret|token|auth|key)[^\s=&"]*=)[^\s&;"]*`)

// Text hides the passwords of all URLs in a text, and the given secrets wherever
// they stand.
func Text(s string, secrets ...string) string {
	for _, secret := range secrets {
		s = strings.ReplaceAll(s, secret, mask)
	}
	s = inURL.ReplaceAllString(s, "$1:"+mask+"@")
	return inQuery.ReplaceAllString(s, "${1}"+mask)
}

// secret finds the parameters that are a password. Text hides more, which does no harm; a
// false warning of a password would.
var secret = regexp.MustCompile(`(?i)[?&;](?:[^\s=&"]*_)?(?:(?:ssl)?password|passwd|pass|pwd|secret|token|auth|api_?key)=`)

// Has reports whether a URL contains a password.
func Has(raw string) bool {
	return inURL.MatchString(raw) || secret.MatchString(raw) || len(Secrets(raw)) > 0
}

// Secrets lists the forms in which a URL's password may appear in error messages. Text's
// patterns handle passwords that are too short to differ from ordinary text.
func Secrets(raw string) []string {
	u, err := url.Parse(raw)
	if err != nil || u.User == nil {
		return nil
	}
	password, _ := u.User.Password()
	// The longest first: one may be a part of the other.
	_, encoded, _ := strings.Cut(u.User.String(), ":")
	var all []string
	for _, s := range []string{encoded, password} {
		if len(s) >= 4 && !slices.Contains(all, s) {
			all = append(all, s)
		}
	}
	return all
}
