package redisstore

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/holdfast-go/holdfast/driver"
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
	e, ok := errors.AsType[ServerError](err)
	text := string(e)
	return ok && (strings.Contains(text, "unknown command") || strings.HasPrefix(text, "NOPERM") || strings.Contains(text, "syntax error"))
}

// decided reports whether an answer is final: the command was applied, or the error would stop the
// script as well.
func decided(a Answer, applied string) (bool, error) {
	if _, answered := errors.AsType[ServerError](a.Err); answered {
		return false, nil
	}
	return a.Err == nil && len(a.Values) > 0 && a.Values[0] == applied, a.Err
}

// deleteIfEqual releases a grant by a command of the server, and notifies waiters. done reports
// whether the server deleted the lock.
func (p *peers) deleteIfEqual(ctx context.Context, st *step, h *peerHandle) (done bool, err error) {
	c, ok := p.s.client.(Commander)
	which := p.compares.deletes.Load()
	if !ok || h.value == "" || h.lateUntil != 0 || int(which) >= len(deletions) {
		return false, nil
	}
	channel := p.channel(st.key)
	commands := [][]string{deletions[which](st.key, h.value), {"PUBLISH", channel, "1"}}
	if p.channels.sharded {
		commands = append(commands, []string{"SPUBLISH", channel, "1"})
	}
	answer := c.Commands(ctx, commands)[0]
	if unavailable(answer.Err) {
		p.compares.deletes.CompareAndSwap(which, which+1)
	}
	if done, err = decided(answer, "1"); err != nil {
		err = p.s.explain(err)
	}
	return done, err
}

// setIfEqual renews grants by commands of the server. It reports for each grant whether its
// renewal is decided; the scripts renew the others.
func (p *peers) setIfEqual(ctx context.Context, grants []driver.Grant, steps []step, answers []driver.Renewal) []bool {
	done := make([]bool, len(grants))
	c, ok := p.s.client.(Commander)
	if !ok || p.layout != Plain || p.compares.noSet.Load() {
		return done
	}
	commands := make([][]string, len(grants))
	for i := range grants {
		value := grants[i].Handle.(*peerHandle).value
		if value == "" {
			return done
		}
		commands[i] = []string{"SET", steps[i].key, value, "IFEQ", value, "PX", strconv.FormatInt(millis(steps[i].ttl), 10)}
	}
	sent := driver.Now()
	for i, a := range c.Commands(ctx, commands) {
		if unavailable(a.Err) {
			p.compares.noSet.Store(true)
		}
		applied, err := decided(a, "OK")
		if err != nil {
			err = p.s.explain(err)
		}
		if done[i] = applied || err != nil; done[i] {
			answers[i] = p.renewed(&grants[i], reply{kind: 'R', sent: sent}, err)
		}
	}
	return done
}
