package torture

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/mutation"
)

var mistakes = flag.Bool("mistakes", false, "also build the command with mistakes in the stores, which takes minutes")

// serverMistakes are mistakes of stores with servers, as other libraries have made them.
var serverMistakes = []struct {
	name, local string
	plants      mutation.Plants
	rule        string // at least one of these words is that of the rule that convicts
}{
	{"a first row replaces one that came meanwhile", "mariadb-optimistic", mutation.Plants{
		"mysql-first": mutation.With("version = holdfast_row.version",
			"version = VALUES(version), token = VALUES(token), expires = VALUES(expires), touched = VALUES(touched), state = VALUES(state)"),
	}, "exclusion|tokens|model|leftovers"},
	{"a first row replaces one that came meanwhile", "postgres-optimistic", mutation.Plants{
		"postgres-first": mutation.With("ON CONFLICT DO NOTHING",
			"ON CONFLICT (name) DO UPDATE SET version = EXCLUDED.version, token = EXCLUDED.token, expires = EXCLUDED.expires, touched = EXCLUDED.touched, state = EXCLUDED.state"),
	}, "exclusion|tokens|model|leftovers"},
	{"a first grant replaces one that came meanwhile", "redis", mutation.Plants{
		"redis-first": func(line string) string {
			return "redis.call('HSET'" + regexp.MustCompile(`^if redis\.call\('HSETNX'(.*)\) == 1 then$`).ReplaceAllString(line, "$1)\nif true then")
		},
		"redis-combined": mutation.Is("call('HSET', K, 's0', record)\nif true then"),
	}, "exclusion"},
	{"a renewal shortens the key's life below another grant's", "redis", mutation.Plants{
		"redis-life": mutation.Is(""),
	}, "exclusion|tokens|model|order|waiting"}, // the queue ends with the key
	{"requests are too late by the client's wall clock", "redis", mutation.Plants{
		"redis-clock": mutation.Is("return time.Now().UnixMicro()"),
	}, "leftovers|waiting"},
	{"the token is the number of the node", "zookeeper", mutation.Plants{
		"zookeeper-token": mutation.And("if n, ok := p.read(path[len(dir)+1:]); ok {\ntoken = uint64(n.seq) + 1\np.token = token\n}"),
	}, "tokens|register|model"},
	{"the end of the waiter before it is a waiter's turn", "zookeeper", mutation.Plants{
		"zookeeper-counted": mutation.With("all[:i]", "all[i-1:i]"),
	}, "exclusion|order|model"},
}

// TestServerMistakesAreConvicted plants each mistake in a copy of the library's source, builds the command
// on it, and lets it check until it convicts.
func TestServerMistakesAreConvicted(t *testing.T) {
	if !*mistakes {
		t.Skip("takes minutes: run it with -mistakes")
	}
	stores := []string{"redisstore", "zkstore", "mysqlstore", "pgstore"}
	marks, err := mutation.Marks(stores...)
	if err != nil {
		t.Fatal(err)
	}
	planted := map[string]bool{}
	for _, m := range serverMistakes {
		for mark := range m.plants {
			planted[mark] = true
		}
		t.Run(m.local+"/"+m.name, func(t *testing.T) {
			bin, err := mutation.Build(t.TempDir(), "../../cmd/holdfast", marks, m.plants)
			if err != nil {
				t.Fatal(err)
			}
			began, rule := time.Now(), regexp.MustCompile(`(?m)^(`+m.rule+`) +BROKEN.*$`)
			ctx, cancel := context.WithTimeout(t.Context(), 6*time.Minute)
			defer cancel()
			for seed := 1; ; seed++ {
				dir := filepath.Join(t.TempDir(), "run")
				out, err := exec.CommandContext(ctx, bin, "check", "--local", m.local, "--duration", "20s", "--seed", fmt.Sprint(seed), "--dir", dir).CombinedOutput()
				if err == nil {
					continue
				}
				var exit *exec.ExitError
				if !errors.As(err, &exit) || exit.ExitCode() != 1 || !bytes.Contains(out, []byte(" BROKEN")) {
					t.Fatalf("seed %d: %v, %v\n%s", seed, err, ctx.Err(), out)
				}
				if !rule.Match(out) { // another rule alone convicts
					t.Logf("seed %d:\n%s", seed, out)
					continue
				}
				t.Logf("convicted after %s, seed %d: %s", time.Since(began).Round(100*time.Millisecond), seed, rule.Find(out))
				return
			}
		})
	}
	for mark, path := range marks {
		ours := slices.ContainsFunc(stores, func(s string) bool { return strings.Contains(filepath.ToSlash(path), "/"+s+"/") })
		if ours && !planted[mark] {
			t.Errorf("%s: no mistake is planted at the mark %s", path, mark)
		}
	}
}
