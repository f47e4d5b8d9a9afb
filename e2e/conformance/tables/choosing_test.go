package tables

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
)

const (
	choosingPage = "../../../docs/choosing.md"
	measuredFile = "../../../docs/choosing.json"
)

// TestChoosingPageMatchesDeclarations compares the tables of docs/choosing.md with what the stores declare, and
// with the numbers of one run of the tests in conformance/protect.
func TestChoosingPageMatchesDeclarations(t *testing.T) {
	raw, err := os.ReadFile(measuredFile)
	if err != nil {
		t.Fatal(err)
	}
	var measured map[string]struct {
		Read, Lock, Optimistic, Locked float64
		Processes, Updates, Conflicts  int
	}
	if err := json.Unmarshal(raw, &measured); err != nil {
		t.Fatal(err)
	}
	all := declared(t)

	var stores strings.Builder
	stores.WriteString("| store | locks reach | order of waiters | wake-up | a crash frees the lock | a paused holder | lock and unlock | read a value |\n| --- | --- | --- | --- | --- | --- | --- | --- |\n")
	for _, g := range all {
		kind, recipe, _ := strings.Cut(g.Kind, " ")
		// The run used the recipe optimistic of MySQL and PostgreSQL. The other stores were opened without one.
		lock, read := "", ""
		if m, ok := measured[kind]; ok && (recipe == "" || recipe == "optimistic") {
			lock, read = micros(m.Lock), micros(m.Read)
		}
		fmt.Fprintf(&stores, "| %s | %s | %s | %s | %s | %s | %s | %s |\n", g.Kind, g.Scope.Describe(), g.Order.Describe(), g.Wake, g.Crash.Describe(), g.Pause.Describe(), lock, read)
	}

	var early strings.Builder
	for _, g := range all {
		if len(g.EarlyEnd) > 0 {
			fmt.Fprintf(&early, "- **%s**: %s. The holder notices within %s.\n", g.Kind, strings.Join(g.EarlyEnd, ", "), g.Notice)
		}
	}

	var updates strings.Builder
	updates.WriteString("| store | processes | updates | without a lock, a second | conflicts | under a lock, a second | without / under |\n| --- | --- | --- | --- | --- | --- | --- |\n")
	for _, kind := range []string{"file", "redis", "etcd", "zookeeper", "mysql", "postgres"} {
		m, ok := measured[kind]
		if !ok {
			t.Fatalf("%s has no numbers of %s", measuredFile, kind)
		}
		fmt.Fprintf(&updates, "| %s | %d | %d | %.0f | %d | %.0f | %.1f |\n", kind, m.Processes, m.Updates, m.Optimistic, m.Conflicts, m.Locked, m.Optimistic/m.Locked)
	}

	page, err := os.ReadFile(choosingPage)
	if err != nil {
		t.Fatal(err)
	}
	want := string(page)
	for name, table := range map[string]string{"stores": stores.String(), "early": early.String(), "updates": updates.String()} {
		begin := "<!-- " + name + ": written by e2e/conformance/tables -->\n"
		head, rest, ok := strings.Cut(want, begin)
		_, tail, ok2 := strings.Cut(rest, "<!-- end -->")
		if !ok || !ok2 {
			t.Fatalf("%s has no place for the table %q", choosingPage, name)
		}
		want = head + begin + table + "<!-- end -->" + tail
	}
	if *update {
		if err := os.WriteFile(choosingPage, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if string(page) != want {
		t.Errorf("%s differs from what the stores declare or %s says; run go test ./conformance/tables -update in e2e", choosingPage, measuredFile)
	}
}

func micros(n float64) string {
	if n < 1000 {
		return fmt.Sprintf("%.0f µs", n)
	}
	return fmt.Sprintf("%.1f ms", n/1000)
}
