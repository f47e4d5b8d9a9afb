// Package view shows the states of locks: as JSON, as lines for scripts, and as
// a table and a page for people. Names, hosts and reasons are other processes'
// words: whatever could control a terminal leaves here quoted or escaped.
package view

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// none stands where there is nothing to show.
const none = "-"

// Text is s as it is, if that is safe on a terminal and cannot be taken for
// anything else; otherwise quoted like a string of Go.
func Text(s string) string {
	if s == "" {
		return none
	}
	if s != none && s[0] != '"' && strings.TrimSpace(s) == s && printable(s) {
		return s
	}
	return strconv.Quote(s)
}

// Plain tells whether a shell reads a name as one word and nothing else.
func Plain(s string) bool {
	return s != "" && s[0] != '-' && s[0] != '~' && strings.IndexFunc(s, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("._/:@%+,-", r))
	}) < 0
}

// printable also refuses what turns the direction of writing and what is
// invisible.
func printable(s string) bool {
	return utf8.ValidString(s) && strings.IndexFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) < 0
}

// JSON writes v with what is not printable escaped, which the standard library
// does for some control characters only. It is indented unless line is set.
func JSON(w io.Writer, v any, line bool) error {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if !line {
		e.SetIndent("", "  ")
	}
	if err := e.Encode(v); err != nil {
		return err
	}
	// Outside of strings JSON is printable ASCII and line ends: what is escaped
	// here stands inside one.
	var out strings.Builder
	for _, r := range b.String() {
		switch {
		case r == '\n' || unicode.IsPrint(r):
			out.WriteRune(r)
		case r > 0xffff:
			hi, lo := utf16.EncodeRune(r)
			fmt.Fprintf(&out, `\u%04x\u%04x`, hi, lo)
		default:
			fmt.Fprintf(&out, `\u%04x`, r)
		}
	}
	_, err := io.WriteString(w, out.String())
	return err
}
