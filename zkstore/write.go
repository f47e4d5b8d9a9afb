package zkstore

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/fence"
	"github.com/holdfast-go/holdfast/zkstore/internal/zk"
)

// Op is one operation of a guarded write. Paths are absolute at the server.
type Op struct {
	call func(acl []zk.ACL) *zk.Call
}

// SetData writes a node's data; version -1 fits every version.
func SetData(path string, data []byte, version int32) Op {
	return Op{func([]zk.ACL) *zk.Call { return zk.Set(path, data, version) }}
}

// CreateNode makes a node that stays.
func CreateNode(path string, data []byte) Op {
	return Op{func(acl []zk.ACL) *zk.Call { return zk.Create(path, data, acl) }}
}

// DeleteNode removes a node; version -1 fits every version.
func DeleteNode(path string, version int32) Op {
	return Op{func([]zk.ACL) *zk.Call { return zk.Delete(path, version) }}
}

// WriteError reports which operation of a guarded write the server refused. Nothing
// was done.
type WriteError struct {
	// Op is the index of the operation. Missing: its node does not exist. Version: its
	// node has another version. Exists: the node that it creates exists already.
	Op                       int
	Missing, Version, Exists bool
	Err                      error
}

func (e *WriteError) Error() string {
	return fmt.Sprintf("operation %d of the guarded write: %v", e.Op, e.Err)
}

// Unwrap returns [fence.ErrUnavailable] and the server's answer.
func (e *WriteError) Unwrap() []error { return []error{fence.ErrUnavailable, e.Err} }

// Guard is a [fence.Guard] of nodes: it keeps the largest token seen for each resource,
// and one transaction checks it, raises it and writes. A resource is any name that its
// writers agree on; the nodes that are written need not be named after it. The data may
// be on another ensemble than the locks: open a store there for its guard.
//
// The token of resource R is kept in the node ROOT/@%fence/R, R escaped as names are. The node
// stays until an operator deletes it. The guard does not refuse writes that bypass it.
type Guard struct{ s *store }

// Guard returns a guard over the connections of this store. It ends with the store.
func (s *Store) Guard() *Guard { return &Guard{s.store} }

var _ fence.Guard[[]Op] = (*Guard)(nil)

// Write implements [fence.Guard]: it does the operations in one transaction, in two round trips.
// The error is a [*WriteError] if an operation does not pass; then nothing was written. Errors wrap
// [fence.ErrStale], [fence.ErrInvalid], [fence.ErrUnavailable] or [fence.ErrCorrupt]. If the
// request is too long for the server, the error wraps [fence.ErrInvalid].
func (g *Guard) Write(ctx context.Context, resource string, token uint64, write []Op) error {
	if err := fence.CheckArguments(ctx, resource, token); err != nil {
		return err
	}
	// A round ends without an outcome only if another write raised the token meanwhile.
	for {
		newest, version, err := g.read(ctx, resource)
		if err != nil {
			return err
		}
		if token < newest {
			return &fence.StaleError{Resource: resource, Token: token, Newest: newest}
		}
		done, err := g.writeOnce(ctx, resource, token, newest, version, write)
		if done || err != nil {
			return err
		}
	}
}

// writeOnce writes if the node of the mark still has the version that was read. done is false if
// that node has changed meanwhile.
func (g *Guard) writeOnce(ctx context.Context, resource string, token, newest uint64, version int32, write []Op) (done bool, err error) {
	path, data := g.node(resource), []byte(strconv.FormatUint(token, 10))
	mark := zk.Check(path, version)
	switch {
	case newest == 0:
		mark = zk.Create(path, data, g.s.cfg.acl)
	case token > newest:
		mark = zk.Set(path, data, version)
	}
	calls := []*zk.Call{mark}
	for _, o := range write {
		calls = append(calls, o.call(g.s.cfg.acl))
	}
	m := zk.Multi(calls...)
	err = g.s.send(ctx, m)
	switch {
	case err != nil:
		return false, g.failed(resource, err)
	case m.Err == nil:
		return true, nil
	case m.Failed == 0 && newest == 0 && errors.Is(m.Err, zk.ErrNoNode):
		if err := g.s.createDirs(ctx, g.dir()); err != nil {
			return false, g.failed(resource, err)
		}
		return false, nil
	case m.Failed == 0 && (errors.Is(m.Err, zk.ErrNoNode) || errors.Is(m.Err, zk.ErrBadVersion) || errors.Is(m.Err, zk.ErrNodeExists)):
		return false, nil
	case m.Failed > 0:
		return false, &WriteError{
			Op: m.Failed - 1, Err: m.Err,
			Missing: errors.Is(m.Err, zk.ErrNoNode), Version: errors.Is(m.Err, zk.ErrBadVersion), Exists: errors.Is(m.Err, zk.ErrNodeExists),
		}
	}
	return false, g.failed(resource, m.Err)
}

