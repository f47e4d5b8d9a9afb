package driver

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// MaxNamespace is the length of the longest namespace, in bytes.
const MaxNamespace = 128

// CheckName returns an error if a name is not allowed; see Request.Name.
func CheckName(name string) error { return checkText("name", name, 1, MaxName) }

// CheckNamespace returns an error if a namespace is not allowed: UTF-8 of at most MaxNamespace
// bytes without NUL.
func CheckNamespace(ns string) error { return checkText("namespace", ns, 0, MaxNamespace) }

func checkText(field, s string, least, most int) error {
	switch {
	case len(s) < least:
		return fmt.Errorf("%s is empty: give %d to %d bytes of UTF-8", field, least, most)
	case len(s) > most:
		return fmt.Errorf("%s is %d bytes long: at most %d are allowed", field, len(s), most)
	case !utf8.ValidString(s):
		return fmt.Errorf("%s %q is not valid UTF-8", field, s)
	case strings.ContainsRune(s, 0):
		return fmt.Errorf("%s %q contains a NUL byte", field, s)
	}
	return nil
}
