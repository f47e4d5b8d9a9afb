//go:build linux || darwin

package main_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
)

// doctorJSON is what scripts read from `holdfast doctor --json`.
type doctorJSON struct {
	URL, Recipe string
	Checks      int
	Findings    []struct{ Weight, Check, Evidence, Want, Consequence, Remedy string }
	Measured    *struct {
		RoundTrip, Write struct{ P50, P99 float64 }
		Steps            []struct{ Callers, Pairs float64 }
		TTL              float64 `json:"advised_ttl_seconds"`
		Callers          int     `json:"advised_callers"`
	}
}

// TestDoctorIsSilentOnGoodStore: a directory of this user passes each check, and status 0 says so.
func TestDoctorIsSilentOnGoodStore(t *testing.T) {
	w := newSandbox(t)
	r := w.run("doctor", w.storeURL()).expectStatus(t, 0)
	if !strings.HasPrefix(r.stdout, w.storeURL()+" file\n") || !strings.HasSuffix(r.stdout, "0 breaks a promise, 0 costs time, 0 is good to know\n") {
		t.Errorf("stdout: %q", r.stdout)
	}
	var d doctorJSON
	decode(t, w.runIn([]string{"HOLDFAST_STORE=" + w.storeURL()}, "", "doctor", "--json"), &d)
	if d.Recipe != "file" || d.Checks < 3 || d.Findings == nil || len(d.Findings) > 0 {
		t.Errorf("%+v", d)
	}
}

// TestDoctorPrintsFindingsByWeight: doctor ends with 1 if a finding breaks a promise, prints the heaviest first, and
// shows what the store refuses as a finding. The password of the URL is in no output.
func TestDoctorPrintsFindingsByWeight(t *testing.T) {
	t.Parallel()
	server := startServer(t)
	do := func(args ...string) {
		t.Helper()
		if _, err := server.Do(t.Context(), args...); err != nil {
			t.Fatal(err)
		}
	}
	do("ACL", "SETUSER", "doctor", "on", ">s3cr3t-pw", "~*", "&*", "+@all")
	do("CONFIG", "SET", "client-output-buffer-limit", "pubsub 1000 500 60")
	w := newSandbox(t)
	file := w.file("url", "redis://doctor:s3cr3t-pw@"+server.Address())
	r := w.run("doctor", "--store-file", file).expectStatus(t, 1)
	breaks, costs := strings.Index(r.stdout, "\npersistence: breaks a promise\n"), strings.Index(r.stdout, "\npubsub-buffer: costs time\n")
	if breaks < 0 || costs < breaks || !strings.Contains(r.stdout, "  remedy  set appendonly yes\n") {
		t.Errorf("stdout:\n%s", r.stdout)
	}

	do("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
	r = w.run("doctor", "--json", "--store-file", file).expectStatus(t, 1)
	var d doctorJSON
	if err := json.Unmarshal([]byte(r.stdout), &d); err != nil {
		t.Fatal(err)
	}
	if len(d.Findings) < 3 || d.Findings[0].Check != "refused" || !strings.Contains(d.Findings[0].Evidence, "allkeys-lru") || d.Recipe != "" {
		t.Errorf("%+v", d)
	}
	order := []string{"breaks", "costs", "note"}
	if !slices.IsSortedFunc(d.Findings, func(a, b struct{ Weight, Check, Evidence, Want, Consequence, Remedy string }) int {
		return slices.Index(order, a.Weight) - slices.Index(order, b.Weight)
	}) {
		t.Errorf("not by weight: %+v", d.Findings)
	}
	if strings.Contains(r.stdout+r.stderr, "s3cr3t") {
		t.Errorf("the password is shown:\n%s%s", r.stdout, r.stderr)
	}
	var raw map[string]any
	if err := json.Unmarshal([]byte(r.stdout), &raw); err != nil {
		t.Fatal(err)
	}
	documented(t, raw)

	must(t, server.Stop())
	if r = w.run("doctor", "--store-file", file).expectStatus(t, 69); r.stdout != "" {
		t.Errorf("stdout: %s", r.stdout)
	}
}

// TestDoctorMeasures: with --measure doctor locks for five seconds, leaves nothing, and advises a TTL if grants expire.
func TestDoctorMeasures(t *testing.T) {
	t.Parallel()
	w := newSandbox(t)
	url := startRedis(t)
	r := w.run("doctor", "--measure", "--json", url).expectStatus(t, 1) // the server keeps no data
	var raw map[string]any
	var d doctorJSON
	if err := json.Unmarshal([]byte(r.stdout), &raw); err != nil {
		t.Fatal(err)
	}
	documented(t, raw)
	if err := json.Unmarshal([]byte(r.stdout), &d); err != nil {
		t.Fatal(err)
	}
	if m := d.Measured; m == nil || len(m.Steps) == 0 || m.TTL < 1 || m.Callers < 1 {
		t.Errorf("%+v", m)
	}
	if r := w.run("ls", "--store", url).expectStatus(t, 0); r.stdout != "" {
		t.Errorf("left behind: %s", r.stdout)
	}
	contains(t, w.run("doctor", "--measure", w.storeURL()).expectStatus(t, 0).stdout, "round trip: p50 ", "pairs per second, 1 at a time: ", "pool: ")
	contains(t, w.run("doctor", "--measure", url).expectStatus(t, 1).stdout, "smallest TTL: ", "/ (9/10 - 1/3) = ")
}

// documented requires that docs/command.md has each field.
func documented(t *testing.T, v any) {
	t.Helper()
	switch v := v.(type) {
	case map[string]any:
		for k, inner := range v {
			if !strings.Contains(page(t, "command.md"), "`"+k+"`") {
				t.Errorf("the JSON field %q is missing in command.md", k)
			}
			documented(t, inner)
		}
	case []any:
		for _, inner := range v {
			documented(t, inner)
		}
	}
}
