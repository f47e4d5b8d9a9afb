package sqlkit

import "strings"

// Statements returns the statements of a script, without comments. No literal of the script
// contains -- or ;.
func Statements(script string) (all []string) {
	var uncommented strings.Builder
	for line := range strings.Lines(script) {
		code, _, _ := strings.Cut(strings.TrimRight(line, "\n"), "--")
		uncommented.WriteString(code + "\n")
	}
	for s := range strings.SplitSeq(uncommented.String(), ";") {
		if s = strings.TrimSpace(s); s != "" {
			all = append(all, s)
		}
	}
	return all
}
