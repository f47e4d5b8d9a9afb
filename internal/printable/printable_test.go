package printable_test

import (
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/internal/printable"
)

// TestLineJoinsLines: an error of several lines, as errors.Join and the client libraries make them, becomes one line.
func TestLineJoinsLines(t *testing.T) {
	for text, want := range map[string]string{
		"":                    "",
		"a: b":                "a: b",
		"a\nb":                "a; b",
		"cannot:\n\tb\r\n\tc": "cannot: b; c",
		"\n a \n\n b.\nc \n":  "a; b. c",
	} {
		if got := printable.Line(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

// TestEscapeShowsWhatATerminalObeys: Escape writes every character that controls a terminal, is invisible
// or moves the text around it, and leaves the text of all languages as it is.
func TestEscapeShowsWhatATerminalObeys(t *testing.T) {
	hostile := []rune{
		0x00, '\a', '\b', '\t', '\n', '\v', '\f', '\r', 0x1b, 0x7f, // C0
		0x80, 0x85, 0x90, 0x9b, 0x9c, 0x9d, 0x9f, // C1, which has CSI, DCS and OSC in one character
		0x00ad, 0x061c, 0x180e, // soft hyphen, Arabic letter mark, Mongolian vowel separator
		0x200b, 0x200c, 0x200d, 0x2060, 0xfeff, // zero width
		0x200e, 0x200f, 0x202a, 0x202b, 0x202c, 0x202d, 0x202e, 0x2066, 0x2067, 0x2068, 0x2069, // bidirectional
		0x2028, 0x2029, // separators of lines and paragraphs
		0x00a0, 0x2003, 0x3000, // spaces that are none
		0xfff9, 0xe0001, 0xe0041, // annotations, tags
		0xe000, 0x10ffff, // private use, no character
	}
	for _, r := range hostile {
		got := printable.Escape("a" + string(r) + "b")
		if !strings.HasPrefix(got, `a\`) || !strings.HasSuffix(got, "b") || !printable.Safe(got) {
			t.Errorf("%U: %q", r, got)
		}
	}
	for text, want := range map[string]string{
		"nightly, ночь, 夜, ليل, रात, é, 👍": "nightly, ночь, 夜, ليل, रात, é, 👍",
		"\x1b]0;title\a":                         `\x1b]0;title\a`,
		"re\u202efs":                             `re\u202efs`,
		"bad \xff\xc3 bytes, but \ufffd":         `bad \xff\xc3 bytes, but ` + "\ufffd",
		"e" + strings.Repeat("\u0301", 6) + "!e": "e" + strings.Repeat("\u0301", 4) + `\u0301\u0301!e`,
	} {
		if got := printable.Escape(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
		if printable.Safe(text) != (text == want) {
			t.Errorf("Safe(%q) is %v", text, printable.Safe(text))
		}
	}
}

// TestClipEndsAtACharacter: Clip cuts no character in two.
func TestClipEndsAtACharacter(t *testing.T) {
	for n, want := range map[int]string{0: "", 1: "a", 2: "a", 3: "a", 4: "a夜", 5: "a夜b", 9: "a夜b"} {
		if got := printable.Clip("a夜b", n); got != want {
			t.Errorf("%d bytes: %q, want %q", n, got, want)
		}
	}
}