// Raise implements [fence.Guard].
func (g *Guard) Raise(ctx context.Context, resource string, token uint64) error {
	return g.Write(ctx, resource, token, nil)
}

// Newest implements [fence.Guard].
func (g *Guard) Newest(ctx context.Context, resource string) (uint64, error) {
	if err := fence.CheckArguments(ctx, resource, 1); err != nil {
		return 0, err
	}
	c, err := g.s.committed(ctx, g.node(resource))
	if err != nil {
		return 0, g.failed(resource, err)
	}
	newest, _, err := g.mark(resource, c)
	return newest, err
}

func (g *Guard) node(resource string) string { return g.dir() + "/" + escape(resource) }

// dir returns the parent of the nodes with the marks. It is no namespace's node, because escape
// never returns its name.
func (g *Guard) dir() string { return g.s.cfg.chroot + "/" + namespaceMark + "%fence" }

// read returns the mark at the client's server. That server may be behind, so the transaction
// checks the version.
func (g *Guard) read(ctx context.Context, resource string) (newest uint64, version int32, err error) {
	c := zk.Get(g.node(resource), false)
	if err := g.s.valueCall(ctx, c); err != nil {
		return 0, 0, g.failed(resource, err)
	}
	return g.mark(resource, c)
}

// mark returns the mark in the answer to a read, 0 if there is none.
func (g *Guard) mark(resource string, c *zk.Call) (newest uint64, version int32, err error) {
	if errors.Is(c.Err, zk.ErrNoNode) {
		return 0, 0, nil
	}
	newest, err = fence.Parse(string(c.Data))
	if err != nil {
		return 0, 0, fmt.Errorf("%w: the token of %q: %w", fence.ErrCorrupt, resource, err)
	}
	return newest, c.Stat.Version, nil
}

func (g *Guard) failed(resource string, err error) error {
	switch err = g.s.fail(err); driver.CodeOf(err) {
	case driver.CodeUnknown:
		return fmt.Errorf("%w: %q: it may have been written: %w", fence.ErrUnavailable, resource, err)
	case driver.CodeInvalid:
		return fmt.Errorf("%w: %q: %w", fence.ErrInvalid, resource, err)
	}
	return fmt.Errorf("%w: %q: %w", fence.ErrUnavailable, resource, err)
}

// uncheckedSize is the size up to which a request is sent without a check of the server's
// limit. The default limit is 1 MB.
const uncheckedSize = 128 << 10

// send sends the requests of a guarded write, which the server executes in order. If ctx ends, they may still
// be applied. Only the first may be long.
func (s *store) send(ctx context.Context, calls ...*zk.Call) error {
	if size := calls[0].Size(); size > uncheckedSize && int64(size) > s.acceptedSize.Load() {
		accepted, err := zk.Accepts(ctx, s.clientConfig(0), size)
		if err != nil {
			return &zk.NotSentError{Err: err}
		}
		if !accepted {
			return driver.Errorf(driver.CodeInvalid, "zkstore: the write is a request of %d bytes, which is more than the server takes (its jute.maxbuffer); nothing was sent", size)
		}
		s.acceptedSize.Store(max(s.acceptedSize.Load(), int64(size)))
	}
	session, err := opened(ctx, s, &s.writing, struct{}{})
	if err != nil {
		return err
	}
	done := make(chan error, 1)
	if !s.calls.Go(func() { done <- session.Do(ctx, calls...) }) {
		return errClosed()
	}
	select {
	case err := <-done:
		return err
	case <-ctx.Done(): // the request may still be on a slow link
		return &zk.LostError{Err: ctx.Err()}
	}
}

// newWriter begins the session of guarded writes. They have a session of their own for two reasons. A
// server ends a connection on which it receives a request that is too long. And a long request on a slow
// link delays the requests behind it. The sessions of locks must suffer neither. The session of guarded
// writes has no ephemeral nodes and no watches.
func (s *store) newWriter(ctx context.Context, _ struct{}) (*zk.Session, error) {
	longest, err := s.longestTTL(ctx)
	if err != nil {
		return nil, err
	}
	c := s.clientConfig(longest + s.slack()) // a long timeout, for a slow link
	c.WriteTimeout = c.HeartbeatTimeout()
	session, err := zk.Open(ctx, c)
	if err == nil {
		context.AfterFunc(s.calls.Ctx, session.Abandon)
	}
	return session, err
}

// closeWriting ends the session of guarded writes. It has no ephemeral nodes, so it may expire if
// no server confirms its end.
func (s *store) closeWriting(ctx context.Context) {
	for _, session := range s.writing.Made() {
		_ = session.Close(ctx)
	}
}
