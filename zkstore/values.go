package zkstore

import (
	"context"
	"errors"
	"strconv"
	"strings"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/zkstore/internal/zk"
)

var _ driver.Values = (*store)(nil)

// valueDir returns the parent of the nodes of values. A value is a node ROOT/@%values/xNAMESPACE/KEY, with
// the namespace and the key escaped. Its version is the node's creation and the number of its changes.
func (s *store) valueDir() string {
	return s.cfg.chroot + "/" + namespaceMark + "%values/" + escape("x"+s.cfg.namespace)
}

// Get implements driver.Values.
func (s *store) Get(ctx context.Context, key string) ([]byte, string, error) {
	if err := s.calls.Ready(ctx, key, nil); err != nil {
		return nil, "", err
	}
	path := s.valueDir() + "/" + escape(key)
	c, err := s.committed(ctx, path)
	if err != nil || errors.Is(c.Err, zk.ErrNoNode) {
		return nil, "", err
	}
	return c.Data, valueVersion(c.Stat.Czxid, c.Stat.Version), nil
}

// Put implements driver.Values. It is one round trip for a key that was written before.
// ZooKeeper compares the number of changes of the node, but not which node it is. If an
// operator deletes the node of a value, and a client creates it again, a version from before
// may match.
func (s *store) Put(ctx context.Context, key string, data []byte, version string) (string, error) {
	if err := s.calls.Ready(ctx, key, data); err != nil {
		return "", err
	}
	path := s.valueDir() + "/" + escape(key)
	if version == "" {
		return s.createValue(ctx, path, key, data)
	}
	created, changes, _ := strings.Cut(version, "-")
	czxid, err1 := strconv.ParseInt(created, 10, 64)
	n, err2 := strconv.ParseInt(changes, 10, 32)
	if err1 != nil || err2 != nil || n < 0 { // -1 would match every version
		return "", driver.Conflict(key)
	}
	c := zk.Set(path, data, int32(n))
	switch err := s.send(ctx, c); {
	case err != nil:
		return "", s.fail(err)
	case errors.Is(c.Err, zk.ErrBadVersion), errors.Is(c.Err, zk.ErrNoNode):
		return "", driver.Conflict(key)
	case c.Err != nil:
		return "", s.fail(c.Err)
	}
	return valueVersion(czxid, c.Stat.Version), nil
}

func (s *store) createValue(ctx context.Context, path, key string, data []byte) (string, error) {
	for made := false; ; made = true {
		c := zk.Create(path, data, s.cfg.acl)
		switch err := s.send(ctx, c); {
		case err != nil:
			return "", s.fail(err)
		case errors.Is(c.Err, zk.ErrNodeExists):
			return "", driver.Conflict(key)
		case errors.Is(c.Err, zk.ErrNoNode) && !made:
			if err := s.createDirs(ctx, s.valueDir()); err != nil {
				return "", err
			}
		case c.Err != nil:
			return "", s.fail(c.Err)
		default:
			return valueVersion(c.Stat.Czxid, 0), nil
		}
	}
}

func valueVersion(czxid int64, changes int32) string {
	return strconv.FormatInt(czxid, 10) + "-" + strconv.Itoa(int(changes))
}

// valueCall sends a call on the session of guarded writes, and returns its error. An answer that
// the node exists, or does not exist, is no error.
func (s *store) valueCall(ctx context.Context, c *zk.Call) error {
	if err := s.send(ctx, c); err != nil {
		return s.fail(err)
	}
	if errors.Is(c.Err, zk.ErrNoNode) || errors.Is(c.Err, zk.ErrNodeExists) {
		return nil
	}
	return s.fail(c.Err)
}

// committed reads a node as of a time after the call. Before the read it commits a transaction that changes nothing,
// which needs a quorum. A sync does not suffice: a deposed leader answers it, and the read after it, from its old
// state. The server executes both requests of one connection in order, so the read sees the transaction, and every
// write before it. An answer that the node does not exist is no error.
func (s *store) committed(ctx context.Context, path string) (*zk.Call, error) {
	barrier, c := zk.Multi(zk.Check(path, -1)), zk.Get(path, false)
	if err := s.send(ctx, barrier, c); err != nil {
		return nil, s.fail(err)
	}
	if c.Err != nil && !errors.Is(c.Err, zk.ErrNoNode) {
		return nil, s.fail(c.Err)
	}
	return c, nil
}

// createDirs creates a directory and its parents on the session of guarded writes. The user may have no right
// to create a parent that exists, so only the error for the directory itself counts.
func (s *store) createDirs(ctx context.Context, dir string) (err error) {
	for _, c := range s.containers(dir) {
		err = s.valueCall(ctx, c)
	}
	return err
}
