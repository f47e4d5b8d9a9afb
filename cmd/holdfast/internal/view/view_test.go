package view_test

import (
	"strings"
	"testing"
	"time"

	"github.com/charmbracelet/x/ansi"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/view"
	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/shape"
)

var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func TestTextQuotesUnsafeText(t *testing.T) {
	for in, want := range map[string]string{
		"":                     "-",
		"-":                    `"-"`,
		"plain name/1":         "plain name/1",
		"größe 名":              "größe 名",
		`"quoted"`:             `"\"quoted\""`,
		`a "b"`:                `a "b"`,
		" space":               `" space"`,
		"tab\there":            `"tab\there"`,
		"line\nline":           `"line\nline"`,
		"\x1b[2Jclear":         `"\x1b[2Jclear"`,
		"bell\a":               `"bell\a"`,
		"\u009b31mC1":          `"\u009b31mC1"`,
		"turned \u202e around": `"turned \u202e around"`,
		"in\u200bvisible":      `"in\u200bvisible"`,
		"bad \xff":             `"bad \xff"`,
	} {
		if got := view.Text(in); got != want {
			t.Errorf("Text(%q) = %s, want %s", in, got, want)
		}
	}
}

func TestPlainAcceptsWordsWithoutQuotes(t *testing.T) {
	for _, s := range []string{"nightly", "billing/order:4711", "a-b_c.d@e"} {
		if !view.Plain(s) {
			t.Errorf("%q is not plain", s)
		}
	}
	for _, s := range []string{"", "-flag", "~root", "a b", "$(x)", "a;b", "a'b", `a\b`, "a\nb", "a*", "ä"} {
		if view.Plain(s) {
			t.Errorf("%q is plain", s)
		}
	}
}

func holder(token uint64) driver.Holder {
	return driver.Holder{Token: token, Limit: driver.Exclusive, Slot: driver.NoSlot, TTL: driver.Forever,
		Owner: driver.Owner{ID: "id", Host: "host", PID: 7, Reason: "reason", Since: now.Add(-90 * time.Second)}}
}

// states returns locks that together have a value for every column.
func states() []driver.State {
	full := holder(1<<63 - 1)
	full.Limit, full.Slot, full.TTL, full.Note, full.Instance = 4, 0, 2500*time.Millisecond, "stopped", "web-1"
	full.Reason = "\x1b[31mred http://u:hidden@h/"
	return []driver.State{
		{Name: "a\x1b]0;title\x07", Holders: []driver.Holder{full}, Waiters: []driver.Waiter{
			{Owner: driver.Owner{ID: "w", Host: "other", PID: 8}, Limit: driver.Unlimited, Note: "stopped"}}},
		{Name: "b", Waiters: []driver.Waiter{{Owner: driver.Owner{ID: "v"}, Limit: 1}}},
		{Name: "c", Holders: []driver.Holder{holder(2)}},
		{Name: "d", Err: driver.Broken("key:d", "\x1b[31m")},
	}
}

// TestShapeOfJSONIsFixed requires that the JSON has exactly the fields that scripts rely on.
func TestShapeOfJSONIsFixed(t *testing.T) {
	var b strings.Builder
	if err := shape.JSON(&b, shape.OfList(states(), now), true); err != nil {
		t.Fatal(err)
	}
	want := `{"at":"2026-03-01T12:00:00.000Z","locks":[` +
		`{"name":"a\u001b]0;title\u0007","held":true,"holders":[{"token":"9223372036854775807","slot":0,"ttl_seconds":2.5,"note":"stopped",` +
		`"id":"id","host":"host","pid":7,"instance":"web-1","reason":"\u001b[31mred http://u:xxxxx@h/","since":"2026-03-01T11:58:30.000Z","age_seconds":90,"mode":"limit 4","limit":4}],` +
		`"waiters":[{"position":1,"note":"stopped","id":"w","host":"other","pid":8,"instance":"","reason":"","since":null,"age_seconds":null,"mode":"shared","limit":null}]},` +
		`{"name":"b","held":false,"holders":[],"waiters":[{"position":1,"note":"","id":"v","host":"","pid":0,"instance":"","reason":"","since":null,"age_seconds":null,"mode":"exclusive","limit":1}]},` +
		`{"name":"c","held":true,"holders":[{"token":"2","slot":null,"ttl_seconds":null,"note":"",` +
		`"id":"id","host":"host","pid":7,"instance":"","reason":"reason","since":"2026-03-01T11:58:30.000Z","age_seconds":90,"mode":"exclusive","limit":1}],"waiters":[]},` +
		`{"name":"d","held":false,"holders":[],"waiters":[],"error":"the record \"key:d\" is broken, or another program has written it: \"\\x1b[31m\""}]}` + "\n"
	if b.String() != want {
		t.Errorf("got\n%s\nwant\n%s", b.String(), want)
	}

	b.Reset()
	if err := shape.JSON(&b, shape.OfList(nil, now), true); err != nil {
		t.Fatal(err)
	}
	if want := `{"at":"2026-03-01T12:00:00.000Z","locks":[]}` + "\n"; b.String() != want {
		t.Errorf("got %s", b.String())
	}
}

