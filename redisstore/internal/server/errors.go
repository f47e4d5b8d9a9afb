package server

import (
	"errors"
	"strconv"
	"strings"

	"github.com/holdfast-go/holdfast/driver"
)

// rights is the advice after a refused command.
const rights = "the user needs the commands that docs/security.md lists, and keys holdfast:*"

// answerOf is an error of a server, by a word in its text.
type answerOf struct {
	word string
	code driver.Code
	help string
}

// answered lists the errors of a server that has not changed a lock. The scripts try every
// command that can be refused before they change one. Servers older than Redis 7 put some text
// before the word. The first word that the text contains decides. A text may quote an argument or the user, so refusals
// come first: then no quoted word makes the client repeat a request that is refused.
var answered = []answerOf{
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
	{"READONLY", driver.CodeUnavailable, "the server is a replica now; the client connects again"},
	{"MOVED ", driver.CodeUnavailable, ""}, // after a failover the client of a Cluster finds the new primary
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

// brokenRecord begins the scripts' error for a record that no script has written. The number of its key
// in KEYS, a colon and what is wrong follow.
const brokenRecord = "holdfast: broken record "

// named adds the keys of a call to the server's error about a record that no script has written.
func named(keys []string, err error) error {
	e, ok := errors.AsType[ServerError](err)
	if !ok || len(keys) == 0 {
		return err
	}
	if _, what, ok := strings.Cut(string(e), brokenRecord); ok {
		number, what, _ := strings.Cut(what, ": ")
		what, _, _ = strings.Cut(what, " script: ")
		if n, err := strconv.Atoi(number); err == nil && n > 0 && n <= len(keys) {
			return driver.Broken(keys[n-1], what)
		}
	}
	for _, foreign := range []string{"WRONGTYPE", "value is not an integer", "would overflow"} {
		if strings.Contains(string(e), foreign) {
			return driver.Broken(strings.Join(keys, " or "), string(e))
		}
	}
	return err
}

// Explain adds the code to an error of the client: what the error means for the request. The keys are those of
// the script. They are named if another program has written to one of them.
func (s *Server) Explain(err error, keys ...string) error {
	err = named(keys, err)
	if _, ok := errors.AsType[*driver.Error](err); ok {
		return err
	}
	if e, ok := errors.AsType[*NotSentError](err); ok {
		if inner, ok := errors.AsType[ServerError](e.Err); ok {
			return s.Explain(inner) // at the start of a connection
		}
		return driver.Errorf(driver.CodeUnavailable, "%w", err)
	}
	e, ok := errors.AsType[ServerError](err)
	if !ok {
		return driver.Errorf(driver.CodeUnknown, "%w", err)
	}
	text := string(e)
	if strings.HasPrefix(text, "MOVED") && s.Client.Mode() == Standalone {
		return driver.Errorf(driver.CodeRefused, "%w: this is a Redis Cluster: use redis+cluster://", err)
	}
	if strings.Contains(text, "READONLY") {
		s.reconnect()
	}
	a := known(text)
	if a.help == rights && len(keys) == 0 && s.recipe.Keys != nil {
		keys = s.recipe.Keys()
	}
	if a.help == rights && len(keys) > 0 && !strings.HasPrefix(keys[0], "holdfast:") {
		a.help = "the user needs the commands that docs/security.md lists, and the keys of the lock: " + strings.Join(keys, ", ")
	}
	if a.help != "" {
		return driver.Errorf(a.code, "%w: %s", err, a.help)
	}
	return driver.Errorf(a.code, "%w", err)
}

// known returns what an error of a server means.
func known(text string) answerOf {
	for _, a := range answered {
		if strings.Contains(text, a.word) {
			return a
		}
	}
	return answerOf{code: driver.CodeUnknown}
}

// reconnect makes the client open new connections, because the server is a replica. A primary that
// becomes a replica keeps its connections, and the address may lead to the new primary by now.
func (s *Server) reconnect() {
	last, now := s.reconnected.Load(), Micros()
	if s.Client.Mode() == Cluster || last != 0 && now-last < reconnectInterval.Microseconds() {
		return
	}
	if s.reconnected.CompareAndSwap(last, max(now, 1)) {
		s.Client.Reconnect()
	}
}

// IsTransient reports whether a repeated request may succeed: the server did not answer, or was
// not available.
func IsTransient(err error) bool {
	code := driver.CodeOf(err)
	return code == driver.CodeUnknown || code == driver.CodeUnavailable
}

// IsTryAgain reports whether the server answered TRYAGAIN: the keys of one request are on two
// servers while their hash slot moves.
func IsTryAgain(err error) bool {
	e, ok := errors.AsType[ServerError](err)
	return ok && strings.Contains(string(e), "TRYAGAIN")
}
