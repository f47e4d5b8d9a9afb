// Package redact keeps passwords out of everything that is printed.
package redact

import (
	"net/url"
	"regexp"
	"slices"
	"strings"
)

const mask = "xxxxx"

// inURL finds user:password@ in anything that looks like a URL, also one that
// does not parse. It rather hides too much.
var inURL = regexp.MustCompile(`(://[^\s/:@"]*):[^\s"]*@`)

// inQuery finds the values of parameters whose names say that they are secret.
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

// secret finds the parameters that are a password. Text hides more, which does no harm;
// a warning of a password that is none would.
var secret = regexp.MustCompile(`(?i)[?&;](?:[^\s=&"]*_)?(?:(?:ssl)?password|passwd|pass|pwd|secret|token|auth|api_?key)=`)

// Has tells whether a URL carries a password.
func Has(raw string) bool {
	return inURL.MatchString(raw) || secret.MatchString(raw) || len(Secrets(raw)) > 0
}

// Secrets lists the ways in which a URL's password may appear in others' error
// messages. Passwords too short to be told from ordinary text are left to Text's
// patterns.
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