// TestLinesHaveFixedFields requires that the lines have exactly the fields that scripts rely on.
func TestLinesHaveFixedFields(t *testing.T) {
	var b strings.Builder
	for _, st := range states() {
		if err := view.Lines(&b, st, true); err != nil {
			t.Fatal(err)
		}
	}
	want := strings.Join([]string{
		`"a\x1b]0;title\a"|held|limit 4|9223372036854775807|0|2026-03-01T11:58:30.000Z|2.500|host:7|web-1|"\x1b[31mred http://u:xxxxx@h/"|stopped|1`,
		`"a\x1b]0;title\a"|waiting|shared|-|-|-|-|other:8|-|-|stopped|1`,
		`b|awaited|-|-|-|-|-|-|-|-|-|1`,
		`b|waiting|exclusive|-|-|-|-|-|-|-|-|1`,
		`c|held|exclusive|2|-|2026-03-01T11:58:30.000Z|-|host:7|-|reason|-|0`,
		`d|broken|-|-|-|-|-|-|-|-|the record "key:d" is broken, or another program has written it: "\x1b[31m"|0`,
	}, "\n") + "\n"
	if got := strings.ReplaceAll(b.String(), "\t", "|"); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// TestTableFitsEveryWidth requires that a table is never wider than the terminal, and that it has
// all columns if they fit.
func TestTableFitsEveryWidth(t *testing.T) {
	t.Setenv("LC_ALL", "C.UTF-8")
	wide := view.Table(states(), now, true, 1000)
	for i, want := range [][]string{
		{"NAME", "MODE", "TOKEN", "SLOT", "AGE", "HOLDER", "INSTANCE", "REASON", "TTL", "NOTE", "QUEUE"},
		{`"a\x1b]0;title\a"`, "limit 4", "9223372036854775807", "1m30s", "host:7", "web-1", `"\x1b[31mred http://u:xxxxx@h/"`, "2.5s", "stopped"},
		{"waiter 1", "shared", "other:8"},
		{"b", "free"},
		{"waiter 1", "exclusive"},
		{"c", "exclusive", "2", "none", "0"},
		{"d", "broken", `the record "key:d" is broken`},
	} {
		for _, s := range want {
			if !strings.Contains(wide[i], s) {
				t.Errorf("row %d does not have %q:\n%s", i, s, wide[i])
			}
		}
	}
	if len(wide) != 7 {
		t.Errorf("%d lines", len(wide))
	}
	for width := 1; width < 140; width++ {
		for _, line := range view.Table(states(), now, true, width) {
			if got := ansi.StringWidth(line); got > width {
				t.Fatalf("width %d: a line of %d: %s", width, got, line)
			}
		}
	}
	// The table leaves out columns without content.
	if head := view.Table(states()[2:3], now, false, 80)[0]; strings.Contains(head, "SLOT") || strings.Contains(head, "TTL") || strings.Contains(head, "NOTE") {
		t.Errorf("heading: %s", head)
	}
	// A cut text has a visible mark, and the columns stay aligned.
	long := holder(3)
	long.Reason = strings.Repeat("long ", 50)
	table := view.Table([]driver.State{{Name: "n", Holders: []driver.Holder{long}}, {Name: "o", Holders: []driver.Holder{holder(2)}}}, now, false, 80)
	if !strings.Contains(table[1], "…") || ansi.StringWidth(table[1]) != 80 || !strings.HasSuffix(table[2], " 0") || ansi.StringWidth(table[2]) != 80 {
		t.Errorf("table:\n%s", strings.Join(table, "\n"))
	}
}

// TestNarrowTable requires that the important columns of a narrow table stay readable for all names.
func TestNarrowTable(t *testing.T) {
	t.Setenv("LC_ALL", "C.UTF-8")
	h := holder(1795179668629963)
	h.Host, h.PID, h.Reason = "db-server-7.example", 11765, "nightly"
	for name, c := range map[string]struct {
		name  string
		width int
		want  []string
	}{
		"a long name leaves room for the other columns": {strings.Repeat("n", 300), 100, []string{"db-server-7.exam…:11765", "nightly", "1795179668629963", "nnn…"}},
		"40 columns show the holder":                    {"nightly-report", 40, []string{"nightly-rep…", "1m30s", "db-se…:11765"}},
		"24 columns show the pid":                       {"nightly-report", 24, []string{"nightly-r…", "…:11765"}},
	} {
		t.Run(name, func(t *testing.T) {
			table := view.Table([]driver.State{{Name: c.name, Holders: []driver.Holder{h}}}, now, false, c.width)
			for _, s := range c.want {
				if !strings.Contains(table[1], s) {
					t.Errorf("the table does not have %q:\n%s", s, strings.Join(table, "\n"))
				}
			}
			if !strings.Contains(table[0], "HOLDER") || ansi.StringWidth(table[1]) > c.width {
				t.Errorf("\n%s", strings.Join(table, "\n"))
			}
		})
	}
}

// TestASCIILocale requires that in the locales C and POSIX, tables and pages contain ASCII only.
func TestASCIILocale(t *testing.T) {
	h := holder(3)
	h.Host, h.Reason = "höst", strings.Repeat("größe ", 50)
	states := []driver.State{{Name: "nächtlich", Holders: []driver.Holder{h}}}
	for env, ascii := range map[string]bool{"C": true, "POSIX": true, "en_US.UTF-8": false, "C.UTF-8": false} {
		t.Setenv("LC_ALL", env)
		var page strings.Builder
		if err := view.Page(&page, states[0], now); err != nil {
			t.Fatal(err)
		}
		for _, text := range append(view.Table(states, now, true, 60)[1:], page.String()) {
			if got := strings.IndexFunc(text, func(r rune) bool { return r > 127 }) < 0; got != ascii {
				t.Errorf("LC_ALL=%s: %q", env, text)
			}
			if ascii != strings.Contains(text, `n\u00e4ch`) {
				t.Errorf("LC_ALL=%s: %q", env, text)
			}
		}
	}
}

func TestPageDescribesLock(t *testing.T) {
	t.Setenv("LC_ALL", "C.UTF-8")
	for want, st := range map[string]driver.State{
		"n is free\n": {Name: "n"},
		"n is not held at the moment\n\n1 waiting\n  1  another client, exclusive, since unknown\n": {Name: "n", Waiters: states()[1].Waiters},
		"d is held\n\n  another client on 10.0.0.7\n    token  5\n    mode   exclusive\n    since  unknown\n    ends   unknown\n": {Name: "d",
			Holders: []driver.Holder{{Owner: driver.Owner{Host: "10.0.0.7"}, Token: 5, Limit: driver.Exclusive, Slot: driver.NoSlot}}},
		"c is held\n\n  pid 7 on host (reason)\n    token  2\n    mode   exclusive\n" +
			"    since  2026-03-01T11:58:30.000Z (1m30s)\n    ends   with its process, or when it is released\n": states()[2],
		"\"a\\x1b]0;title\\a\" is held\n\n  pid 7 on host, web-1 (\"\\x1b[31mred http://u:xxxxx@h/\")\n    token  9223372036854775807\n    mode   limit 4\n    slot   0\n" +
			"    since  2026-03-01T11:58:30.000Z (1m30s)\n    ends   in 2.5s if it is not renewed\n    note   stopped\n" +
			"\n1 waiting\n  1  pid 8 on other, shared, since unknown, stopped\n": states()[0],
	} {
		var b strings.Builder
		if err := view.Page(&b, st, now); err != nil {
			t.Fatal(err)
		}
		if b.String() != want {
			t.Errorf("got\n%s\nwant\n%s", b.String(), want)
		}
	}
}

func TestAgeHasTwoUnits(t *testing.T) {
	for d, want := range map[time.Duration]string{
		-time.Second: "0s", 999 * time.Millisecond: "0s", 59 * time.Second: "59s", time.Minute: "1m00s",
		61*time.Minute + 5*time.Second: "1h01m", 24 * time.Hour: "1d00h", 100*time.Hour + time.Minute: "4d04h",
	} {
		if got := view.Age(d); got != want {
			t.Errorf("%v: %s, want %s", d, got, want)
		}
	}
}

// TestEventHasFixedFields requires that a line has the fields that scripts depend on.
func TestEventHasFixedFields(t *testing.T) {
	var f shape.Follower
	var b strings.Builder
	h := holder(1 << 62)
	h.Note, h.Instance, h.Reason = "end requested, stopped", "i", "a\tb"
	w := driver.Waiter{Owner: driver.Owner{ID: "w", Host: "h", PID: 2, Reason: "w"}, Limit: 1, Note: "stopped"}
	states := []driver.State{{Name: "n\x1b", Holders: []driver.Holder{h}, Waiters: []driver.Waiter{w}}, {Name: "free"}}
	events := f.Next(states, time.Unix(0, 0))
	for _, e := range events {
		if err := view.Event(&b, e); err != nil {
			t.Fatal(err)
		}
	}
	const at = "1970-01-01T00:00:00.000Z|"
	want := at + "free|free|-|-|-|-|-|-\n" +
		at + `"n\x1b"|held|exclusive|4611686018427387904|host:7|i|"a\tb"|end requested, stopped` + "\n" +
		at + `"n\x1b"|waiting|exclusive|1|h:2|-|w|stopped` + "\n"
	if got := strings.ReplaceAll(b.String(), "\t", "|"); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}
