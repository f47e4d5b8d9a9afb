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
// holder that was overtaken. The error is of code CodeNotHeld if the grant does not
// stand, a *WriteError if an operation does not pass, of code CodeInvalid if the server takes
// no request of that size; if it is of code CodeUnknown the write may have been done. It is
// bounded by ctx: give the lock's own.
func (s *Store) Write(ctx context.Context, name string, token uint64, ops ...Op) error {
	if s.closed.Load() {
		return errClosed()
	}
	none := driver.Errorf(driver.CodeNotHeld, "no grant of %q with token %d stands", name, token)
	g := s.granted(name, token)
	if g == nil {
		return none
	}
	calls := []*zk.Call{zk.Check(g.path, -1)}
	for _, o := range ops {
		calls = append(calls, o.call(s.cfg.acl))
	}
	m := zk.Multi(calls...)
	err := s.send(ctx, m)
	switch {
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

// writing is the session of guarded writes, or one that is being begun. They have one of
// their own: a server ends a connection on which a longer request comes than it takes, and
// a long request on a slow link holds up what is behind it. A lock's session must bear
// neither. Nothing lives in this one.
type writing struct {
	ready chan struct{}
	zk    *zk.Session
	err   error
}

// unaskedSize is a size of requests that is not asked about: servers take 1 MB unless
// configured.
const unaskedSize = 128 << 10

// send sends a guarded write. A ctx that ends leaves it to itself.
func (s *Store) send(ctx context.Context, m *zk.Call) error {
	if size := m.Size(); size > unaskedSize && int64(size) > s.acceptedSize.Load() {
		accepted, err := zk.Accepts(ctx, s.clientConfig(0), size)
		if err != nil {
			return &zk.NotSentError{Err: err}
		}
		if !accepted {
			return driver.Errorf(driver.CodeInvalid, "zkstore: the write is a request of %d bytes, which is more than the server takes (its jute.maxbuffer); nothing was sent", size)
		}
		s.acceptedSize.Store(max(s.acceptedSize.Load(), int64(size)))
	}
	session, err := s.writer(ctx)
	if err != nil {
		return err
	}
	done := make(chan error, 1)
	s.background.Go(func() { done <- session.Do(ctx, m) })
	select {
	case err := <-done:
		return err
	case <-ctx.Done(): // it may be on a link that takes long for it
		return &zk.LostError{Err: ctx.Err()}
	}
}

// writer finds or begins the session of guarded writes.
func (s *Store) writer(ctx context.Context) (*zk.Session, error) {
	for {
		s.mu.Lock()
		if s.closed.Load() {
			s.mu.Unlock()
			return nil, errClosed()
		}
		w := s.writing
		if w == nil {
			w = &writing{ready: make(chan struct{})}
			s.writing = w
			s.background.Go(func() { s.beginWriting(w) })
		}
		s.mu.Unlock()
		select {
		case <-w.ready:
		case <-ctx.Done():
			return nil, &zk.NotSentError{Err: ctx.Err()}
		}
		if w.err == nil && w.zk.Ended() == nil {
			return w.zk, nil
		}
		s.mu.Lock()
		if s.writing == w {
			s.writing = nil
		}
		s.mu.Unlock()
		if w.err != nil {
			return nil, w.err
		}
	}
}

func (s *Store) beginWriting(w *writing) {
	defer close(w.ready)
	ctx, cancel := context.WithTimeout(s.end, openTimeout)
	defer cancel()
	longest, err := s.limits(ctx)
	if err != nil {
		w.err = err
		return
	}
	c := s.clientConfig(longest + s.slack()) // it is patient with a slow link
	c.WritePatience = c.Silence()
	if w.zk, w.err = zk.Open(ctx, c); w.err != nil {
		return
	}
	context.AfterFunc(s.end, w.zk.Abandon)
}

// closeWriting ends the session of guarded writes. Nothing lives in it: where its end is not
// confirmed it expires.
func (s *Store) closeWriting(ctx context.Context) {
	s.mu.Lock()
	w := s.writing
	s.mu.Unlock()
	if w == nil {
		return
	}
	select {
	case <-w.ready:
		if w.err == nil {
			_ = w.zk.Close(ctx)
		}
	case <-ctx.Done():
	}
}

// Node is the path of the node of a grant that stands and was given to this store, for
// transactions of a client of your own: with a check of it, version -1, ZooKeeper
// refuses what a holder that was overtaken still sends. A node's name is used once, so
// that it is there is proof enough; its version changes when the holder is asked to end.
// The token is its czxid, plus a base once the ensemble was restored. The error is of code CodeNotHeld if the grant does not stand.
func (s *Store) Node(name string, token uint64) (path string, err error) {
	if s.closed.Load() {
		return "", errClosed()
	}
	g := s.granted(name, token)
	if g == nil {
		return "", driver.Errorf(driver.CodeNotHeld, "no grant of %q with token %d stands", name, token)
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
