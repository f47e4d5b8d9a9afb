package service

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
)

// root is the root of this clone.
const root = "../../.."

// example is an example of example_test.go, with the output that it declares.
type example struct{ name, want string }

// program is one program with all examples, built once: example_test.go and exampleMain. Its
// arguments are the name of an example and the URL of a store.
var program = struct {
	sync.Once
	path     string
	examples []example
	err      error
}{}

const exampleMain = `package main

import (
	"context"
	"os"

	"github.com/holdfast-go/holdfast"
	_ "github.com/holdfast-go/holdfast/etcdstore"
	_ "github.com/holdfast-go/holdfast/filestore"
	_ "github.com/holdfast-go/holdfast/mysqlstore"
	_ "github.com/holdfast-go/holdfast/natsstore"
	_ "github.com/holdfast-go/holdfast/pgstore"
	_ "github.com/holdfast-go/holdfast/redisstore"
	_ "github.com/holdfast-go/holdfast/s3store"
	_ "github.com/holdfast-go/holdfast/zkstore"

	_ "github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib"
)

func open() *holdfast.Locker {
	locker, err := holdfast.Open(context.Background(), os.Args[2])
	if err != nil {
		panic(err)
	}
	return locker
}

func main() {
	map[string]func(){
EXAMPLES	}[os.Args[1]]()
}
`

// buildExamples collects the examples and builds the program. The sources are in dir. The overlay shows
// them to the go command as a package of this module, so that they can import holdfast.
func buildExamples(dir string) error {
	text, err := os.ReadFile(filepath.Join(root, "example_test.go"))
	if err != nil {
		return err
	}
	var list strings.Builder
	for _, m := range regexp.MustCompile(`(?ms)^func (Example\w*)\(\) \{\n.*?^	// Output:(.*?)^\}`).FindAllStringSubmatch(string(text), -1) {
		program.examples = append(program.examples, example{m[1], normal(strings.ReplaceAll(m[2], "\t// ", ""))})
		list.WriteString("\t\t\"" + m[1] + "\": " + m[1] + ",\n")
	}
	sources := map[string]string{
		"examples.go": strings.Replace(string(text), "package holdfast_test", "package main", 1),
		"main.go":     strings.Replace(exampleMain, "EXAMPLES", list.String(), 1),
	}
	overlay := map[string]string{}
	for name, source := range sources {
		real := filepath.Join(dir, name)
		if err := os.WriteFile(real, []byte(source), 0o600); err != nil {
			return err
		}
		virtual, err := filepath.Abs(filepath.Join("examples", name))
		if err != nil {
			return err
		}
		overlay[virtual] = real
	}
	file, err := json.Marshal(map[string]any{"Replace": overlay})
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "overlay.json"), file, 0o600); err != nil {
		return err
	}
	program.path = filepath.Join(dir, "examples")
	cmd := exec.Command("go", "build", "-overlay", filepath.Join(dir, "overlay.json"), "-o", program.path, "./examples")
	if out, err := cmd.CombinedOutput(); err != nil {
		return &exec.Error{Name: string(out), Err: err}
	}
	return nil
}

var digits = regexp.MustCompile(`-?\d+`)

// normal replaces the numbers in a text, because tokens differ from store to store.
func normal(s string) string { return digits.ReplaceAllString(strings.TrimSpace(s), "N") }

// run runs an example, and returns its output. The example must end by itself.
func (e example) run(t *testing.T, url string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, program.path, e.name, url)
	var out, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &stderr
	if err := cmd.Run(); err != nil {
		t.Errorf("%s: %v\n%s", e.name, err, stderr.String())
	}
	return out.String()
}

// testExamples runs every example during an outage of the server, if the store has one. The
// example must end, and must not crash. Then each runs without an outage. It must print the
// declared output, or that the store does not support it.
func testExamples(t *testing.T, srv server, url string) {
	program.Do(func() {
		dir, err := os.MkdirTemp("", "holdfast-examples")
		if program.err = err; err == nil {
			atEnd = append(atEnd, func() { os.RemoveAll(dir) })
			program.err = buildExamples(dir)
		}
	})
	if program.err != nil {
		t.Fatal(program.err)
	}
	if len(program.examples) < 10 {
		t.Fatalf("%d examples are found", len(program.examples))
	}
	if srv != nil {
		srv.Kill()
		var running sync.WaitGroup
		for _, e := range program.examples {
			running.Go(func() { e.run(t, url) })
		}
		time.Sleep(time.Second) // the server is down when the examples start
		restart(t, srv)
		running.Wait()
	}
	var running errgroup.Group
	running.SetLimit(4) // each is a new process that probes a bucket with 70 requests
	for _, e := range program.examples {
		running.Go(func() error {
			got := e.run(t, url)
			if e.name == "ExampleLocker_TryDo" {
				return nil // its MinHold may pass on a slow machine
			}
			if normal(got) != e.want && !strings.Contains(got, "not supported by the store") {
				t.Errorf("%s prints\n%s\nwant\n%s", e.name, got, e.want)
			}
			return nil
		})
	}
	_ = running.Wait()
}
