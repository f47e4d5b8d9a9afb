package example

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/holdfast-go/holdfast"

// published are the modules of this repository, by their directories.
var published = []string{"", "etcdstore", "mysqlstore", "natsstore", "otelhooks", "pgstore", "redisstore", "s3store", "sqlitestore", "zkstore", "check", "internal/servers", "internal/sqlkit"}

// outside is a module outside the repository. It uses the published modules from this
// clone.
type outside struct {
	t   *testing.T
	dir string
}

func newOutside(t *testing.T, require []string) *outside {
	t.Helper()
	clone, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	o := &outside{t, t.TempDir()}
	o.run("go", "mod", "init", "example.com/jobs")
	edit := []string{"mod", "edit"}
	var sums []byte // the checksums of the clone, so that go looks none up
	for _, dir := range published {
		path := strings.TrimSuffix(module+"/"+dir, "/")
		edit = append(edit, "-replace="+path+"="+filepath.Join(clone, dir))
		if slices.Contains(require, path) {
			edit = append(edit, "-require="+path+"@v0.1.0")
		}
		b, err := os.ReadFile(filepath.Join(clone, dir, "go.sum"))
		if err != nil {
			t.Fatal(err)
		}
		sums = append(sums, b...)
	}
	o.run("go", edit...)
	o.write("go.sum", string(sums))
	return o
}

func (o *outside) run(name string, args ...string) {
	o.t.Helper()
	cmd := exec.CommandContext(o.t.Context(), name, args...)
	cmd.Dir = o.dir
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=mod")
	if out, err := cmd.CombinedOutput(); err != nil {
		o.t.Fatalf("%s %q: %v\n%s", name, args, err, out)
	}
}

func (o *outside) write(name, text string) {
	o.t.Helper()
	path := filepath.Join(o.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		o.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		o.t.Fatal(err)
	}
}

// blocks returns the fenced blocks of a page that have the given word after the opening
// fence.
func blocks(t *testing.T, page, word string) []string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../../..", page))
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, m := range regexp.MustCompile("(?ms)^```"+word+"\n(.*?)^```$").FindAllStringSubmatch(string(text), -1) {
		all = append(all, m[1])
	}
	return all
}

// TestStorePagesBuild builds the program of README.md with the import and the URL of each store's page, in a
// module outside the repository. That module requires the imported modules alone.
func TestStorePagesBuild(t *testing.T) {
	library := strings.Join(blocks(t, "README.md", "go"), "")
	lines := regexp.MustCompile(`(?m)\Aimport _ "(\S+)"\n\nlocker, err := holdfast\.Open\(ctx, ("\S+")\)\n\z`)
	for page, programs := range map[string]int{"docs/files.md": 1, "docs/redis.md": 1, "docs/etcd.md": 1, "docs/zookeeper.md": 1, "docs/nats.md": 1, "docs/s3.md": 1, "docs/sql.md": 2} {
		t.Run(page, func(t *testing.T) {
			for _, block := range blocks(t, page, "go") {
				m := lines.FindStringSubmatch(block)
				if m == nil {
					continue
				}
				programs--
				program := strings.Replace(library, module+"/filestore", m[1], 1)
				program = strings.Replace(program, `"file:"`, m[2], 1)
				if !strings.Contains(program, `"`+m[1]+`"`) || !strings.Contains(program, m[2]) {
					t.Fatalf("README.md has no program to change:\n%s", program)
				}
				o := newOutside(t, []string{module, m[1]})
				o.write("main.go", program)
				o.write("other/other.go", "package other\n") // with two packages go build links no program
				o.run("go", "build", "./...")
			}
			if programs != 0 {
				t.Fatalf("%d blocks that change the two lines are missing", programs)
			}
		})
	}
}

// TestReplaceLinesAreComplete: docs/adding-a-store.md has a replace line for every module of the
// repository that a store, its tests and its own command need.
func TestReplaceLinesAreComplete(t *testing.T) {
	var lines string
	for _, block := range blocks(t, "docs/adding-a-store.md", "sh") {
		if strings.Contains(block, "-replace=") {
			lines += block
		}
	}
	// replaced has the module path of each replace line. A line in the loop over the stores
	// counts for each store.
	replaced := map[string]bool{}
	for _, m := range regexp.MustCompile(`-replace=(\S+?)=\.\./holdfast(\S*)`).FindAllStringSubmatch(lines, -1) {
		each := []string{""}
		if strings.HasSuffix(m[1], "$store") {
			each = strings.Fields(regexp.MustCompile(`for store in (.*);`).FindStringSubmatch(lines)[1])
		}
		for _, store := range each {
			path, folder := strings.Replace(m[1], "$store", store, 1), strings.Replace(m[2], "$store", store, 1)
			if path != module+folder {
				t.Errorf("%s is not in the folder %s", path, folder)
			}
			replaced[path] = true
		}
	}
	cmd := exec.CommandContext(t.Context(), "go", "list", "-deps", "-test", "-f", "{{with .Module}}{{.Path}}{{end}}", module+"/cmd/holdfast/command", module+"/cmd/holdfast", module+"/check/...", module+"/driver/...")
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	if needed := strings.Fields(string(out)); !slices.Contains(needed, module+"/check") {
		t.Errorf("no module of the repository among %q", needed)
	}
	for path := range strings.FieldsSeq(string(out)) {
		if strings.HasPrefix(path, module) && !replaced[path] {
			t.Errorf("no -replace=%s", path)
			replaced[path] = true // report each path once
		}
	}
}

