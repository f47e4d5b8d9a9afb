// Package sqltype classifies the types of SQL columns.
package sqltype

import (
	"regexp"
	"sync"
)

// Compiled when first used, because every program that links a store links it.
var integer = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?i)^(UNSIGNED )?(TINY|SMALL|MEDIUM|BIG)?INT(EGER)?[248]?( UNSIGNED)?$`)
})

// Integer reports whether sql.ColumnType.DatabaseTypeName has returned the name of an
// integer type, such as INT8, BIGINT, UNSIGNED INT or INTEGER.
func Integer(name string) bool { return integer().MatchString(name) }
