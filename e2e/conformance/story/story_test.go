package story

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/check/lab/story"
	"github.com/holdfast-go/holdfast/check/servers"
	_ "github.com/holdfast-go/holdfast/etcdstore"
	_ "github.com/holdfast-go/holdfast/filestore"
	_ "github.com/holdfast-go/holdfast/mysqlstore"
	_ "github.com/holdfast-go/holdfast/pgstore"
	_ "github.com/holdfast-go/holdfast/redisstore"
	_ "github.com/holdfast-go/holdfast/redisstore/redlock"
	_ "github.com/holdfast-go/holdfast/zkstore"
)

// TestStories plays every story on its server: the wrong lock fails, and holdfast survives.
func TestStories(t *testing.T) {
	for _, y := range story.Stories() {
		t.Run(y.Name, func(t *testing.T) {
			t.Parallel()
			set, err := story.NewSet()
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(set.Close)
			r, err := story.Play(t.Context(), y, set)
			if errors.Is(err, servers.ErrNotInstalled) && os.Getenv("HOLDFAST_REQUIRE_SERVERS") != "1" {
				t.Skip(err)
			}
			if err != nil {
				t.Fatal(err)
			}
			var b strings.Builder
			if err := r.Text(&b, true); err != nil {
				t.Fatal(err)
			}
			t.Log("\n" + b.String())
			if !r.OK() {
				t.Fatalf("the wrong lock is violated: %v; holdfast is violated: %v", r.Wrong.Violated, r.Right.Violated)
			}
			if r.Wrong.Outcome == "" || r.Right.Outcome == "" {
				t.Error("an outcome is missing")
			}
			for i, line := range strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n") {
				if len(line) > 79 || i >= 25 {
					t.Errorf("line %d does not fit on the terminal: %s", i+1, line)
				}
			}
		})
	}
}
