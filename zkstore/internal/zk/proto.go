package zk

import "fmt"

// The operations, by their numbers in the protocol.
const (
	opCreatePlain     = 1
	opDelete          = 2
	opGetData         = 4
	opSetData         = 5
	opSync            = 9
	opChildren        = 12
	opCheck           = 13
	opMulti           = 14
	opCreate          = 15
	opRemoveWatches   = 18
	opCreateContainer = 19
	opAuth            = 100
	opEphemerals      = 103
	opAddWatch        = 106
	opClose           = -11
	opError           = -1
)

// The xids that do not belong to a request.
const (
	xidEvent = -1
	xidAuth  = -4
)

// throughLeader reports whether an operation is answered only after the leader has executed
// it.
func throughLeader(op int32) bool {
	switch op {
	case opDelete, opSetData, opSync, opMulti, opCreate, opCreateContainer:
		return true
	}
	return false
}

// Error is an error of a server, by its number in the protocol.
type Error int32

// The errors that callers distinguish.
const (
	ErrRuntimeInconsistency Error = -2
	ErrUnimplemented        Error = -6
	ErrBadArguments         Error = -8
	ErrNoNode               Error = -101
	ErrNoAuth               Error = -102
	ErrBadVersion           Error = -103
	ErrEphemeralParent      Error = -108
	ErrNodeExists           Error = -110
	ErrExpired              Error = -112
	ErrInvalidACL           Error = -114
	ErrAuthFailed           Error = -115
	ErrMoved                Error = -118
	ErrReadOnly             Error = -119
	ErrLocalSession         Error = -120
	ErrSASLRequired         Error = -124
	ErrQuotaExceeded        Error = -125
	ErrThrottled            Error = -127
)

var errorNames = map[Error]string{
	ErrRuntimeInconsistency: "another operation of the transaction failed",
	ErrUnimplemented:        "the server does not support this operation",
	ErrBadArguments:         "bad arguments",
	ErrNoNode:               "no such node",
	ErrNoAuth:               "no permission",
	ErrBadVersion:           "the node has another version",
	ErrEphemeralParent:      "an ephemeral node cannot have children",
	ErrNodeExists:           "the node exists",
	ErrExpired:              "the session has expired",
	ErrInvalidACL:           "invalid ACL",
	ErrAuthFailed:           "authentication failed",
	ErrMoved:                "the session has moved to another server",
	ErrReadOnly:             "the server is read-only",
	ErrLocalSession:         "the server has local sessions, which cannot have ephemeral nodes: set localSessionsUpgradingEnabled at the server",
	ErrSASLRequired:         "the server demands SASL, which this client does not speak",
	ErrQuotaExceeded:        "a quota is exceeded",
	ErrThrottled:            "the server is overloaded",
}

func (e Error) Error() string {
	if s, ok := errorNames[e]; ok {
		return "zookeeper: " + s
	}
	return fmt.Sprintf("zookeeper: error %d", int32(e))
}

// Stat is the server's data about a node. Times are milliseconds since 1970 by the leader's
// clock.
type Stat struct {
	Czxid, Mzxid, Ctime, Mtime  int64
	Version, Cversion, Aversion int32
	EphemeralOwner              int64
	DataLength, NumChildren     int32
	Pzxid                       int64
}

// ACL is one entry of an access control list.
type ACL struct {
	Perms      int32
	Scheme, ID string
}

// Everyone grants all rights to all users, and Creator only to the user that created a node.
var (
	Everyone = []ACL{{allRights, "world", "anyone"}}
	Creator  = []ACL{{allRights, "auth", ""}}
)

const allRights = 1<<5 - 1 // read, write, create, delete, admin

// Auth is a credential that a session presents on each connection.
type Auth struct {
	Scheme string
	Data   []byte
}

// EventType is the kind of change that a watch reports.
type EventType int32

// The types of events that callers distinguish.
const (
	EventDeleted EventType = 2
	EventChanged EventType = 3
)

// Event is a watch that has fired.
type Event struct {
	Type EventType
	Path string
}

const (
	flagsEphemeral           = 1
	flagsEphemeralSequential = 3
	flagsContainer           = 4
	modeRecursive            = 1
	anyWatch                 = 3
)
