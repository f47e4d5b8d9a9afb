package tables

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/must"
)

const choosingPage = "../../../docs/choosing.md"

// TestChoosingPageMatchesDeclarations compares the table of docs/choosing.md with what the stores declare. Stores
// with equal rows share one, and layouts of other clients have none.
func TestChoosingPageMatchesDeclarations(t *testing.T) {
	kinds := map[string][]string{}
	var rows []string
	for _, g := range declared(t) {
		if strings.HasPrefix(g.Kind, "redis-") || strings.HasPrefix(g.Kind, "zookeeper ") {
			continue // the layouts of other clients
		}
		crash := g.Crash.Describe()
		if g.Pause == driver.PauseKeeps {
			crash += "; a paused holder keeps it"
		}
		row := fmt.Sprintf("%s | %s | %s | %s", g.Rows()[0].Value, g.Order.Describe(), g.Wake, crash)
		if kinds[row] == nil {
			rows = append(rows, row)
		}
		kinds[row] = append(kinds[row], g.Kind)
	}
	table := "| store | locks reach | order of waiters | wake-up | a crash frees the lock |\n| --- | --- | --- | --- | --- |\n"
	for _, row := range rows {
		table += "| " + strings.Join(kinds[row], ", ") + " | " + row + " |\n"
	}

	page, err := os.ReadFile(choosingPage)
	must.Succeed(t, err)
	const begin, end = "<!-- stores: written by e2e/conformance/tables -->\n", "<!-- end -->"
	head, rest, ok := strings.Cut(string(page), begin)
	_, tail, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("%s has no place for the table of stores", choosingPage)
	}
	want := head + begin + table + end + tail
	writeOrCompare(t, choosingPage, string(page), want)
}
