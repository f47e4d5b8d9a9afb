package mysqlstore

import (
	"bytes"
	"crypto/sha256"
	"encoding/base32"
	"fmt"
	"strconv"
	"strings"

	"github.com/holdfast-go/holdfast/internal/sqlkit"
)

// The named locks of GET_LOCK beside the lock itself. The server frees those of a session when the
// session ends and not before, so that no other session can have them meanwhile.
//
//   - hf:session: and a random text, as long as the session exists. This lock is the identity
//     of the session: after a failover another program may have its connection number.
//   - hf:grant: and the hash of a request's ID, while the session has a grant that is recorded,
//     or about to be. A row of holdfast_session counts while its session has this lock.
//   - hf:unrecorded: and its number, while it has a grant that could not be recorded.
//   - hfw: and the hash of a name, the gate of the name.
//   - hft: and the hash of a name, while a shared grant or a permit of the name reads the clock.
//
// The functions return names as literals, except for grantLock.

func identityLock(id sqlkit.Identity) string { return "'hf:session:" + id.Since + "'" }

func unrecordedLock(s *sqlkit.Session) string {
	return "'hf:unrecorded:" + strconv.FormatInt(s.ID.Conn, 10) + "'"
}

func grantLock(requestID string) string {
	sum := sha256.Sum256([]byte(requestID))
	return "hf:grant:" + base32Lower.EncodeToString(sum[:20])
}

// gate returns the named lock that a waiter takes before the lock of a name. The waiter has the gate
// while it waits for the lock. The other waiters wait for the gate, in the order in which they came.
// So the gate is free if no session waits, and a holder can hand its lock off.
func gate(key []byte) string { return asText("hfw" + hashedName(key)[2:]) }

// clockLock returns the named lock behind which shared grants and permits read the clock one after
// the other. It has 61 characters, and MySQL allows 64.
func clockLock(key []byte) string { return asText("hft" + hashedName(key)[2:]) }

// enter returns an expression that waits for the gate.
func enter(key []byte) string { return fmt.Sprintf("GET_LOCK(%s, %d)", gate(key), forever) }

// once returns an expression that takes a named lock unless the session has it. The server
// counts how often a session takes a lock.
func once(lock string) string {
	return fmt.Sprintf("IF(COALESCE(IS_USED_LOCK(%s), 0) = CONNECTION_ID(), 1, GET_LOCK(%[1]s, 0))", lock)
}

// readable is how many characters of a name its hashed name shows.
const readable = 24

// hashedName returns a name for GET_LOCK: at most 60 characters in lower case. They begin with a
// readable part of the name and end with its hash.
func hashedName(key []byte) string {
	sum := sha256.Sum256(key)
	_, name, _ := bytes.Cut(key, []byte{0})
	var shown strings.Builder
	for _, c := range strings.ToLower(string(name)) {
		if shown.Len() == readable {
			break
		}
		if c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || strings.ContainsRune("-_./:", c) {
			shown.WriteRune(c)
		} else {
			shown.WriteByte('~')
		}
	}
	return "hf:" + shown.String() + ":" + base32Lower.EncodeToString(sum[:20])
}

// base32Lower is base32 in lower case, without padding.
var base32Lower = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// lit returns bytes as a literal that means the same in every sql_mode.
func lit(b []byte) string { return fmt.Sprintf("x'%x'", b) }

// asText returns a name as GET_LOCK's argument, a string in UTF-8. Characters that mean the
// same in every character set and sql_mode stay as they are, which is faster.
func asText(s string) string {
	for _, c := range []byte(s) {
		if !(c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == ':' || c == '.' || c == '_' || c == '-' || c == '/') {
			return "CONVERT(" + lit([]byte(s)) + " USING utf8mb4)"
		}
	}
	return "'" + s + "'"
}
