// Package sqltype checks the names of SQL: of tables, columns and types.
package sqltype

import (
	"regexp"
	"sync"
)

const word = `[A-Za-z_][A-Za-z0-9_]{0,62}`

// Each expression is compiled at its first use. Compiled at the start of a program that links a
// store, the expressions would cost it 140 KB.
var (
	integer   = lazily(`(?i)^(UNSIGNED )?(TINY|SMALL|MEDIUM|BIG)?INT(EGER)?[248]?( UNSIGNED)?$`)
	name      = lazily(`^` + word + `$`)
	qualified = lazily(`^(` + word + `\.)?` + word + `$`)
)

func lazily(expression string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expression) })
}

// Integer reports whether sql.ColumnType.DatabaseTypeName has returned the name of an
// integer type, such as INT8, BIGINT, UNSIGNED INT or INTEGER.
func Integer(kind string) bool { return integer().MatchString(kind) }

// Name reports whether s needs no quotes in a statement: 1 to 63 letters, digits and '_',
// not beginning with a digit.
func Name(s string) bool { return name().MatchString(s) }

// Qualified reports whether s is a Name, optionally after a schema and a dot.
func Qualified(s string) bool { return qualified().MatchString(s) }
