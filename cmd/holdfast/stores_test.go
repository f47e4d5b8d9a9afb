//go:build linux || darwin

package main_test

import (
	"encoding/json"
	"maps"
	"os"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// TestStoresListsGuarantees requires that stores lists the linked schemes and the guarantees of the
// local stores, and leaves no file behind.
func TestStoresListsGuarantees(t *testing.T) {
	w := newSandbox(t)
	tmp := w.path("tmp")
	must(t, os.Mkdir(tmp, 0o700))
	env := []string{"TMPDIR=" + tmp}
	r := w.runIn(env, "", "stores").expectStatus(t, 0)
	if r.stderr != "" {
		t.Errorf("stderr: %q", r.stderr)
	}
	contains(t, r.stdout, "sqlite://\n  recipe            sqlite\n")
	if !strings.Contains(r.stdout, "redis://\n  guarantees depend on the URL and the server: holdfast stores redis://...\n") {
		t.Errorf("no word on the guarantees of a store with a server:\n%s", r.stdout)
	}
	l := w.locker()
	g, err := l.Guarantees(t.Context())
	must(t, err)
	for _, row := range g.Rows() {
		if !strings.Contains(r.stdout, row.Key) || !strings.Contains(r.stdout, row.Value) {
			t.Errorf("no row %q %q:\n%s", row.Key, row.Value, r.stdout)
		}
	}
	for _, dir := range []string{tmp, w.home} {
		if made, _ := os.ReadDir(dir); len(made) > 0 {
			t.Errorf("left behind: %v", made)
		}
	}

	var list struct {
		Stores []struct {
			Scheme     string
			Guarantees map[string]any
		}
	}
	decode(t, w.runIn(env, "", "stores", "--json"), &list)
	file, memory := map[string]any{}, map[string]any{}
	for i, s := range list.Stores {
		if i > 0 && s.Scheme <= list.Stores[i-1].Scheme {
			t.Errorf("%s after %s", s.Scheme, list.Stores[i-1].Scheme)
		}
		switch s.Scheme {
		case "file":
			file = s.Guarantees
		case "memory":
			memory = s.Guarantees
		}
	}
	// Scripts rely on these fields.
	keys := []string{"kind", "scope", "crash_frees", "paused_holder", "order", "wake", "wake_fallback_seconds", "wanted",
		"shared", "semaphore", "mixed_limits", "slots", "tokens", "early_end", "early_end_notice_seconds", "ttl",
		"min_hold_kept_by_store", "break", "inspection", "notes"}
	slices.Sort(keys)
	for _, s := range list.Stores {
		if s.Guarantees == nil {
			continue // a store with a server shows its guarantees only for a URL
		}
		if got := slices.Sorted(maps.Keys(s.Guarantees)); !slices.Equal(got, keys) {
			t.Errorf("%s: keys %v, want %v", s.Scheme, got, keys)
		}
	}
	if file["ttl"] != nil || file["scope"] != "machine" || file["kind"] != "file" {
		t.Errorf("file: %v", file)
	}
	if want := map[string]any{"min_seconds": 0.001, "max_seconds": 86400.0, "granularity_seconds": 0.0}; !reflect.DeepEqual(memory["ttl"], want) {
		t.Errorf("memory: %v", memory["ttl"])
	}
}

// TestStoresProbesURL: with a URL, stores opens that store and prints its guarantees.
func TestStoresProbesURL(t *testing.T) {
	w := newSandbox(t)
	r := w.run("stores", w.storeURL()).expectStatus(t, 0)
	if !strings.HasPrefix(r.stdout, w.storeURL()+"\n  recipe            file\n") || !strings.Contains(r.stdout, "this machine") || strings.Contains(r.stdout, "memory") {
		t.Errorf("stdout:\n%s", r.stdout)
	}
	var list struct {
		Stores []struct {
			Scheme, URL string
			Guarantees  struct{ Kind string }
		}
	}
	decode(t, w.run("stores", "--json", w.storeURL()), &list)
	if len(list.Stores) != 1 || list.Stores[0].URL != w.storeURL() || list.Stores[0].Guarantees.Kind != "file" {
		t.Errorf("%+v", list)
	}
	w.runScripted(nil, "stores", "scripted://no-such-host").expectStatus(t, 69)

	// The same URL in a file gives the same output.
	again := w.run("stores", "--store-file", w.file("url", w.storeURL()+"\n")).expectStatus(t, 0)
	if again.stdout != r.stdout || again.stderr != "" {
		t.Errorf("from a file:\n%s%s", again.stdout, again.stderr)
	}
}

// TestVersionNamesBuild requires that version prints the version, the Go version and the platform.
func TestVersionNamesBuild(t *testing.T) {
	w := newSandbox(t)
	var v struct{ Version, Go, OS, Arch string }
	decode(t, w.run("version", "--json"), &v)
	if v.Version == "" || v.Go != runtime.Version() || v.OS != runtime.GOOS || v.Arch != runtime.GOARCH {
		t.Errorf("%+v", v)
	}
	r := w.run("version").expectStatus(t, 0)
	if !strings.HasPrefix(r.stdout, "holdfast "+v.Version+"\n") || !strings.Contains(r.stdout, runtime.Version()) {
		t.Errorf("stdout: %q", r.stdout)
	}
}

// TestHelpHasStablePhrases requires that the help of run has the words that scripts rely on.
func TestHelpHasStablePhrases(t *testing.T) {
	r := newSandbox(t).run("help", "run").expectStatus(t, 0)
	contains(t, r.stdout, "64 ", "69 ", "74 ", "75 ", "78 ", "126 ", "127 ", "128+n",
		"HOLDFAST_STORE", "HOLDFAST_NAME", "HOLDFAST_TOKEN", "HOLDFAST_SLOT", "--min-hold", "Examples:")
}

func decode(t *testing.T, r result, into any) {
	t.Helper()
	r.expectStatus(t, 0)
	if err := json.Unmarshal([]byte(r.stdout), into); err != nil {
		t.Fatalf("%v:\n%s", err, r.stdout)
	}
}
