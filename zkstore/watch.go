package zkstore

import (
	"cmp"
	"context"
	"strings"

	"github.com/holdfast-go/holdfast/internal/wakeup"
	"github.com/holdfast-go/holdfast/zkstore/internal/zk"
)

// tree receives the events at a path and below it.
type tree struct {
	path string
	// ch has capacity one, so that changes coalesce. renew, if not nil, has capacity one too:
	// the watch must be set again.
	ch, renew chan struct{}
}

// notify reports an event. The caller holds the session's mutex.
func (t *tree) notify(path string) {
	if path == t.path || strings.HasPrefix(path, t.path+"/") {
		wakeup.Send(t.ch)
	}
}

// renewWatch handles the end of all watches with their connection.
func (t *tree) renewWatch() {
	if t.renew != nil {
		wakeup.Send(t.renew)
	}
	wakeup.Send(t.ch)
}

func (ss *session) watchTree(t *tree) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	ss.trees[t] = struct{}{}
}

// unwatchTree reports whether no other tree watches that path.
func (ss *session) unwatchTree(t *tree) (last bool) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	delete(ss.trees, t)
	for o := range ss.trees {
		if o.path == t.path && o.renew != nil {
			return false
		}
	}
	return true
}

// Watch calls changed after changes until ctx ends. It uses one persistent watch on everything
// below the name's node, or, without a name, below all of them.
func (s *store) Watch(ctx context.Context, name string, changed func()) error {
	path := s.home
	if name != "" {
		path = s.dir(name)
	}
	for {
		if s.calls.Stopped() {
			return errClosed()
		}
		ss, err := s.anySession(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			return err
		}
		if err := ss.follow(ctx, path, changed); err != errSessionExpired {
			return err
		}
	}
}

// follow watches on one session.
func (ss *session) follow(ctx context.Context, path string, changed func()) error {
	t := &tree{path: path, ch: make(chan struct{}, 1), renew: make(chan struct{}, 1)}
	ss.watchTree(t)
	wakeup.Send(t.renew)
	at := cmp.Or(path, "/")
	defer func() {
		if ss.unwatchTree(t) && ss.zk.Conn() != 0 {
			_ = ss.zk.Send(context.WithoutCancel(ctx), zk.RemoveWatches(at)) // frees the watch at the server
		}
	}()
	for {
		select {
		case <-t.renew:
			w := zk.WatchTree(at)
			err := ss.zk.Do(ctx, w)
			switch {
			case ctx.Err() != nil:
				return ctx.Err()
			case err == nil && w.Err != nil:
				return ss.s.fail(w.Err)
			case err == nil:
				changed()
			case ss.zk.Ended() != nil:
				return ss.endError()
			default:
				wakeup.Send(t.renew) // set the watch again on the next connection
			}
		case <-t.ch:
			changed()
		case <-ctx.Done():
			return ctx.Err()
		case <-ss.over:
			return ss.endError()
		}
	}
}

// endError returns the error of a session that is over: the store was closed, or the session has
// expired.
func (ss *session) endError() error {
	if ss.s.calls.Stopped() {
		return errClosed()
	}
	return errSessionExpired
}
