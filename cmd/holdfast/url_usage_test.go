//go:build linux || darwin

package main_test

import (
	"os"
	"strconv"
	"strings"
	"testing"
)

// TestURLErrorIsBadUsage: the command finds an error in a URL before it opens the store, and ends with
// bad usage. It reports the error once, and shows no part of a password.
func TestURLErrorIsBadUsage(t *testing.T) {
	for raw, message := range map[string]string{
		"mysql://u@127.0.0.1:1/db?recpie=named":        "recpie",
		"postgres://u@127.0.0.1:1/db?recipes=advisory": "recipes",
		"postgres://u@127.0.0.1:1/db?key=given":        "key",
		"redis://127.0.0.1:1/0?replica=2":              "replica",
		"redis://127.0.0.1:1/-1":                       "-1",
		"redis://127.0.0.1:1/zero":                     "zero",
		"etcd://127.0.0.1:1/p?cret=x":                  "cret",
		"zk://127.0.0.1:1/p?tik=1s":                    "tik",
		"file:///DIR?mod=0770":                         "mod",
		// These passwords contain special characters that are not escaped.
		"postgres://u:12/hid@127.0.0.1:1/db":            "%XX",
		"postgres://u:12#hid@127.0.0.1:1/db":            "%23",
		"postgres://u:12?hid@127.0.0.1:1/db":            "%XX",
		"postgres://u:12@hid/34@127.0.0.1:1/db":         "%XX",
		"mysql://u:12/hid@127.0.0.1:1/db":               "%XX",
		"redis://u:12@hid/34@127.0.0.1:1/0":             "%XX",
		"redis://u:hid/34@127.0.0.1:1/0":                "%XX",
		"redis://u:12#hid@127.0.0.1:1/0":                "%23",
		"etcd://u:12/hid@127.0.0.1:1/p":                 "%XX",
		"zk://u:12/hid@127.0.0.1:1/p":                   "%XX",
		"postgres://u@127.0.0.1:1/db?password=12&hid":   "%XX",
		"redis+sentinel://h/m?sentinel_password=12&hid": "%XX",
	} {
		t.Run(raw, func(t *testing.T) {
			t.Parallel()
			w := newSandbox(t)
			r := w.run("ls", "--store", strings.Replace(raw, "DIR", w.path("dir"), 1)).expectStatus(t, 64)
			if !strings.Contains(r.stderr, message) || strings.Contains(r.stderr, "hid") || strings.Contains(r.stderr, "u:12") {
				t.Errorf("%s", r.stderr)
			}
			for line := range strings.Lines(r.stderr) {
				if strings.Count(line, "://") > 1 || strings.Count(line, "invalid") > 1 {
					t.Errorf("twice: %s", line)
				}
			}
		})
	}
}

// TestUnknownDatabaseIsBadUsage: a database number that the server does not have is bad usage.
func TestUnknownDatabaseIsBadUsage(t *testing.T) {
	t.Parallel()
	url := startRedis(t)
	w := newSandbox(t)
	for _, args := range [][]string{{"ls"}, {"run", "--wait", "1m", "x", "--", "true"}} {
		r := w.runIn([]string{"HOLDFAST_STORE=" + url + "/99"}, "", args...)
		r.expectStatus(t, 64)
		if strings.Count(strings.ReplaceAll(r.stderr, url, ""), "99") != 1 || !strings.Contains(r.stderr, "database") {
			t.Errorf("%s", r.stderr)
		}
	}
}

