package etcdstore

import (
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

// reserved begins the keys below the prefix that are no lock's of the empty
// namespace: other namespaces, the epochs and the sentinels. Names that begin with it are
// refused.
const reserved = "_holdfast/"

// epochShards is how many epoch keys a lease has at most. A name belongs to one
// of them; an undo makes the acquisitions in flight of one shard ask again.
const epochShards = 16

var seed = maphash.MakeSeed()

// layout says where things stand.
type layout struct{ prefix, namespace, names string }

func newLayout(prefix, namespace string) layout {
	l := layout{prefix: prefix, namespace: namespace, names: prefix}
	if namespace != "" {
		l.names += reserved + "ns/" + url.PathEscape(namespace) + "/"
	}
	return l
}

// checkName refuses a name that would stand among the reserved keys.
func (l layout) checkName(name string) error {
	if l.names == l.prefix && strings.HasPrefix(name, reserved) {
		return driver.Errorf(driver.CodeInvalid, "name %q: names that begin with %q are the store's own", name, reserved)
	}
	return nil
}

// places is the prefix of a name's places.
func (l layout) places(name string) string { return l.names + name + "/" }

// place is the key of the nth place that a lease has for a name at one time. The
// first is named as the neighbours name theirs.
func (l layout) place(name string, lease clientv3.LeaseID, n int) string {
	key := l.places(name) + hex(lease)
	if n > 0 {
		key += "-" + strconv.Itoa(n)
	}
	return key
}

func (l layout) epoch(lease clientv3.LeaseID, shard int) string {
	return l.prefix + reserved + "epoch/" + hex(lease) + "-" + strconv.Itoa(shard)
}

// sentinel is the key of which a lease's own watch is made.
func (l layout) sentinel(lease clientv3.LeaseID) string {
	return l.prefix + reserved + "lease/" + hex(lease)
}

func shard(name string) int { return int(maphash.String(seed, name) % epochShards) }

func hex(lease clientv3.LeaseID) string { return strconv.FormatInt(int64(lease), 16) }

// nameOf tells whose place a key is; false if it is none. In a store that holds
// other things too, locks are told from them by their value, or by the lease
// attached to the key being the one that the key is named after.
func (l layout) nameOf(p *place) (string, bool) {
	rest, ok := strings.CutPrefix(p.key, l.names)
	if !ok || p.lease == clientv3.NoLease {
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
	return name, p.ours || last == hex(p.lease)
}

// deep tells that a key belongs to a longer name than the one whose places begin
// with the prefix.
func deep(key []byte, prefix string) bool {
	return strings.IndexByte(string(key[len(prefix):]), '/') >= 0
}

// record is the value of a place.
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
	// Since is the client's word, for people to read: etcd tells no time.
	Since time.Time `json:"since,omitzero"`
	// Kept says that the holder has released and left the grant standing.
	Kept bool `json:"kept,omitempty"`
}

func newRecord(r driver.Request, since time.Time) record {
	o := r.From.Owner()
	return record{Holdfast: 1, Limit: r.Limit, ID: r.ID, Host: o.Host, PID: o.PID,
		Instance: o.Instance, Reason: o.Reason, Since: since}
}

func (r record) same(o record) bool {
	return r.Host == o.Host && r.PID == o.PID && r.Instance == o.Instance && r.Reason == o.Reason
}

func (r record) encode() string {
	b, err := json.Marshal(r)
	if err != nil {
		panic(err) // strings, numbers and a time
	}
	return string(b)
}

// place is a key as it was read.
type place struct {
	key      string
	rev, mod int64 // create and modification revision
	lease    clientv3.LeaseID
	record   record
	ours     bool // the value is a record
}

func newPlace(kv *mvccpb.KeyValue) place {
	p := place{key: string(kv.Key), rev: kv.CreateRevision, mod: kv.ModRevision, lease: clientv3.LeaseID(kv.Lease)}
	if len(kv.Value) > 0 && kv.Value[0] == '{' && json.Unmarshal(kv.Value, &p.record) == nil &&
		p.record.Holdfast > 0 && (p.record.Limit >= driver.Exclusive && p.record.Limit <= driver.MaxLimit || p.record.Limit == driver.Unlimited) {
		p.ours = true
		return p
	}
	p.record = record{Limit: driver.Exclusive}
	return p
}

func (p *place) slot() int {
	if p.record.Slot == nil {
		return driver.NoSlot
	}
	return *p.record.Slot
}

func (p *place) owner() driver.Owner {
	if !p.ours {
		// A neighbour: its lease is all that it tells.
		return driver.Owner{ID: p.key[strings.LastIndexByte(p.key, '/')+1:], Instance: "etcd lease " + hex(p.lease)}
	}
	r := p.record
	return driver.Owner{ID: r.ID, Host: r.Host, PID: r.PID, Instance: r.Instance, Reason: r.Reason, Since: r.Since}
}
