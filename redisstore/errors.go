package redisstore

import (
	"errors"
	"strings"

	"github.com/holdfast-go/holdfast/driver"
)

var errClosed = driver.Errorf(driver.CodeClosed, "the store is closed")

// rights is the advice after a refused command.
const rights = "the user needs the commands that docs/redis.md lists, and keys holdfast:*"

// answered lists the errors of a server that has not changed a lock. The scripts try every
// command that can be refused before they change one. Servers older than Redis 7 put some text
// before the word.
var answered = []struct {
	word string
	code driver.Code
	help string
}{
	{"NOAUTH", driver.CodeRefused, "give a user and password"},
	{"WRONGPASS", driver.CodeRefused, ""},
	{"ERR AUTH", driver.CodeRefused, ""},
	{"ERR invalid password", driver.CodeRefused, ""},
	{"NOPERM", driver.CodeRefused, rights},
	{"ACL failure in script", driver.CodeRefused, rights},
	{"can't run this command or subcommand", driver.CodeRefused, rights},
	{"WRONGTYPE", driver.CodeRefused, "a key of the lock belongs to something else: remove it, or use a namespace"},
	{"OOM", driver.CodeRefused, "the server has reached maxmemory; what is held can still be renewed and released"},
	{"unknown command", driver.CodeRefused, "the server does not offer a command that locks need"},
	{"ERR holdfast:", driver.CodeRefused, ""},
	{"CROSSSLOT", driver.CodeRefused, ""},
	{"invalid DB index", driver.CodeInvalid, "the server has no database of this number"},
	{"DB index is out of range", driver.CodeInvalid, "the server has no database of this number"},
	{"MISCONF", driver.CodeUnavailable, ""},
	{"LOADING", driver.CodeUnavailable, ""},
	{"BUSY ", driver.CodeUnavailable, ""},
	{"MASTERDOWN", driver.CodeUnavailable, ""},
	{"CLUSTERDOWN", driver.CodeUnavailable, ""},
	{"TRYAGAIN", driver.CodeUnavailable, ""},
	{"non local key", driver.CodeUnavailable, ""}, // the hash slot moves
	{"NOREPLICAS", driver.CodeUnavailable, ""},
	{"ERR max number of clients", driver.CodeUnavailable, ""},
	{"NOSCRIPT", driver.CodeUnavailable, ""},
}

// explain adds the code to an error of the client.
func (s *Store) explain(err error) error {
	if _, ok := errors.AsType[*driver.Error](err); ok {
		return err
	}
	if e, ok := errors.AsType[*NotSentError](err); ok {
		if inner, ok := errors.AsType[ServerError](e.Err); ok {
			return s.explain(inner) // at the start of a connection
		}
		return driver.Errorf(driver.CodeUnavailable, "%w", err)
	}
	e, ok := errors.AsType[ServerError](err)
	if !ok {
		return driver.Errorf(driver.CodeUnknown, "%w", err)
	}
	text := string(e)
	if strings.Contains(text, "READONLY") || strings.HasPrefix(text, "MOVED") {
		// After a failover the client finds the new primary.
		if s.client.Mode() != Standalone {
			return driver.Errorf(driver.CodeUnavailable, "%w", err)
		}
		if strings.HasPrefix(text, "MOVED") {
			return driver.Errorf(driver.CodeRefused, "%w: this is a Redis Cluster: use redis+cluster://", err)
		}
		return driver.Errorf(driver.CodeRefused, "%w: this is a replica: give its primary, or redis+sentinel:// with the sentinels", err)
	}
	for _, a := range answered {
		if strings.Contains(text, a.word) {
			if a.help != "" {
				return driver.Errorf(a.code, "%w: %s", err, a.help)
			}
			return driver.Errorf(a.code, "%w", err)
		}
	}
	return driver.Errorf(driver.CodeUnknown, "%w", err)
}

// isTransient reports whether a repeated request may succeed: the server did not answer, or was
// not available.
func isTransient(err error) bool {
	code := driver.CodeOf(err)
	return code == driver.CodeUnknown || code == driver.CodeUnavailable
}

// isTryAgain reports whether the server answered TRYAGAIN: the keys of one request are on two
// servers while their hash slot moves.
func isTryAgain(err error) bool {
	e, ok := errors.AsType[ServerError](err)
	return ok && strings.Contains(string(e), "TRYAGAIN")
}
