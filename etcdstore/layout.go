package etcdstore

import (
	"bytes"
	"encoding/json"
	"hash/maphash"
	"net/url"
	"strconv"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/holdfast-go/holdfast/driver"
)

// reserved begins the keys below the prefix that are no locks of the empty namespace: the store's own
// keys, and the locks of other namespaces. Names that begin with it are refused.
const reserved = "_holdfast/"

// namespaces begins, after reserved, the keys of the locks of other namespaces.
const namespaces = "ns/"

// epochShards is the number of epoch keys of a lease. A name belongs to one of them; an undo
// makes the present acquisitions of one shard send their transaction again.
const epochShards = 16

var seed = maphash.MakeSeed()

// tokenRoom is how many tokens an entry has room for: its create revision times tokenRoom is the first of them. A
// revision stays below 2^57, 4000 years at a million writes a second.
const tokenRoom = 64

// layout builds the keys of a store. The key of a lock begins with names.
type layout struct{ prefix, namespace, names string }

func newLayout(prefix, namespace string) layout {
	l := layout{prefix: prefix, namespace: namespace, names: prefix}
	if namespace != "" {
		l.names += reserved + namespaces + url.PathEscape(namespace) + "/"
	}
	return l
}

// checkName refuses a name whose keys would be among the reserved ones.
func (l layout) checkName(name string) error {
	if l.names == l.prefix && strings.HasPrefix(name, reserved) {
		return driver.Errorf(driver.CodeInvalid, "name %q: names that begin with %q are the store's own", name, reserved)
	}
	return nil
}

// entries returns the prefix of a name's entries.
func (l layout) entries(name string) string { return l.names + name + "/" }

// entry returns the key of the nth entry that a lease has for a name at one time. The first one
// has the same form as in other clients.
func (l layout) entry(name string, lease clientv3.LeaseID, n int) string {
	key := l.entries(name) + hex(lease)
	if n > 0 {
		key += "-" + strconv.Itoa(n)
	}
	return key
}

// epoch returns the key by which an undo keeps late requests of a lease out.
func (l layout) epoch(lease clientv3.LeaseID, shard int) string {
	return l.prefix + reserved + "epoch/" + hex(lease) + "-" + strconv.Itoa(shard)
}

// sentinel returns the key that shows whether a lease exists.
func (l layout) sentinel(lease clientv3.LeaseID) string {
	return l.prefix + reserved + "lease/" + hex(lease)
}

// value returns the key of a user's value.
func (l layout) value(key string) string {
	return l.prefix + reserved + "value/" + url.PathEscape(l.namespace) + "/" + key
}

// fence returns the key of the largest token that a guard has seen for a resource.
func (l layout) fence(resource string) string { return l.prefix + reserved + "fence/" + resource }

func shard(name string) int { return int(maphash.String(seed, name) % epochShards) }

func hex(lease clientv3.LeaseID) string { return strconv.FormatInt(int64(lease), 16) }

// nameOf returns the name of an entry, and false if the key is not an entry's. The cluster may
// contain other keys. The value of a lock is a record, which may be broken, or its key ends with the
// lease that is attached to it.
func (l layout) nameOf(p *entry) (string, bool) {
	rest, ok := strings.CutPrefix(p.key, l.names)
	if !ok || p.lease == clientv3.NoLease && p.broken == "" {
		return "", false
	}
	slash := strings.LastIndexByte(rest, '/')
	if slash < 1 {
		return "", false
	}
	name, last := rest[:slash], rest[slash+1:]
	if l.checkName(name) != nil {
		return "", false
	}
	return name, p.ours || p.broken != "" || last == hex(p.lease)
}

// ofLongerName reports whether a key belongs to a longer name than the one whose entries begin with
// prefix.
func ofLongerName(key []byte, prefix string) bool {
	return strings.IndexByte(string(key[len(prefix):]), '/') >= 0
}

