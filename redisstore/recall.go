package redisstore

import (
	"context"
	"slices"
	"strings"
	"sync"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/redisstore/internal/server"
)

// watch is a watch of one name.
type watch struct{ changed func() }

// Watch polls the state, as the watch of the other layouts, and is notified by the first waiter of the name if this client
// may keep it: see recall.
func (s *store) Watch(ctx context.Context, name string, changed func()) error {
	if name == "" {
		return s.common.Watch(ctx, name, changed)
	}
	var one sync.Mutex // changed is called once at a time
	w := &watch{func() {
		one.Lock()
		defer one.Unlock()
		changed()
	}}
	s.mu.Lock()
	s.watches[name] = append(s.watches[name], w)
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.watches[name] = slices.DeleteFunc(s.watches[name], func(o *watch) bool { return o == w })
		if len(s.watches[name]) == 0 {
			delete(s.watches, name)
		}
	}()
	return s.common.Watch(ctx, name, w.changed)
}

// recall notifies the client of a holder that the first waiter of its name has come. Only a grant that its client may keep
// for its next requests is worth the message: it has reserved tokens, and the time for handoffs is over. So locks
// that are passed on quickly do not get slower. If the message is lost, the holder's watch finds the waiter. a.holders has
// the holders of the records.
func (a *attempt) recall(records []string) {
	s := a.s
	if len(records) != 1 || len(a.holders) != 1 {
		return
	}
	h := &a.holders[0]
	age := s.srv.Clock.Now() - h.Since.UnixMicro()
	if h.Limit != driver.Exclusive || h.Tokens == 1 || h.ID == a.recalled || age < driver.HandoffTime.Microseconds() {
		return
	}
	channel := strings.TrimPrefix(strings.Split(strings.Clone(records[0]), " ")[2], "p:")
	message := "r" + a.e.r.Name
	a.recalled = h.ID
	if channel == s.channel { // the holder is a Locker of this client
		s.receive(message)
		return
	}
	s.srv.Go(func() {
		ctx, cancel := context.WithTimeout(s.srv.Ctx, server.CallTimeout)
		defer cancel()
		s.srv.Client.Commands(ctx, [][]string{{"PUBLISH", channel, message}})
	})
}
