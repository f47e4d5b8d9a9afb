package sqlkit

import (
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/storeurl"
)

// TestOptionsTakeURLParameters: Take removes the known parameters from the URL. An error names
// each mistake.
func TestOptionsTakeURLParameters(t *testing.T) {
	type recipe string
	recipes := []recipe{"pessimistic", "optimistic", "other"}
	read := func(raw string) (o Options[recipe], rest string, err error) {
		o.Recipe, o.MaxIdle = "other", 8
		u, err := storeurl.Parse(raw, "db", "database")
		if err != nil {
			return o, "", err
		}
		p, err := storeurl.Query(u, "db://host")
		if err != nil {
			return o, "", err
		}
		o.Take(p)
		theirs, err := p.Rest()
		if err != nil {
			return o, "", err
		}
		return o, theirs.Encode(), o.Check(recipes, 4)
	}
	for raw, want := range map[string]Options[recipe]{
		"db://h/?x=1": {Recipe: "other", MaxIdle: 8},
		"database://h/?recipe=optimistic&tokens=clock&x=1":     {Recipe: "optimistic", MaxIdle: 8},
		"db://h/?tokens=durable&x=1":                           {Recipe: "other", Durable: true, MaxIdle: 8},
		"db://h/?x=1&max_idle=3":                               {Recipe: "other", MaxIdle: 3},
		"db://h/?recipe=pessimistic&table=s.abcd&column=c&x=1": {Recipe: "pessimistic", Table: "s.abcd", Column: "c", MaxIdle: 8},
	} {
		if o, rest, err := read(raw); !reflect.DeepEqual(o, want) || rest != "x=1" || err != nil {
			t.Errorf("%s: %+v, %q, %v; want %+v", raw, o, rest, err, want)
		}
	}
	for raw, want := range map[string]string{
		"db://u:SeCrEt@h:port/":                                    "scheme db or database",
		"http://u:SeCrEt@h/":                                       "scheme db or database",
		"db:SeCrEt":                                                "give db://host",
		"db://u:SeCrEt@h/#x":                                       "give db://host",
		"db://u:SeCrEt@h/?a=%zz":                                   "cannot be read",
		"db://u:SeCrEt@h/?a=1&a=2":                                 "a is given more than once",
		"db://u:SeCrEt@h/?recipe=none":                             "give one of pessimistic, optimistic, other",
		"db://u:SeCrEt@h/?max_idle=0":                              "0 idle connections: give 1 to 10000",
		"db://u:SeCrEt@h/?max_idle=x":                              "give a number",
		"db://u:SeCrEt@h/?tokens=none":                             "give clock or durable",
		"db://u:SeCrEt@h/?recipe=optimistic&tokens=durable":        "always has them",
		"db://u:SeCrEt@h/?table=t&column=c":                        "not other",
		"db://u:SeCrEt@h/?recipe=pessimistic&table=t":              "both or none",
		"db://u:SeCrEt@h/?recipe=pessimistic&column=c":             "both or none",
		"db://u:SeCrEt@h/?recipe=pessimistic&table=abcde&column=c": "table \"abcde\": want 1 to 4",
		"db://u:SeCrEt@h/?recipe=pessimistic&table=t&column=c%20d": "column \"c d\": want 1 to 4",
	} {
		_, _, err := read(raw)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "SeCrEt") {
			t.Errorf("%s: %v; want %q", raw, err, want)
		}
	}
	own := Options[recipe]{Recipe: "pessimistic", Table: "t", Column: "c", Namespace: "n", MaxIdle: 1}
	if err := own.Check(recipes, 4); err == nil || !strings.Contains(err.Error(), "namespaces") {
		t.Errorf("a namespace with a user's table: %v, want an error", err)
	}
	own.Namespace = "a\x00b"
	if err := own.Check(recipes, 4); err == nil {
		t.Error("a namespace with a NUL is allowed")
	}
	for limit, fits := range map[int]bool{driver.Exclusive: true, 3: false, driver.Unlimited: true} {
		_, err := own.CheckRow(&driver.Request{Limit: limit, TTL: time.Second}, time.Second)
		if fits && err != nil || !fits && driver.CodeOf(err) != driver.CodeUnsupported {
			t.Errorf("limit %d: %v", limit, err)
		}
	}
}

// TestFlushEndsIdleConnectionsOfAUserPoolOncePerSecond: while a server is read-only, requests do not close the
// connections of the program again and again.
func TestFlushEndsIdleConnectionsOfAUserPoolOncePerSecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ends := 0
		o := Options[string]{MaxIdle: 8}
		o.Over(func() { ends++ })
		one, two := NewPool(o.Idle(2), nil), NewPool(o.Idle(2), nil)
		for _, p := range []*Pool{one, two, one} {
			p.Flush()
		}
		if ends != 1 {
			t.Errorf("ended %d times at once, want 1", ends)
		}
		time.Sleep(endIdleEvery)
		two.Flush()
		if ends != 2 {
			t.Errorf("ended %d times after a second, want 2", ends)
		}
	})
}
