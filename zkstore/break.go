package zkstore

import (
	"context"
	"errors"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/zkstore/internal/zk"
)

// Break requests the holder to end, like Curator's Revoker. If the grant's node still exists after
// the grace period, Break deletes it. A holdfast holder ends its context at once, and its release
// deletes the node.
func (s *store) Break(ctx context.Context, name string, token uint64) error {
	if s.calls.Stopped() {
		return errClosed()
	}
	ss, err := s.anySession(ctx)
	if err != nil {
		return err
	}
	path, err := ss.grantNode(ctx, name, token)
	if err != nil {
		return s.fail(err)
	}
	return ss.breakGrant(ctx, path)
}

// grantNode returns the path of the grant with a token. A request to end has replaced the number of the grant's
// tokens, so such a grant has any of those that its node has room for.
func (ss *session) grantNode(ctx context.Context, name string, token uint64) (string, error) {
	missing := driver.NotHeld(name, token)
	dirs := ss.s.recipe.dirs(ss.s.dir(name))
	dir := dirs[len(dirs)-1]
	all, err := ss.nodes(ctx, dir, ss.s.recipe.reader(dir, driver.Unlimited))
	if err != nil {
		return "", err
	}
	all = all[:countGrants(all)]
	if len(all) == 0 {
		return "", missing
	}
	calls := make([]*zk.Call, len(all))
	for i, n := range all {
		calls[i] = zk.Get(dir+"/"+n.name, false)
	}
	if err := ss.zk.Do(ctx, calls...); err != nil {
		return "", err
	}
	for i, c := range calls {
		if c.Err != nil {
			continue
		}
		h, _ := decodeOwner(all[i].name, c.Data, c.Stat)
		if h.Note != "" {
			h.Tokens = ss.s.cfg.room
		}
		if driver.HasToken(ss.token(c.Stat.Czxid), h.Tokens, token) {
			return dir + "/" + all[i].name, nil
		}
	}
	return "", missing
}

// breakGrant requests the holder of a node to end, and waits for the grace period. If the node still
// exists, breakGrant deletes it.
func (ss *session) breakGrant(ctx context.Context, path string) error {
	s := ss.s
	t := &tree{path: path, ch: make(chan struct{}, 1)}
	ss.watchTree(t)
	defer ss.unwatchTree(t)
	grace := time.NewTimer(s.cfg.grace)
	defer grace.Stop()
	for requested := false; ; {
		request, watch := zk.Set(path, []byte(revoke), -1), zk.Get(path, true)
		if requested {
			request = zk.Sync(path)
		}
		err := ss.zk.Do(ctx, request, watch)
		switch {
		case ss.again(ctx, err):
			continue
		case err != nil:
			return s.fail(err)
		case errors.Is(request.Err, zk.ErrNoNode) || errors.Is(watch.Err, zk.ErrNoNode):
			return nil // the holder has ended
		case request.Err != nil || watch.Err != nil:
			return s.fail(errors.Join(request.Err, watch.Err))
		}
		requested = true
		select {
		case <-t.ch:
		case <-grace.C:
			return ss.remove(ctx, path)
		case <-ctx.Done():
			return driver.Errorf(driver.CodeUnknown, "the holder was requested to end and has not ended yet: %w", ctx.Err())
		case <-ss.over:
			return s.fail(&zk.LostError{Err: errSessionExpired})
		}
	}
}

// remove deletes a node, and repeats a request that was lost with its connection.
func (ss *session) remove(ctx context.Context, path string) error {
	for {
		del := zk.Delete(path, -1)
		err := ss.zk.Do(ctx, del)
		switch {
		case ss.again(ctx, err):
			continue
		case err != nil:
			return ss.s.fail(err)
		case del.Err == nil || errors.Is(del.Err, zk.ErrNoNode):
			return nil
		}
		return ss.s.fail(del.Err)
	}
}
