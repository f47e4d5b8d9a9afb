package sqlkit

import "strings"

// Statements returns the statements of a script, without comments. No literal of the script
// contains -- or ;.
func Statements(script string) (all []string) {
	var plain strings.Builder
	for line := range strings.Lines(script) {
		code, _, _ := strings.Cut(strings.TrimRight(line, "\n"), "--")
		plain.WriteString(code + "\n")
	}
	for s := range strings.SplitSeq(plain.String(), ";") {
		if s = strings.TrimSpace(s); s != "" {
			all = append(all, s)
		}
	}
	return all
}
