// Package tables keeps the documentation's tables the same as what the code
// declares.
package tables

import (
	"flag"
	"os"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/filestore"
	"github.com/holdfast-go/holdfast/memstore"
)

var update = flag.Bool("update", false, "write the documentation's tables")

// TestGuarantees compares docs/guarantees.md with the stores' declarations.
func TestGuarantees(t *testing.T) {
	const path = "../../../docs/guarantees.md"
	page, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	head, _, _ := strings.Cut(string(page), "\n## ")
	want := strings.TrimRight(head, "\n") + "\n"

	files, err := filestore.Open(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []driver.Store{memstore.New(), files} {
		g, err := s.Guarantees(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		want += "\n## " + g.Kind + "\n\n| | |\n| --- | --- |\n"
		for _, r := range g.Rows() {
			want += "| " + r.Key + " | " + r.Value + " |\n"
		}
		if err := s.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if *update {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if string(page) != want {
		t.Errorf("%s differs from what the stores declare; run go test ./conformance/tables -update in e2e", path)
	}
}
