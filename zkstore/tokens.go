package zkstore

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/zkstore/internal/zk"
)

// tokenBase is added to the czxid of a node to get its number. It is 0 until the ensemble is
// restored from an older copy. Then its transactions get numbers that were used before, and
// the first client that notices raises the base.
//
// The base is the data of the directory with the guards, and each create checks the version of that
// directory. So a client adds the base that was valid when the node was created. After one client
// has raised the base, the tokens of all clients rise.
type tokenBase struct {
	Base uint64 `json:"token_base"`
	// Before is the base of nodes that were created before the transaction since.
	Before uint64 `json:"before,omitempty"`

	since   int64
	version int32
}

// noVersion is a version that no node has. (-1 matches every version.)
const noVersion = -2

// tokenRoom is how many tokens a node has room for: its number times tokenRoom is the first of them. An ensemble of
// 2^25 elections would have numbers that are too large.
const tokenRoom = 64

// number returns what a node's tokens begin with, before it is multiplied by the room.
func (b *tokenBase) number(czxid int64) uint64 {
	if czxid < b.since {
		return b.Before + uint64(czxid)
	}
	return b.Base + uint64(czxid)
}

// tokenEpochs is how far above the client's highest token a base is raised, in epochs of the
// ensemble (2^32 transactions each). Other clients may have seen higher tokens.
const tokenEpochs = 16

// maxBase is the largest base that parseBase accepts, so that no token overflows.
const maxBase = 1 << 56

// baseNode contains the base. It is the directory of the guards. keepNode stays below it, so
// that the server does not remove the directory.
func (s *store) baseNode() string { return s.cfg.chroot + "/" + guardDir }
func (s *store) keepNode() string { return s.baseNode() + "/tokens" }

// token returns the first token of a node with that czxid.
func (ss *session) token(czxid int64) uint64 {
	_, b := ss.base()
	return ss.s.token(b, czxid)
}

// tokens returns how many tokens the grant of a request has.
func (s *store) tokens(r driver.Request) int {
	if r.Limit != driver.Exclusive {
		return 1
	}
	return min(max(r.Tokens, 1), s.cfg.room)
}

func (s *store) token(b tokenBase, czxid int64) uint64 { return b.number(czxid) * uint64(s.cfg.room) }

// base returns the directory that each create checks, and its base.
func (ss *session) base() (path string, b tokenBase) {
	ss.guarded.Lock()
	defer ss.guarded.Unlock()
	return ss.s.baseNode(), ss.guarded.base
}

// parseBase returns the base in the answer to a read of its node.
func (s *store) parseBase(c *zk.Call) (tokenBase, error) {
	if c.Err != nil {
		return tokenBase{}, c.Err
	}
	b := tokenBase{since: c.Stat.Mzxid, version: c.Stat.Version}
	if len(c.Data) > 0 {
		if err := json.Unmarshal(c.Data, &b); err != nil {
			return b, driver.Broken(s.baseNode(), "its data are not a base of tokens")
		}
		if b.Base > maxBase || b.Before > b.Base {
			return b, driver.Broken(s.baseNode(), "its base of tokens is out of range")
		}
	}
	return b, nil
}

// showBase sets the session's base to the base that was read to show tokens, unless that is lower.
// The next create finds a lower base, and raises it.
func (ss *session) showBase(c *zk.Call) {
	b, err := ss.s.parseBase(c)
	ss.guarded.Lock()
	defer ss.guarded.Unlock()
	if err == nil && b.Base >= ss.guarded.base.Base {
		ss.guarded.base = b
	}
}

// highest returns the high-water mark of the tokens that a session may have seen.
func (ss *session) highest() uint64 {
	seen := uint64(ss.zk.Zxid())
	ss.guarded.Lock()
	defer ss.guarded.Unlock()
	return ss.guarded.base.Base + seen
}

// highWater returns the high-water mark of this client's tokens.
func (s *store) highWater() uint64 {
	var mark uint64
	for _, ss := range s.sessions.Made() { // some may have ended without a notice yet
		mark = max(mark, ss.highest())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mark = max(s.mark, mark)
	return s.mark
}

// raiseBase reads the base, and raises it unless tokens already exceed the mark. A new
// transaction has a higher number than all earlier ones, except after the ensemble was
// restored. The session never uses a base that is too low, because other requests create
// nodes at the same time, and this call may fail.
func (ss *session) raiseBase(ctx context.Context, mark uint64) error {
	for {
		get := zk.Get(ss.s.baseNode(), false)
		if err := ss.zk.Do(ctx, get); err != nil {
			return err
		}
		b, err := ss.s.parseBase(get)
		if err != nil {
			return err
		}
		if b.Base+uint64(ss.zk.Zxid()) > mark {
			// If another client raises the base now, the next create fails and this client reads
			// the base again.
			ss.guarded.Lock()
			ss.guarded.base = b
			ss.guarded.Unlock()
			return nil
		}
		data, err := json.Marshal(tokenBase{Base: (mark>>32 + tokenEpochs) << 32, Before: b.Base})
		if err != nil {
			return err
		}
		keep, set := zk.Create(ss.s.keepNode(), nil, ss.s.cfg.acl), zk.Set(ss.s.baseNode(), data, b.version)
		if err := ss.zk.Do(ctx, keep, set); err != nil {
			return err
		}
		switch {
		case keep.Err != nil && !errors.Is(keep.Err, zk.ErrNodeExists):
			return keep.Err
		case set.Err != nil && !errors.Is(set.Err, zk.ErrBadVersion):
			return set.Err
		}
	}
}