// record is the value of an entry.
type record struct {
	// Holdfast is the version of this format.
	Holdfast int    `json:"holdfast"`
	Limit    int    `json:"limit"`
	Slot     *int   `json:"slot,omitempty"`
	ID       string `json:"id"`
	Host     string `json:"host,omitempty"`
	PID      int    `json:"pid,omitempty"`
	Instance string `json:"instance,omitempty"`
	Reason   string `json:"reason,omitempty"`
	// Since is set by the client, for people: etcd keeps no time.
	Since time.Time `json:"since,omitzero"`
	// Tokens is how many tokens the grant has, if it has several.
	Tokens int `json:"tokens,omitempty"`
	// Kept is set when the holder has released the grant, and the store keeps it for a minimum hold.
	Kept bool `json:"kept,omitempty"`
}

func (s *store) newRecord(r driver.Request, since time.Time) record {
	o := r.From.Owner()
	rec := record{Holdfast: 1, Limit: r.Limit, ID: r.ID, Host: o.Host, PID: o.PID,
		Instance: o.Instance, Reason: o.Reason, Since: since}
	if r.Limit == driver.Exclusive && r.Tokens > 1 {
		rec.Tokens = min(r.Tokens, s.room)
	}
	return rec
}

// sameOwner reports whether two records have the same owner.
func (r record) sameOwner(o record) bool {
	return r.Host == o.Host && r.PID == o.PID && r.Instance == o.Instance && r.Reason == o.Reason
}

func (r record) encode() string {
	b, err := json.Marshal(r)
	if err != nil {
		panic(err) // unreachable: a record has only strings, numbers and a time
	}
	return string(b)
}

// entry is a queue entry as a read has returned it.
type entry struct {
	key      string
	rev, mod int64 // create and modification revision
	lease    clientv3.LeaseID
	record   record
	ours     bool   // the value is a record
	broken   string // why the value, which begins like a record, is none
}

// recordMark begins every record. A value that begins otherwise belongs to another client.
const recordMark = `{"holdfast":`

func newEntry(kv *mvccpb.KeyValue) entry {
	p := entry{key: string(kv.Key), rev: kv.CreateRevision, mod: kv.ModRevision, lease: clientv3.LeaseID(kv.Lease)}
	p.ours = json.Unmarshal(kv.Value, &p.record) == nil && p.record.Holdfast > 0
	switch {
	case p.ours && !p.record.valid():
		p.broken = "its limit, its tokens or its slot is out of range"
	case p.ours && p.lease == clientv3.NoLease:
		p.broken = "it has no lease"
	case !p.ours && bytes.HasPrefix(kv.Value, []byte(recordMark)):
		p.broken = "its value cannot be decoded"
	}
	if p.ours = p.ours && p.broken == ""; !p.ours {
		p.record = record{Limit: driver.Exclusive} // so that nothing is granted beside it
	}
	return p
}

// valid reports whether holdfast can have written the limit, the tokens and the slot.
func (r record) valid() bool {
	permit := r.Limit > driver.Exclusive && r.Limit <= driver.MaxLimit
	if r.Tokens != 0 && (r.Limit != driver.Exclusive || r.Tokens < 2 || r.Tokens > tokenRoom) {
		return false
	}
	if r.Slot != nil && (!permit || *r.Slot < 0 || *r.Slot >= r.Limit) {
		return false
	}
	return permit || r.Limit == driver.Exclusive || r.Limit == driver.Unlimited
}

func (p *entry) slot() int {
	if p.record.Slot == nil {
		return driver.NoSlot
	}
	return *p.record.Slot
}

func (p *entry) owner() driver.Owner {
	if !p.ours {
		// Another client's entry names only its lease.
		return driver.Owner{ID: p.key[strings.LastIndexByte(p.key, '/')+1:], Instance: "etcd lease " + hex(p.lease)}
	}
	r := p.record
	return driver.Owner{ID: r.ID, Host: r.Host, PID: r.PID, Instance: r.Instance, Reason: r.Reason, Since: r.Since}
}
