package drivertest

import (
	"fmt"
	"strings"
	"unicode"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/must"
)

func namespaces(e *env) {
	name := e.name()
	none, one, two, again := e.openIn(""), e.openIn("one"), e.openIn("two"), e.openIn("one")
	a := e.must(none, e.request(name, driver.Exclusive, long))
	b := e.must(one, e.request(name, driver.Exclusive, long))
	c := e.must(two, e.request(name, driver.Exclusive, long))
	e.busy(again, e.request(name, driver.Exclusive, long))
	// A name cannot reach into another namespace by its spelling.
	for _, sneaky := range []string{"one/" + name, "one:" + name, "one" + name, "{one}" + name, "one//" + name} {
		g := e.must(none, e.request(sneaky, driver.Exclusive, long))
		e.release(none, g)
	}
	if i, ok := one.(driver.Inspector); ok {
		e.shown(one, name, b.Token)
		for st, err := range i.List(e.Context(), name) {
			must.Succeed(e, err)
			if len(st.Holders) != 1 || st.Holders[0].Token != b.Token {
				e.Errorf("namespace one shows %+v, want token %d", st, b.Token)
			}
		}
	}
	e.release(none, a)
	e.release(one, b)
	e.release(two, c)
}

// strange returns names that are different locks for every encoding of keys.
func strange(e *env) []string {
	base := e.name()
	names := []string{
		base, base + " ", base + "  ", " " + base, base + "\t", base + "\n", base + "\r\n",
		strings.ToUpper(base), strings.ToUpper(base[:1]) + base[1:],
		base + "/", base + "/a", base + "/a/b", "/" + base, base + "//", base + "/../" + base, base + "/.", "./" + base, "../" + base,
		base + ":a", base + "{a}", "{" + base + "}", base + "{", base + "}", base + "{}", "{}" + base, "a{" + base + "}b{c}",
		base + "%", base + "%00", base + "%2F", base + "\\", base + "\"", base + "'", base + "`", base + "$(x)", base + ";", base + "--",
		base + "*", base + "?", base + "[a]", base + "^", base + "|", base + "#", base + "&", base + "=", base + "+", base + ",", base + "~",
		base + "\x01", base + "\x7f", base + "\u0085", base + "\u00a0", base + "\u200b", base + "\ufeff", base + "\u202e", base + "\ufffd",
		base + "é", base + "e\u0301", base + "ß", base + "ss", base + "ı", base + "İ", base + "ſ", base + "K", base + "\U0001F512", base + "\U0010FFFF",
		base + "0", base + "00", base + "0000000000", base + "-lock-0000000001", "_c_" + base, base + ".lock", base + ".sock",
	}
	for _, table := range unicode.Categories {
		if r, ok := sample(table); ok {
			names = append(names, base+string(r))
		}
	}
	pad := strings.Repeat("x", driver.MaxName-len(base))
	names = append(names, base+pad, base+pad[:len(pad)-1], base+pad[:len(pad)-1]+"y",
		base+strings.Repeat("\U0001F512", (driver.MaxName-len(base))/4))
	seen := map[string]bool{}
	var unique []string
	for _, n := range names {
		if !seen[n] && driver.CheckName(n) == nil {
			seen[n] = true
			unique = append(unique, n)
		}
	}
	return unique
}

// sample returns a rune of a Unicode class that UTF-8 can encode.
func sample(table *unicode.RangeTable) (rune, bool) {
	for _, r := range table.R16 {
		if r.Lo != 0 && (r.Lo < 0xd800 || r.Lo > 0xdfff) {
			return rune(r.Lo), true
		}
	}
	for _, r := range table.R32 {
		return rune(r.Lo), true
	}
	return 0, false
}

func strangeNames(e *env) {
	a, b := e.open(), e.open()
	var names []string
	for _, name := range strange(e) {
		if e.h.SupportsName == nil || e.h.SupportsName(name) {
			names = append(names, name)
			continue
		}
		_, err := a.Acquire(e.Context(), e.request(name, driver.Exclusive, long))
		e.code(a, err, driver.CodeUnsupported, fmt.Sprintf("the name %q", name))
	}
	grants := make([]driver.Grant, len(names))
	for i, name := range names {
		g, err := a.Acquire(e.Context(), e.request(name, driver.Exclusive, long))
		if err != nil {
			e.Fatalf("%q cannot be locked beside the others: %v", name, err)
		}
		grants[i] = g
	}
	for i, name := range names {
		e.busy(b, e.request(name, driver.Exclusive, long))
		if insp, ok := b.(driver.Inspector); ok {
			e.shown(b, name, grants[i].Token)
			st, err := insp.Inspect(e.Context(), name)
			if err != nil || st.Name != name || len(st.Holders) != 1 || st.Holders[0].Token != grants[i].Token {
				e.Fatalf("Inspect(%q) = %+v, %v; want token %d", name, st, err, grants[i].Token)
			}
		}
	}
	if insp, ok := b.(driver.Inspector); ok {
		listed := map[string]bool{}
		for st, err := range insp.List(e.Context(), "") {
			must.Succeed(e, err)
			listed[st.Name] = true
		}
		for _, name := range names {
			if !listed[name] {
				e.Errorf("List does not show %q", name)
			}
		}
	}
	for _, g := range grants {
		e.release(a, g)
	}
}
