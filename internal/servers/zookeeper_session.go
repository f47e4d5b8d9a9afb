//go:build linux || darwin

package servers

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"time"
)

// ZooKeeperSession is a session that sends no pings. The server expires it when no request
// has arrived for the session's timeout. It shows the effects of a careless client. Only
// one goroutine at a time may use it.
type ZooKeeperSession struct {
	conn net.Conn
	xid  int32
	// Notified is the number of watches that have fired so far.
	Notified int
}

const (
	opDeleteNode  = 2
	opNodeExists  = 3
	opGetChildren = 8

	// Ephemeral and Sequential are flags of Create.
	Ephemeral  = 1
	Sequential = 2
)

// Session begins a session. The server limits the timeout to its own range.
func (z *ZooKeeper) Session(ctx context.Context, timeout time.Duration) (*ZooKeeperSession, error) {
	c, err := (&net.Dialer{}).DialContext(ctx, "tcp", z.Address())
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { c.Close() })
	defer stop()
	// A server that works never takes longer for an answer.
	_ = c.SetDeadline(time.Now().Add(2 * time.Minute))
	// The fields are the protocol version, the last transaction seen, the timeout, the
	// session, its password, and 0 to refuse a read-only server.
	hello := make([]byte, 4+8+4+8+4+16+1)
	binary.BigEndian.PutUint32(hello[12:], uint32(timeout.Milliseconds()))
	binary.BigEndian.PutUint32(hello[24:], 16)
	if _, err := roundTrip(c, hello); err != nil {
		c.Close()
		return nil, err
	}
	return &ZooKeeperSession{conn: c}, nil
}

// Close ends the connection, but not the session.
func (s *ZooKeeperSession) Close() { s.conn.Close() }

// Create creates a node that every client can change, and returns its path. It reports
// false if the node existed.
func (s *ZooKeeperSession) Create(path string, flags int32) (string, bool, error) {
	body := binary.BigEndian.AppendUint32(appendString(nil, path), 0)
	body = appendACL(body, []ZooKeeperACL{{RightAll, "world", "anyone"}})
	answer, code, err := s.do(opCreateNode, binary.BigEndian.AppendUint32(body, uint32(flags)), codeNodeExists)
	if err != nil || code != 0 {
		return "", false, err
	}
	return string(answer[4:]), true, nil
}

// Delete deletes a node, whatever its version.
func (s *ZooKeeperSession) Delete(path string) error {
	_, _, err := s.do(opDeleteNode, binary.BigEndian.AppendUint32(appendString(nil, path), ^uint32(0)), 0)
	return err
}

// Exists reports whether a node exists.
func (s *ZooKeeperSession) Exists(path string) (bool, error) {
	_, code, err := s.do(opNodeExists, append(appendString(nil, path), 0), codeNoNode)
	return code == 0, err
}

// WatchChildren reads the children of a node, and watches them once.
func (s *ZooKeeperSession) WatchChildren(path string) error {
	_, _, err := s.do(opGetChildren, append(appendString(nil, path), 1), 0)
	return err
}

// Await waits until a watch has fired.
func (s *ZooKeeperSession) Await() error {
	_, err := readFrame(s.conn)
	if err == nil {
		s.Notified++
	}
	return err
}

// do sends a request and returns the answer's body and code. It returns an error unless the
// code is 0 or allowed.
func (s *ZooKeeperSession) do(op int32, body []byte, allowed int32) ([]byte, int32, error) {
	s.xid++
	frame := binary.BigEndian.AppendUint32(nil, uint32(s.xid))
	frame = binary.BigEndian.AppendUint32(frame, uint32(op))
	answer, err := roundTrip(s.conn, append(frame, body...))
	for err == nil && len(answer) >= 16 && int32(binary.BigEndian.Uint32(answer)) == -1 {
		s.Notified++
		answer, err = readFrame(s.conn)
	}
	if err != nil {
		return nil, 0, err
	}
	if len(answer) < 16 {
		return nil, 0, fmt.Errorf("servers: zookeeper answers with %d bytes", len(answer))
	}
	code := int32(binary.BigEndian.Uint32(answer[12:]))
	if code != 0 && code != allowed {
		return nil, code, fmt.Errorf("servers: zookeeper refuses operation %d: code %d", op, code)
	}
	return answer[16:], code, nil
}
