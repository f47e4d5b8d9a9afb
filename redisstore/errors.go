package redisstore

import (
	"errors"
	"strings"

	"github.com/holdfast-go/holdfast/driver"
)

var errClosed = driver.Errorf(driver.IsClosed, "the store is closed")

// rights is what a user needs.
const rights = "the user needs the commands that docs/redis.md lists, and keys holdfast:*"

// answered are the errors that a server answers without having changed a lock: the
// scripts try whatever can be refused before they do. Servers older than Redis 7 put
// some text before the word.
var answered = []struct {
	word string
	code driver.Code
	help string
}{
	{"NOAUTH", driver.Refused, "give a user and password"},
	{"WRONGPASS", driver.Refused, ""},
	{"ERR AUTH", driver.Refused, ""},
	{"ERR invalid password", driver.Refused, ""},
	{"NOPERM", driver.Refused, rights},
	{"ACL failure in script", driver.Refused, rights},
	{"can't run this command or subcommand", driver.Refused, rights},
	{"WRONGTYPE", driver.Refused, "a key of the lock is something else's: remove it, or use a namespace"},
	{"OOM", driver.Refused, "the server has reached maxmemory; what is held can still be renewed and released"},
	{"unknown command", driver.Refused, "the server does not offer a command that locks need"},
	{"ERR holdfast:", driver.Refused, ""},
	{"CROSSSLOT", driver.Refused, ""},
	{"ERR invalid DB index", driver.Refused, ""},
	{"ERR DB index", driver.Refused, ""},
	{"MISCONF", driver.Unavailable, ""},
	{"LOADING", driver.Unavailable, ""},
	{"BUSY ", driver.Unavailable, ""},
	{"MASTERDOWN", driver.Unavailable, ""},
	{"CLUSTERDOWN", driver.Unavailable, ""},
	{"TRYAGAIN", driver.Unavailable, ""},
	{"non local key", driver.Unavailable, ""}, // the hash slot moves
	{"NOREPLICAS", driver.Unavailable, ""},
	{"ERR max number of clients", driver.Unavailable, ""},
	{"NOSCRIPT", driver.Unavailable, ""},
}

// explain puts the code on an error of the client.
func (s *Store) explain(err error) error {
	if _, ok := errors.AsType[*driver.Error](err); ok {
		return err
	}
	if e, ok := errors.AsType[*NotSentError](err); ok {
		if inner, ok := errors.AsType[ServerError](e.Err); ok {
			return s.explain(inner) // to the greeting of a connection
		}
		return driver.Errorf(driver.Unavailable, "%w", err)
	}
	e, ok := errors.AsType[ServerError](err)
	if !ok {
		return driver.Errorf(driver.Unknown, "%w", err)
	}
	text := string(e)
	if strings.Contains(text, "READONLY") || strings.HasPrefix(text, "MOVED") {
		// Where roles change hands, the new primary will be found.
		if s.client.Mode() != Standalone {
			return driver.Errorf(driver.Unavailable, "%w", err)
		}
		if strings.HasPrefix(text, "MOVED") {
			return driver.Errorf(driver.Refused, "%w: this is a Redis Cluster: use redis+cluster://", err)
		}
		return driver.Errorf(driver.Refused, "%w: this is a replica: give its primary, or redis+sentinel:// with the sentinels", err)
	}
	for _, a := range answered {
		if strings.Contains(text, a.word) {
			if a.help != "" {
				return driver.Errorf(a.code, "%w: %s", err, a.help)
			}
			return driver.Errorf(a.code, "%w", err)
		}
	}
	return driver.Errorf(driver.Unknown, "%w", err)
}

// isTryAgain: keys of one request are on two servers while their slot moves.
func isTryAgain(err error) bool {
	e, ok := errors.AsType[ServerError](err)
	return ok && strings.Contains(string(e), "TRYAGAIN")
}
