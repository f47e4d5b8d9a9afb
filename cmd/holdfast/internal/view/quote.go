// Package view shows the states of locks: as JSON, as lines for scripts, and as a table and
// a page for people. Names, hosts and reasons come from other processes. All text that could
// control a terminal is quoted or escaped here.
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

// none is shown for a missing value.
const none = "-"

// Text returns s unchanged if s is safe on a terminal and unambiguous. Otherwise it returns s quoted
// like a Go string.
func Text(s string) string {
	if s == "" {
		return none
	}
	if s != none && s[0] != '"' && strings.TrimSpace(s) == s && printable(s) {
		return s
	}
	return strconv.Quote(s)
}

// Plain reports whether a shell reads a name as one literal word.
func Plain(s string) bool {
	return s != "" && s[0] != '-' && s[0] != '~' && strings.IndexFunc(s, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("._/:@%+,-", r))
	}) < 0
}

// printable reports whether s has only printable characters. It also refuses invisible characters,
// and those that change the direction of writing.
func printable(s string) bool {
	return utf8.ValidString(s) && strings.IndexFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) < 0
}

// JSON writes v as JSON and escapes all unprintable characters. The standard library escapes only
// some control characters. JSON indents the output unless line is set.
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
	// Outside of strings, JSON has only printable ASCII and line ends. So every character that is
	// escaped here is inside a string.
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
