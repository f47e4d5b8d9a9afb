//go:build linux || darwin

package lab

import (
	"encoding/base64"
	"fmt"

	"github.com/holdfast-go/holdfast/internal/servers"
)

// etcd starts etcd, empties it, and makes it the store of the clients' Lockers.
func (s *stage) etcd() *servers.Etcd {
	start := func(dir string) ([]*servers.Etcd, error) {
		return servers.StartEtcd(s.ctx, servers.EtcdConfig{Dir: dir, NoSync: true})
	}
	m := sharedServer(s, "etcd", start, func(all []*servers.Etcd) { all[0].End() })[0]
	if s.url == nil {
		s.url = func(a Actor) string { return "etcd://" + s.link(a, m.Client) + "/holdfast/" }
		s.post("kv/deleterange", `{"key":"AA==","range_end":"AA=="}`, &struct{}{})
	}
	return m
}

// post sends a request to etcd's JSON interface.
func (s *stage) post(path, request string, answer any) {
	s.must(s.etcd().Post(s.ctx, nil, path, "", request, answer))
}

// leased is a lock of a key with a lease. The holder does not watch the lease.
var leased = lock{
	on: func(s *stage) { s.etcd() },
	take: func(s *stage, a Actor) bool {
		var lease struct{ ID string }
		s.post("lease/grant", fmt.Sprintf(`{"TTL":%d}`, map[Actor]int{A: 2, B: 60}[a]), &lease)
		key := base64.StdEncoding.EncodeToString([]byte(lockName))
		var txn struct{ Succeeded bool }
		s.post("kv/txn", fmt.Sprintf(`{"compare":[{"key":%q,"target":"CREATE","result":"EQUAL","create_revision":"0"}],
			"success":[{"request_put":{"key":%[1]q,"value":%[1]q,"lease":%q}}]}`, key, lease.ID), &txn)
		if !txn.Succeeded {
			s.step(a, "put lock if absent", "it exists")
			return false
		}
		s.step(a, "put lock if absent", "done")
		s.enter(a, nil)
		return true
	},
	free: func(s *stage, a Actor) { s.note(a, "works on") },
	expire: func(s *stage) bool {
		s.until("the key has expired", func() bool {
			var r struct{ Count string }
			s.post("kv/range", fmt.Sprintf(`{"key":%q}`, base64.StdEncoding.EncodeToString([]byte(lockName))), &r)
			return r.Count == ""
		})
		s.note(Server, "lease expires")
		return true
	},
}

// asleep returns a story in which A sleeps until its lease has expired, and wakes up while B has
// the lock.
func asleep(l lock, sleeps string) func(*stage) {
	return func(s *stage) {
		l.on(s)
		s.expect(l.take(s, A), "A gets the lock")
		s.stall(A, sleeps)
		l.expire(s)
		s.expect(l.take(s, B), "B gets the lock")
		s.resume(A, "wakes up")
		l.free(s, A)
		s.survive("A's context has ended before B got the lock, and A stops.")
	}
}
