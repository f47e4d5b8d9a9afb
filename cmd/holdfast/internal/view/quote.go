// Package view shows the states of locks on a terminal: as lines for scripts, and as a table and
// a page for people. Their JSON form is that of package shape. Names, hosts and reasons come from other processes. All text that could
// control a terminal is quoted or escaped here.
package view

import (
	"strconv"
	"strings"

	"github.com/holdfast-go/holdfast/internal/printable"
)

// none is shown for a missing value.
const none = "-"

// Text returns s unchanged if s is safe on a terminal and unambiguous. Otherwise it returns s quoted
// like a Go string.
func Text(s string) string {
	if s == "" {
		return none
	}
	if s != none && s[0] != '"' && strings.TrimSpace(s) == s && printable.Safe(s) {
		return s
	}
	return printable.Escape(strconv.Quote(s)) // Quote keeps all combining marks
}

// Plain reports whether a shell reads a name as one literal word.
func Plain(s string) bool {
	return s != "" && s[0] != '-' && s[0] != '~' && strings.IndexFunc(s, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("._/:@%+,-", r))
	}) < 0
}
