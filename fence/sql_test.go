package fence_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/fence"
)

// Module e2e tests the statements on real databases. The tests here never reach a database:
// every check comes before the first use of the transaction, so it may be nil.

func TestSQLRefusesBadInput(t *testing.T) {
	for what, test := range map[string]struct {
		guard    fence.SQL
		resource string
		token    uint64
		says     string
	}{
		"no dialect":      {fence.SQL{}, "r", 1, "want MySQL, PostgreSQL or SQLite"},
		"unknown dialect": {fence.SQL{Dialect: 9}, "r", 1, "dialect 9"},
		"injection":       {fence.SQL{Dialect: fence.MySQL, Table: "t; DROP TABLE u"}, "r", 1, "DROP TABLE u"},
		"new line":        {fence.SQL{Dialect: fence.MySQL, Table: "t\n"}, "r", 1, "letters"},
		"digit first":     {fence.SQL{Dialect: fence.MySQL, Table: "1t"}, "r", 1, "letters"},
		"two dots":        {fence.SQL{Dialect: fence.MySQL, Table: "a.b.c"}, "r", 1, "letters"},
		"too long":        {fence.SQL{Dialect: fence.MySQL, Table: strings.Repeat("t", 64)}, "r", 1, "63"},
		"no resource":     {fence.SQL{Dialect: fence.SQLite}, "", 1, "resource is empty"},
		"no token":        {fence.SQL{Dialect: fence.SQLite}, "r", 0, "no live lock"},
		"large token":     {fence.SQL{Dialect: fence.SQLite}, "r", 1 << 63, "9223372036854775808"},
	} {
		for how, err := range map[string]error{
			"Check": test.guard.Check(t.Context(), nil, test.resource, test.token),
			"Write": test.guard.Guard(nil, nil).Write(t.Context(), test.resource, test.token, nil),
		} {
			if !errors.Is(err, fence.ErrInvalid) || !strings.Contains(err.Error(), test.says) {
				t.Errorf("%s: %s: got %v, want ErrInvalid that says %q", what, how, err, test.says)
			}
		}
	}
}

func TestSQLSchemaNeedsDialect(t *testing.T) {
	for _, d := range []fence.Dialect{fence.MySQL, fence.PostgreSQL, fence.SQLite} {
		s, err := fence.SQL{Dialect: d, Table: "app.tokens"}.Schema()
		if err != nil || !strings.HasPrefix(s, "CREATE TABLE IF NOT EXISTS app.tokens (") {
			t.Errorf("%v: %s, %v", d, s, err)
		}
	}
	if _, err := (fence.SQL{Table: "t"}).Schema(); !errors.Is(err, fence.ErrInvalid) {
		t.Errorf("without a dialect: %v", err)
	}
}

func TestColumnRefusesBadInput(t *testing.T) {
	good := fence.Column{Dialect: fence.MySQL, Table: "app.accounts", Key: "id", Column: "fence"}
	for what, change := range map[string]func(*fence.Column){
		"dialect":   func(c *fence.Column) { c.Dialect = 0 },
		"no table":  func(c *fence.Column) { c.Table = "" },
		"table":     func(c *fence.Column) { c.Table = "a b" },
		"no key":    func(c *fence.Column) { c.Key = "" },
		"key":       func(c *fence.Column) { c.Key = "a.id" },
		"no column": func(c *fence.Column) { c.Column = "" },
		"column":    func(c *fence.Column) { c.Column = "fence = 0 --" },
		"not ASCII": func(c *fence.Column) { c.Column = "é" },
	} {
		c := good
		change(&c)
		if err := c.Check(t.Context(), nil, 1, 1); !errors.Is(err, fence.ErrInvalid) {
			t.Errorf("%s: got %v, want ErrInvalid", what, err)
		}
	}
	if err := good.Check(t.Context(), nil, 1, 0); !errors.Is(err, fence.ErrInvalid) {
		t.Errorf("token 0: got %v, want ErrInvalid", err)
	}
}
