package etcdstore

import (
	"testing"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
)

// TestEventOfAnotherKeyEndsTheStream: a watch reports no change of a key that it does not
// watch. Otherwise the store would take the event for the end of one lock, or of all locks.
func TestEventOfAnotherKeyEndsTheStream(t *testing.T) {
	for name, c := range map[string]struct {
		prefix, key string
		own         bool
	}{
		"its key":                 {"", "locks/a/1", true},
		"another key":             {"", "locks/b/1", false},
		"a key below its prefix":  {"locks/a/", "locks/a/1", true},
		"a key beside its prefix": {"locks/a/", "locks/b/1", false},
	} {
		t.Run(name, func(t *testing.T) {
			reported := 0
			w := &watch{key: []byte("locks/a/1"), update: func(u watchUpdate) { reported += len(u.events) }}
			if c.prefix != "" {
				w.setPrefix(c.prefix)
			}
			m := &watches{made: map[int64]*watch{1: w}}
			gone := &mvccpb.Event{Type: mvccpb.Event_DELETE, Kv: &mvccpb.KeyValue{Key: []byte(c.key), ModRevision: 9}}
			err := m.take(&etcdserverpb.WatchResponse{WatchId: 1, Events: []*mvccpb.Event{gone}})
			if own := err == nil && reported == 1; own != c.own || err == nil != c.own {
				t.Errorf("%d events are reported, and the stream ends with %v", reported, err)
			}
		})
	}
}
