package sqltype

import (
	"context"
	"errors"
	"reflect"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/internal/backoff"
)

// State returns the SQLSTATE of an error, "" if the error has none. Errors of PostgreSQL's drivers have a
// method SQLState, and those of go-sql-driver/mysql a field.
func State(err error) string {
	var s interface{ SQLState() string }
	if errors.As(err, &s) {
		return s.SQLState()
	}
	for ; err != nil; err = errors.Unwrap(err) {
		v := reflect.Indirect(reflect.ValueOf(err))
		if v.Kind() != reflect.Struct {
			continue
		}
		if state := v.FieldByName("SQLState"); state.IsValid() {
			if code, ok := state.Interface().([5]byte); ok {
				return string(code[:])
			}
		}
	}
	return ""
}

// createTries limits the tries of Create. Each failed try means that another client has made progress.
const createTries = 50

// Create calls create, which executes CREATE TABLE IF NOT EXISTS or inserts missing rows. It calls create
// again if that has failed because another client does the same at the same time: PostgreSQL then reports a
// duplicate key of its catalog, a duplicate table, or a catalog row that has just changed. Both kinds of
// servers may report a deadlock.
func Create(ctx context.Context, create func() error) error {
	poll := backoff.Backoff{First: time.Millisecond, Max: 100 * time.Millisecond}
	for tries := 1; ; tries++ {
		err := create()
		switch State(err) {
		case "23505", "42P07", "42710", "40001", "40P01":
		case "XX000":
			if !strings.Contains(err.Error(), "concurrently") {
				return err
			}
		default:
			return err
		}
		if tries == createTries || poll.Sleep(ctx) != nil {
			return err
		}
	}
}
