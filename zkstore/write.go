package zkstore

import (
	"context"
	"errors"
	"fmt"

	"github.com/holdfast-go/holdfast/driver"
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

// WriteError tells which operation of a guarded write the server refused. Nothing
// was done.
type WriteError struct {
	// Op is the operation's index; Missing and Version tell that its node, or the
	// version it asked for, was not there, Exists that the node to create was.
	Op                       int
	Missing, Version, Exists bool
	Err                      error
}

func (e *WriteError) Error() string {
	return fmt.Sprintf("operation %d of the guarded write: %v", e.Op, e.Err)
}

// Unwrap returns the server's answer.
func (e *WriteError) Unwrap() error { return e.Err }

// Write does operations in one transaction with a check that the grant of name
// with that token stands, and was given to this store: ZooKeeper itself refuses a
// holder that was overtaken. The error is of code NotHeld if the grant does not
// stand, a *WriteError if an operation does not pass; if it is of code Unknown the
// write may have been done. It is bounded by ctx: give the lock's own.
func (s *Store) Write(ctx context.Context, name string, token uint64, ops ...Op) error {
	if s.closed.Load() {
		return errClosed()
	}
	none := driver.Errorf(driver.NotHeld, "no grant of %q with token %d stands", name, token)
	g := s.granted(name, token)
	if g == nil {
		return none
	}
	calls := []*zk.Call{zk.Check(g.path, -1)}
	for _, o := range ops {
		calls = append(calls, o.call(s.cfg.acl))
	}
	m := zk.Multi(calls...)
	err := g.ss.zk.Do(ctx, m)
	switch {
	case err != nil && g.ss.zk.Ended() != nil && !s.closed.Load():
		if _, sent := errors.AsType[*zk.LostError](err); !sent {
			return none
		}
		return s.fail(err)
	case err != nil:
		return s.fail(err)
	case m.Err == nil:
		return nil
	case m.Failed == 0 && errors.Is(m.Err, zk.ErrNoNode):
		return none
	case m.Failed > 0:
		return &WriteError{
			Op: m.Failed - 1, Err: m.Err,
			Missing: errors.Is(m.Err, zk.ErrNoNode), Version: errors.Is(m.Err, zk.ErrBadVersion), Exists: errors.Is(m.Err, zk.ErrNodeExists),
		}
	}
	return s.fail(m.Err)
}

// Node is the path of the node of a grant that stands and was given to this store, for
// transactions of a client of your own: with a check of it, version -1, ZooKeeper
// refuses what a holder that was overtaken still sends. A node's name is used once, so
// that it is there is proof enough; its version changes when the holder is asked to end.
// The token is its czxid. The error is of code NotHeld if the grant does not stand.
func (s *Store) Node(name string, token uint64) (path string, err error) {
	if s.closed.Load() {
		return "", errClosed()
	}
	g := s.granted(name, token)
	if g == nil {
		return "", driver.Errorf(driver.NotHeld, "no grant of %q with token %d stands", name, token)
	}
	return g.path, nil
}

// granted finds a grant by its token.
func (s *Store) granted(name string, token uint64) *grant {
	for _, ss := range s.open() {
		ss.mu.Lock()
		for _, g := range ss.grants {
			if g.Name == name && g.Token == token {
				ss.mu.Unlock()
				return g
			}
		}
		ss.mu.Unlock()
	}
	return nil
}
