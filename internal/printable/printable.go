// Package printable makes text of other processes safe to show. Names, hosts and reasons of locks come
// from every client of a store, and a terminal or a page obeys some characters instead of showing them.
package printable

import (
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxMarks is how many combining marks may follow one character. Scripts of living languages need fewer;
// a flood of marks covers the lines above and below.
const maxMarks = 4

// Escape returns s with each character that is not safe to show written as in a Go string: \x1b, \u202e.
// Not safe are bytes that are no UTF-8, control characters (C0, C1), line and paragraph separators, characters that
// are invisible or change the direction of writing, spaces other than U+0020, and combining marks after the
// first four of a character.
func Escape(s string) string {
	var b strings.Builder
	Walk(s, func(text string, safe bool) {
		switch r, size := utf8.DecodeRuneInString(text); {
		case safe:
			b.WriteString(text)
		case r == utf8.RuneError && size == 1:
			q := strconv.Quote(text)
			b.WriteString(q[1 : len(q)-1])
		default:
			q := strconv.QuoteRuneToASCII(r)
			b.WriteString(q[1 : len(q)-1])
		}
	})
	return b.String()
}

// Line returns a text of several lines in one line, as a log and a terminal need an error. The lines are separated by
// semicolons, unless a line ends with punctuation of its own.
func Line(s string) string {
	if !strings.ContainsAny(s, "\n\r") {
		return s
	}
	var b strings.Builder
	for part := range strings.FieldsFuncSeq(s, func(r rune) bool { return r == '\n' || r == '\r' }) {
		if part = strings.TrimSpace(part); part == "" {
			continue
		}
		if t := b.String(); t != "" {
			if !strings.ContainsAny(t[len(t)-1:], ":;,.") {
				b.WriteByte(';')
			}
			b.WriteByte(' ')
		}
		b.WriteString(part)
	}
	return b.String()
}

// Clip cuts a text that only people read to at most n bytes, before a character.
func Clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "")
}

// Safe reports whether Escape leaves s as it is.
func Safe(s string) bool {
	all := true
	Walk(s, func(_ string, safe bool) { all = all && safe })
	return all
}

// Walk calls f with each character of s, and with whether the character is safe to show at its place.
func Walk(s string, f func(text string, safe bool)) {
	marks := 0
	for i, size := 0, 0; i < len(s); i += size {
		var r rune
		r, size = utf8.DecodeRuneInString(s[i:])
		if unicode.Is(unicode.M, r) {
			marks++
		} else {
			marks = 0
		}
		f(s[i:i+size], unicode.IsPrint(r) && marks <= maxMarks && (r != utf8.RuneError || size > 1))
	}
}
