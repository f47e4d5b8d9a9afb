//go:build linux || darwin

package servers

import (
	"context"
	"crypto/sha1"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"time"
)

// The rights of an entry of an access list.
const (
	RightRead   = 1
	RightWrite  = 2
	RightCreate = 4
	RightDelete = 8
	RightAll    = 31
)

// ZooKeeperACL is one entry of a node's access list.
type ZooKeeperACL struct {
	Rights     int32
	Scheme, ID string
}

// DigestUser returns an entry for a user of the digest scheme.
func DigestUser(user, password string, rights int32) ZooKeeperACL {
	return ZooKeeperACL{rights, "digest", digest(user, password)}
}

func digest(user, password string) string {
	h := sha1.Sum([]byte(user + ":" + password))
	return user + ":" + base64.StdEncoding.EncodeToString(h[:])
}

// The server's administrator. Access lists do not apply to this user.
const (
	ZooKeeperAdmin         = "super"
	ZooKeeperAdminPassword = "administrator"
)

// adminArgument returns the argument that gives a server its administrator.
func adminArgument() string {
	return "-Dzookeeper.DigestAuthenticationProvider.superDigest=" + digest(ZooKeeperAdmin, ZooKeeperAdminPassword)
}

// The operations of the administrator, and the error codes that administer may allow.
const (
	opCreateNode = 1
	opSetACL     = 7
	opSetAuth    = 100
	opEnd        = -11

	codeNoNode     = -101
	codeNodeExists = -110
)

// CreateNode creates a node with an access list, unless it exists.
func (z *ZooKeeper) CreateNode(ctx context.Context, path string, acl ...ZooKeeperACL) error {
	body := appendString(nil, path)
	body = binary.BigEndian.AppendUint32(body, 0) // no data
	body = appendACL(body, acl)
	return z.administer(ctx, opCreateNode, binary.BigEndian.AppendUint32(body, 0), codeNodeExists)
}

// SetACL replaces the access list of a node, if it exists.
func (z *ZooKeeper) SetACL(ctx context.Context, path string, acl ...ZooKeeperACL) error {
	body := appendACL(appendString(nil, path), acl)
	return z.administer(ctx, opSetACL, binary.BigEndian.AppendUint32(body, ^uint32(0)), codeNoNode)
}

func appendString(b []byte, s string) []byte {
	return append(binary.BigEndian.AppendUint32(b, uint32(len(s))), s...)
}

func appendACL(b []byte, acl []ZooKeeperACL) []byte {
	b = binary.BigEndian.AppendUint32(b, uint32(len(acl)))
	for _, a := range acl {
		b = binary.BigEndian.AppendUint32(b, uint32(a.Rights))
		b = appendString(appendString(b, a.Scheme), a.ID)
	}
	return b
}

// administer makes one request as the administrator, in a new session.
func (z *ZooKeeper) administer(ctx context.Context, op int32, body []byte, allowed int32) error {
	s, err := z.Session(ctx, 10*time.Second)
	if err != nil {
		return err
	}
	defer s.Close()
	stop := context.AfterFunc(ctx, s.Close)
	defer stop()
	auth := binary.BigEndian.AppendUint32(nil, 0)
	auth = appendString(appendString(auth, "digest"), ZooKeeperAdmin+":"+ZooKeeperAdminPassword)
	_, _, err = s.do(opSetAuth, auth, 0)
	if err == nil {
		_, _, err = s.do(op, body, allowed)
	}
	if err == nil {
		_, _, err = s.do(opEnd, nil, 0)
	}
	return err
}

// roundTrip sends a frame and returns the answer.
func roundTrip(c net.Conn, frame []byte) ([]byte, error) {
	if _, err := c.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(frame))), frame...)); err != nil {
		return nil, err
	}
	return readFrame(c)
}

func readFrame(c net.Conn) ([]byte, error) {
	head := make([]byte, 4)
	if _, err := io.ReadFull(c, head); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(head)
	if n > 1<<20 {
		return nil, fmt.Errorf("servers: zookeeper answers with a frame of %d bytes", n)
	}
	answer := make([]byte, n)
	_, err := io.ReadFull(c, answer)
	return answer, err
}
