package protect

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	zookeeper "github.com/go-zookeeper/zk"
)

const root = "../../.."

// exampleFiles have the examples of guards and values that need a server.
var exampleFiles = map[string]string{
	"redisguard": "redisstore/guard_example_test.go",
	"etcdguard":  "etcdstore/guard_example_test.go",
	"zkguard":    "zkstore/guard_example_test.go",
	"pgguard":    "pgstore/guard_example_test.go",
	"fences":     "fence/example_test.go",
	"values":     "optimistic/example_test.go",
}

// serverExample is an example with the lines that it prints with a server.
type serverExample struct{ pkg, name, prints string }

var (
	exampleFunc = regexp.MustCompile(`(?ms)^func (Example\w*)\(\) \{\n(.*?)^\}`)
	withServer  = regexp.MustCompile(`(?s)\n\t// With [^:]* prints:\n(.*)$`)
	packageName = regexp.MustCompile(`(?m)^package \w+$`)
)

// TestExamplesWithServers runs the examples of guards and values that need a server. It
// replaces their addresses with those of the test's servers.
func TestExamplesWithServers(t *testing.T) {
	zk := systems(t, "zookeeper")[0]
	pg, my := systems(t, "postgres")[0], systems(t, "mysql")[0]
	prepareExamples(t, zk, pg, my)
	addresses := strings.NewReplacer(
		`"redis://localhost"`, quote(systems(t, "redis")[0].URL),
		`"etcd://localhost"`, quote(systems(t, "etcd")[0].URL),
		`"zk://localhost"`, quote(zk.URL),
		`"postgres://localhost/app"`, quote(pg.Address),
		`"postgres://localhost/app?recipe=optimistic"`, quote(pg.URL),
		`"root@tcp(localhost)/app"`, quote(my.Address),
		`"https://bucket.s3.eu-central-1.amazonaws.com/state"`, quote(bucket(t).URL),
	)
	dir := t.TempDir()
	var examples []serverExample
	var imports, cases strings.Builder
	overlay := map[string]string{}
	add := func(name, source string) {
		real := filepath.Join(dir, strings.ReplaceAll(name, "/", "-"))
		check(t, os.WriteFile(real, []byte(source), 0o600))
		virtual, err := filepath.Abs(filepath.Join("examples", name))
		check(t, err)
		overlay[virtual] = real
	}
	for pkg, file := range exampleFiles {
		text, err := os.ReadFile(filepath.Join(root, file))
		check(t, err)
		found := false
		for _, m := range exampleFunc.FindAllStringSubmatch(string(text), -1) {
			if prints := withServer.FindStringSubmatch(m[2]); prints != nil {
				found = true
				examples = append(examples, serverExample{pkg, m[1], strings.ReplaceAll(prints[1], "\t// ", "")})
				fmt.Fprintf(&cases, "\t\t%q: %s.%s,\n", pkg+"."+m[1], pkg, m[1])
			}
		}
		if !found {
			t.Fatalf("%s has no example with a server", file)
		}
		fmt.Fprintf(&imports, "\t\"github.com/holdfast-go/holdfast/e2e/conformance/protect/examples/%s\"\n", pkg)
		add(pkg+"/example.go", packageName.ReplaceAllString(addresses.Replace(string(text)), "package "+pkg))
	}
	add("main.go", "package main\n\nimport (\n\t\"os\"\n\n"+imports.String()+
		"\n\t_ \"github.com/go-sql-driver/mysql\"\n\t_ \"github.com/jackc/pgx/v5/stdlib\"\n)\n\n"+
		"func main() {\n\tmap[string]func(){\n"+cases.String()+"\t}[os.Args[1]]()\n}\n")
	replace, err := json.Marshal(map[string]any{"Replace": overlay})
	check(t, err)
	file, program := filepath.Join(dir, "overlay.json"), filepath.Join(dir, "program")
	check(t, os.WriteFile(file, replace, 0o600))
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-overlay", file, "-o", program, "./examples").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, e := range examples {
		t.Run(e.pkg+"/"+e.name, func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), program, e.pkg+"."+e.name)
			cmd.Stderr = os.Stderr
			if out, err := cmd.Output(); err != nil || string(out) != e.prints {
				t.Errorf("%v; it prints\n%s, want\n%s", err, out, e.prints)
			}
		})
	}
}

func quote(s string) string { return fmt.Sprintf("%q", s) }

// prepareExamples makes the tables and nodes that the examples use.
func prepareExamples(t *testing.T, zk, pg, my system) {
	t.Helper()
	for s, statements := range map[system][]string{
		pg: {
			"DROP TABLE IF EXISTS invoices",
			"CREATE TABLE invoices (id BIGINT PRIMARY KEY, paid BOOLEAN NOT NULL)", "INSERT INTO invoices VALUES (17, false)",
		},
		my: {
			"DROP TABLE IF EXISTS balances",
			"CREATE TABLE balances (id BIGINT PRIMARY KEY, amount BIGINT NOT NULL, fence BIGINT NOT NULL, version BIGINT NOT NULL)",
			"INSERT INTO balances VALUES (17, 100, 0, 0), (18, 100, 0, 0)",
		},
	} {
		db, _, err := openDatabase(s.Kind, s.Address)
		check(t, err)
		defer db.Close()
		for _, statement := range statements {
			if _, err := db.ExecContext(t.Context(), statement); err != nil {
				t.Fatal(err)
			}
		}
	}
	client, _, err := zookeeper.Connect([]string{zk.Address}, 20*time.Second, zookeeper.WithLogger(quiet{}))
	check(t, err)
	defer client.Close()
	for _, path := range []string{"/app", "/app/state"} {
		if _, err := client.Create(path, nil, 0, zookeeper.WorldACL(zookeeper.PermAll)); err != nil && !errors.Is(err, zookeeper.ErrNodeExists) {
			t.Fatal(err)
		}
	}
}
