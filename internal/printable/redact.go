package printable

import (
	"regexp"
	"slices"
	"strings"

	"github.com/holdfast-go/holdfast/internal/storeurl"
)

const mask = "xxxxx"

// inURL matches user:password@ in every text that looks like a URL, also in a URL that does not
// parse. It may match more than a password.
var inURL = regexp.MustCompile(`(://[^\s/:@"]*):[^\s"]*@`)

// inQuery matches the parameters whose names look secret, with their values.
var inQuery = regexp.MustCompile(`(?i)([?&;][^\s=&"]*(?:pass|pwd|secret|token|auth|key)[^\s=&"]*=)[^\s&;"]*`)

// Redact replaces the passwords of all URLs in a text, and every occurrence of the given secrets.
func Redact(s string, secrets ...string) string {
	for _, secret := range secrets {
		s = strings.ReplaceAll(s, secret, mask)
	}
	s = inURL.ReplaceAllString(s, "$1:"+mask+"@")
	return inQuery.ReplaceAllString(s, "${1}"+mask)
}

// secret matches the parameters that are certainly a password. Redact uses inQuery, which matches
// more: to hide too much does no harm, but a false warning about a password would.
var secret = regexp.MustCompile(`(?i)[?&;](?:[^\s=&"]*_)?(?:(?:ssl)?password|passwd|pass|pwd|secret|token|auth|api_?key)=`)

// HasPassword reports whether a URL contains a password.
func HasPassword(raw string) bool {
	return inURL.MatchString(raw) || secret.MatchString(raw) || len(Secrets(raw)) > 0
}

// Secrets returns the forms in which a URL's password may appear in error messages. It leaves out
// short passwords, because they may be equal to ordinary text; the patterns of Redact handle them.
func Secrets(raw string) []string {
	u, err := storeurl.Read(raw)
	if err != nil || u.User == nil {
		return nil
	}
	password, _ := u.User.Password()
	// The encoded form comes first, because it may contain the other one.
	_, encoded, _ := strings.Cut(u.User.String(), ":")
	var all []string
	for _, s := range []string{encoded, password} {
		if len(s) >= 4 && !slices.Contains(all, s) {
			all = append(all, s)
		}
	}
	return all
}
