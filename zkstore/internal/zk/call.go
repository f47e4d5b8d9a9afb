package zk

import "github.com/holdfast-go/holdfast/driver"

// Call is one request. It is sent once: after a *LostError the caller makes a new Call. The caller
// may read its results once Do has returned nil, or Done is closed.
type Call struct {
	op   int32
	body []byte
	kind kind
	xid  int32 // its number on the connection

	done chan struct{}

	// Sent is taken before the request is written. Conn is the number of its connection, 0
	// if it was not sent.
	Sent driver.Instant
	Conn int

	// Err is the error in the server's answer, or a *LostError.
	Err error
	// Zxid is the server's last transaction at its answer. For a write it is the write's own
	// transaction, since a server applies and answers writes one by one.
	Zxid int64
	// Path, Stat, Data and Names are the results. Each operation sets only some of them.
	Path  string
	Stat  Stat
	Data  []byte
	Names []string
	// Results are those of a multi, by index. If the multi failed, Failed is the index of the
	// failed operation.
	Results []*Call
	Failed  int
}

// Done is closed when the call has been answered or its connection is lost. It is nil until
// the call is sent.
func (c *Call) Done() <-chan struct{} { return c.done }

// Size returns the size of the request, as the server counts it.
func (c *Call) Size() int { return 8 + len(c.body) }

// kind is the form of an answer.
type kind int

const (
	kindNone kind = iota
	kindCreated
	kindStat
	kindData
	kindNames
	kindMulti
)

func create(op int32, path string, data []byte, acl []ACL, flags int32) *Call {
	var e encoder
	e.string(path)
	e.bytes(data)
	e.acl(acl)
	e.int32(flags)
	return &Call{op: op, body: e.b, kind: kindCreated}
}

// Create makes a permanent node.
func Create(path string, data []byte, acl []ACL) *Call { return create(opCreate, path, data, acl, 0) }

// CreateEphemeral makes a node that ends with the session.
func CreateEphemeral(path string, data []byte, acl []ACL) *Call {
	return create(opCreate, path, data, acl, flagsEphemeral)
}

// CreateSequential makes a node that ends with the session, whose name ends with
// a number.
func CreateSequential(path string, data []byte, acl []ACL) *Call {
	return create(opCreate, path, data, acl, flagsEphemeralSequential)
}

// CreateContainer makes a node that the server removes some time after its last
// child.
func CreateContainer(path string, acl []ACL) *Call {
	return create(opCreateContainer, path, nil, acl, flagsContainer)
}

// Delete removes a node; version -1 matches every version.
func Delete(path string, version int32) *Call {
	var e encoder
	e.string(path)
	e.int32(version)
	return &Call{op: opDelete, body: e.b}
}

// Get reads a node. With watch it also watches the node for a change of its data and for its
// deletion. Unlike the operation exists, it leaves no watch if there is no node.
func Get(path string, watch bool) *Call {
	var e encoder
	e.string(path)
	e.bool(watch)
	return &Call{op: opGetData, body: e.b, kind: kindData}
}

// Set writes a node's data; version -1 matches every version.
func Set(path string, data []byte, version int32) *Call {
	var e encoder
	e.string(path)
	e.bytes(data)
	e.int32(version)
	return &Call{op: opSetData, body: e.b, kind: kindStat}
}

// Children lists the names of a node's children, in no order.
func Children(path string) *Call {
	var e encoder
	e.string(path)
	e.bool(false) // no watch
	return &Call{op: opChildren, body: e.b, kind: kindNames}
}

// Ephemerals lists the paths of the session's own nodes, in no order. Servers before 3.6 do
// not support it.
func Ephemerals() *Call {
	var e encoder
	e.string("/")
	return &Call{op: opEphemerals, body: e.b, kind: kindNames}
}

// Sync makes the reads after it return at least what the leader had committed when it
// received the sync.
func Sync(path string) *Call {
	var e encoder
	e.string(path)
	return &Call{op: opSync, body: e.b}
}

// Check, in a multi, requires a version of a node.
func Check(path string, version int32) *Call {
	var e encoder
	e.string(path)
	e.int32(version)
	return &Call{op: opCheck, body: e.b}
}

// Multi executes all operations or none: creates, deletes, sets and checks. Creates in it
// return no Stat: servers do that only after 3.9.
func Multi(ops ...*Call) *Call {
	var e encoder
	header := func(op int32, end bool) {
		e.int32(op)
		e.bool(end)
		e.int32(-1) // an error code, which only answers have
	}
	for _, o := range ops {
		if o.op == opCreate {
			header(opCreatePlain, false)
		} else {
			header(o.op, false)
		}
		e.b = append(e.b, o.body...)
	}
	header(-1, true)
	return &Call{op: opMulti, body: e.b, kind: kindMulti, Results: ops, Failed: -1}
}

// WatchTree watches a node and everything below it, until RemoveWatches or the end of the
// connection.
func WatchTree(path string) *Call {
	var e encoder
	e.string(path)
	e.int32(modeRecursive)
	return &Call{op: opAddWatch, body: e.b}
}

// RemoveWatches removes this session's watches on a path, of every kind.
func RemoveWatches(path string) *Call {
	var e encoder
	e.string(path)
	e.int32(anyWatch)
	return &Call{op: opRemoveWatches, body: e.b}
}

// decode sets the results from the answer.
func (c *Call) decode(code Error, d *decoder) {
	if code != 0 {
		c.Err = code
		return
	}
	c.decodeResult(d)
	if err := d.err(); err != nil {
		c.Err = err
	}
}

func (c *Call) decodeResult(d *decoder) {
	switch c.kind {
	case kindCreated:
		c.Path, c.Stat = d.string(), d.stat()
	case kindStat:
		c.Stat = d.stat()
	case kindData:
		c.Data, c.Stat = d.bytes(), d.stat()
	case kindNames:
		c.Names = d.strings()
	case kindMulti:
		c.decodeMulti(d)
	}
}

// decodeMulti sets the results of the operations. If one failed, every result is an error code: 0
// for the operations before it, its own code, and "inconsistency" for those after it.
func (c *Call) decodeMulti(d *decoder) {
	failed := false
	for i := 0; ; i++ {
		op, end := d.int32(), d.bool()
		d.int32()
		if end || d.bad {
			if failed && c.Err == nil {
				c.Err = ErrRuntimeInconsistency
			}
			return
		}
		if i >= len(c.Results) {
			d.bad = true
			return
		}
		r := c.Results[i]
		if op == opCreatePlain {
			r.Path = d.string()
			continue
		}
		if op != opError {
			r.decodeResult(d)
			continue
		}
		failed = true
		e := Error(d.int32())
		if e == 0 {
			continue
		}
		r.Err = e
		if e != ErrRuntimeInconsistency && c.Failed < 0 {
			c.Failed, c.Err = i, e
		}
	}
}