// imports has the package of each identifier that the code on the pages may use.
var imports = map[string]string{
	"atomic": "sync/atomic", "context": "context", "errors": "errors", "fmt": "fmt", "http": "net/http", "log": "log", "os": "os",
	"signal": "os/signal", "slog": "log/slog", "sql": "database/sql", "sync": "sync", "syscall": "syscall", "testing": "testing", "time": "time",
	"holdfast": module, "fence": module + "/fence", "optimistic": module + "/optimistic", "sequence": module + "/sequence", "memstore": module + "/memstore", "etcdstore": module + "/etcdstore",
	"mysqlstore": module + "/mysqlstore", "otelhooks": module + "/otelhooks",
	"pgstore": module + "/pgstore", "redisstore": module + "/redisstore", "layouts": module + "/redisstore/layouts", "zkstore": module + "/zkstore",
	"check": module + "/check", "checktest": module + "/check/checktest", "console": module + "/console", "holdfasttest": module + "/holdfasttest",
	"clientv3": "go.etcd.io/etcd/client/v3", "redis": "github.com/redis/go-redis/v9",
}

// given has, for each page, the variables that its code uses and does not declare.
var given = map[string]string{
	"docs/choosing.md":    "db *sql.DB, lock *holdfast.Lock",
	"docs/coming-from.md": "old, next *holdfast.Locker, name string, save func(context.Context, uint64) error",
	"docs/etcd.md":        "store *etcdstore.Store, lock *holdfast.Lock",
	"docs/redis.md":       "store *redisstore.Store, client redis.UniversalClient",
	"docs/zookeeper.md":   "store *zkstore.Store, lock *holdfast.Lock, data []byte",
	"docs/sql.md":         "db *sql.DB, data []byte",
}

var (
	imported = regexp.MustCompile(`(?ms)^import (?:\(.*?^\)|.*?$)\n?`)
	declared = regexp.MustCompile(`(?m)^(\w+)(?:, (\w+))? :=`)
	function = regexp.MustCompile(`(?m)^(?:func|type|var) `)
)

// file returns the text of a Go file with the code of a block.
func file(page, block, name string) string {
	if strings.HasPrefix(block, "package ") {
		return block
	}
	head := strings.Join(imported.FindAllString(block, -1), "")
	code := imported.ReplaceAllString(block, "")
	if !function.MatchString(code) {
		var used strings.Builder
		for _, m := range declared.FindAllStringSubmatch(code, -1) {
			for _, v := range m[1:] {
				if v != "" && v != "_" {
					fmt.Fprintf(&used, "_ = %s\n", v)
				}
			}
		}
		params := strings.TrimSuffix("ctx context.Context, locker *holdfast.Locker, "+given[page], ", ")
		code = "func " + name + "(" + params + ") error {\n{\n" + code + used.String() + "}\nreturn nil\n}\n"
	}
	var b strings.Builder
	b.WriteString("package page\n" + head)
	for _, word := range slices.Sorted(maps.Keys(imports)) {
		if regexp.MustCompile(`\b`+word+`\.[A-Z]`).MatchString(code) && !strings.Contains(head, "\t\""+imports[word]+"\"") {
			fmt.Fprintf(&b, "import %q\n", imports[word])
		}
	}
	return b.String() + code
}

// TestPagesCompile compiles the Go code on the pages. docs/adding-a-store.md has a test of
// its own.
func TestPagesCompile(t *testing.T) {
	var require []string
	for _, dir := range published {
		require = append(require, strings.TrimSuffix(module+"/"+dir, "/"))
	}
	o := newOutside(t, require)
	pages, err := filepath.Glob("../../../docs/*.md")
	if err != nil || len(pages) == 0 {
		t.Fatal(err)
	}
	n := 0
	for _, path := range pages {
		page := "docs/" + filepath.Base(path)
		if page == "docs/adding-a-store.md" {
			continue
		}
		for i, block := range blocks(t, page, "go") {
			n++
			name := fmt.Sprintf("%s%d", strings.NewReplacer(".md", "", "-", "").Replace(filepath.Base(path)), i)
			o.write(filepath.Join(name, "page.go"), file(page, block, name))
		}
	}
	if n < 3 {
		t.Fatalf("%d blocks", n)
	}
	o.run("go", "vet", "-unusedresult=false", "./...")
}