// TestPasswordCausesWarning: the command prints a warning if the URL contains a password, and
// otherwise none.
func TestPasswordCausesWarning(t *testing.T) {
	for raw, want := range map[string]bool{
		"postgres://u@127.0.0.1:1/db?keys=given&tokens=durable&recipe=none": false,
		"postgres://u@127.0.0.1:1/db?passfile=/f&sslkey=/k&recipe=none":     false,
		"postgres://u@127.0.0.1:1/db?password=hidden&recipe=none":           true,
		"postgres://u:hidden@127.0.0.1:1/db?recipe=none":                    true,
		"redis+sentinel://127.0.0.1:1/m?sentinel_password=hid&none=1":       true,
	} {
		r := newSandbox(t).run("show", "--store", raw, "x")
		if got := strings.Contains(r.stderr, "warning"); got != want || strings.Contains(r.stderr, "hid") {
			t.Errorf("%s: %s", raw, r.stderr)
		}
	}
}

// TestExposedPasswordCausesWarning: each command that opens a store warns once of a password that goes to another
// machine without TLS to a verified server. With require_tls=true it refuses the URL.
func TestExposedPasswordCausesWarning(t *testing.T) {
	w := newSandbox(t)
	const open = "postgres://u:hidden@0.0.0.0:1/db?connect_timeout=1"
	for _, args := range [][]string{{"ls"}, {"show", "x"}, {"init"}, {"run", "--try", "x", "--", "true"}, {"hold", "--pid", strconv.Itoa(os.Getpid()), "--try", "x"}} {
		for raw, want := range map[string]int{
			open:                          1,
			open + "&sslmode=require":     1,
			open + "&sslmode=verify-full": 0,
			strings.Replace(open, "0.0.0.0", "127.0.0.1", 1): 0,
		} {
			r := w.runIn([]string{"HOLDFAST_STORE=" + raw}, "", args...)
			if strings.Count(r.stderr, "warning: the password for 0.0.0.0 is not protected") != want || strings.Contains(r.stderr, "hidden") {
				t.Errorf("%s %s: %s", args, raw, r.stderr)
			}
		}
		r := w.runIn([]string{"HOLDFAST_STORE=" + open + "&sslmode=require&require_tls=true"}, "", args...)
		r.expectStatus(t, 64)
		if !strings.Contains(r.stderr, "require_tls=true, and the connections to 0.0.0.0 are not by TLS to a verified server: give sslmode=verify-full") {
			t.Errorf("%s: %s", args, r.stderr)
		}
	}
}

// TestInspectionMakesNoDirectory: an inspection of a directory that does not exist finds no lock, and does
// not create the directory.
func TestInspectionMakesNoDirectory(t *testing.T) {
	w := newSandbox(t)
	for want, all := range map[int][][]string{
		0:  {{"ls"}, {"ls", "--json"}, {"show", "x"}, {"__complete", "show", ""}},
		75: {{"break", "--token", "1", "x"}},
	} {
		for _, args := range all {
			for _, env := range [][]string{nil, {"HOLDFAST_STORE=" + w.storeURL() + "?mode=0770"}} {
				r := w.runIn(env, "", args...).expectStatus(t, want)
				if strings.Contains(r.stderr, "warning") {
					t.Errorf("%q: %s", args, r.stderr)
				}
			}
		}
	}
	for _, dir := range []string{w.home, w.path("locks")} {
		if made, _ := os.ReadDir(dir); len(made) > 0 {
			t.Errorf("made: %s %v", dir, made)
		}
	}
	if _, err := os.Stat(w.path("locks")); err == nil {
		t.Error("the directory was made")
	}
}

// TestBreakReportsNoFalseSuccess: break does not report that it took away a grant that never
// existed, even if --wait is too short for a request.
func TestBreakReportsNoFalseSuccess(t *testing.T) {
	w := withStore(t)
	w.hold("x")
	for _, name := range []string{"x", "nobody's"} {
		for _, wait := range []string{"1ns", "30s"} {
			r := w.run("break", "--wait", wait, "--token", "5", name).expectStatus(t, 75)
			if !strings.Contains(r.stderr, "not broken") || strings.Contains(r.stderr, "is taken away") {
				t.Errorf("--wait %s: %s", wait, r.stderr)
			}
		}
	}
}
