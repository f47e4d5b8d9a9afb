package layouts

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/redisstore/internal/server"
)

// conditional records which commands the server has that compare a string. They release and renew
// a lock of the layout [Plain]: DELEX (Redis 8.4, Valkey 9.2) or DELIFEQ
// (Valkey 9.0), and SET with IFEQ (Redis 8.4, Valkey 8.1).
//
// The value of a grant is unique to it, so a command that arrives late or twice has no effect
// on another grant. The store relies only on the answer that the command was applied. After any
// other answer it runs the script, which also returns the cause. If the server does not have a
// command, or the user has no right to it, the store uses the script until it is closed.
type conditional struct {
	deletes atomic.Int32 // the number of commands in deletions that the server has refused
	noSet   atomic.Bool
}

var deletions = []func(key, value string) []string{
	func(key, value string) []string { return []string{"DELEX", key, "IFEQ", value} },
	func(key, value string) []string { return []string{"DELIFEQ", key, value} },
}

// unavailable reports whether an error means that the server does not have the command, or that
// the user has no right to it.
func unavailable(err error) bool {
	e, ok := errors.AsType[server.ServerError](err)
	text := string(e)
	return ok && (strings.Contains(text, "unknown command") || strings.HasPrefix(text, "NOPERM") || strings.Contains(text, "syntax error"))
}

// decided reports whether an answer is final: the command was applied, or the error would stop the
// script as well.
func decided(a server.Answer, applied string) (bool, error) {
	if _, answered := errors.AsType[server.ServerError](a.Err); answered {
		return false, nil
	}
	return a.Err == nil && len(a.Values) > 0 && a.Values[0] == applied, a.Err
}

// deleteIfEqual releases a grant by a command of the server, and notifies waiters. done reports
// whether the server deleted the lock.
func (s *store) deleteIfEqual(ctx context.Context, st *step, h *handle) (done bool, err error) {
	which := s.compares.deletes.Load()
	if h.value == "" || h.LateUntil != 0 || int(which) >= len(deletions) {
		return false, nil
	}
	channel := s.channel(st.key)
	commands := [][]string{deletions[which](st.key, h.value), {"PUBLISH", channel, "1"}}
	if s.channels.sharded() {
		commands = append(commands, []string{"SPUBLISH", channel, "1"})
	}
	answer := s.srv.Client.Commands(ctx, commands)[0]
	if unavailable(answer.Err) {
		s.compares.deletes.CompareAndSwap(which, which+1)
	}
	if done, err = decided(answer, "1"); err != nil {
		err = s.srv.Explain(err, st.key)
	}
	return done, err
}

// setIfEqual renews grants by commands of the server. It reports for each grant whether its
// renewal is decided; the scripts renew the others, and all that replicas have to acknowledge.
func (s *store) setIfEqual(ctx context.Context, grants []driver.Grant, steps []step, answers []driver.Renewal) []bool {
	done := make([]bool, len(grants))
	if s.layout != Plain || s.srv.Config.Replicas > 0 || s.compares.noSet.Load() {
		return done
	}
	commands := make([][]string, len(grants))
	for i := range grants {
		value := grants[i].Handle.(*handle).value
		if value == "" {
			return done
		}
		commands[i] = []string{"SET", steps[i].key, value, "IFEQ", value, "PX", strconv.FormatInt(millis(steps[i].ttl), 10)}
	}
	sent := driver.Now()
	for i, a := range s.srv.Client.Commands(ctx, commands) {
		if unavailable(a.Err) {
			s.compares.noSet.Store(true)
		}
		applied, err := decided(a, "OK")
		if err != nil {
			err = s.srv.Explain(err, steps[i].key)
		}
		if done[i] = applied || err != nil; done[i] {
			answers[i] = s.srv.Renewed(&grants[i], server.Result{Reply: server.Reply{Kind: 'R', Sent: sent}, Err: err}, grants[i].TTL)
		}
	}
	return done
}
