//go:build linux || darwin

package story

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/holdfast-go/holdfast/check/servers"
)

// etcd starts etcd, empties it, and makes it the store of the clients' Lockers.
func (s *stage) etcd() *servers.Etcd {
	m := server(s, "etcd", func(ctx context.Context, dir string) (*servers.Etcd, func(), error) {
		m, err := servers.StartEtcd(ctx, servers.EtcdConfig{Dir: dir, NoSync: true})
		if err != nil {
			return nil, nil, err
		}
		return m[0], m[0].End, nil
	})
	if s.url == nil {
		s.url = func(a Actor) string { return "etcd://" + s.link(a, m.Client) + "/holdfast/" }
		s.post("/v3/kv/deleterange", `{"key":"AA==","range_end":"AA=="}`, &struct{}{})
	}
	return m
}

// post sends a request to etcd's JSON interface.
func (s *stage) post(path, request string, answer any) {
	q, err := http.NewRequestWithContext(s.ctx, http.MethodPost, "http://"+s.etcd().Client+path, bytes.NewBufferString(request))
	s.must(err)
	q.Close = true
	r, err := http.DefaultClient.Do(q)
	s.must(err)
	defer r.Body.Close()
	if r.StatusCode != http.StatusOK {
		s.must(fmt.Errorf("etcd returned %s for %s", r.Status, path))
	}
	s.must(json.NewDecoder(r.Body).Decode(answer))
}

// leased is a lock of a key with a lease. The holder does not watch the lease.
var leased = lock{
	on: func(s *stage) { s.etcd() },
	take: func(s *stage, a Actor) bool {
		var lease struct{ ID string }
		s.post("/v3/lease/grant", fmt.Sprintf(`{"TTL":%d}`, map[Actor]int{A: 2, B: 60}[a]), &lease)
		key := base64.StdEncoding.EncodeToString([]byte(lockName))
		var txn struct{ Succeeded bool }
		s.post("/v3/kv/txn", fmt.Sprintf(`{"compare":[{"key":%q,"target":"CREATE","result":"EQUAL","create_revision":"0"}],
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
			s.post("/v3/kv/range", fmt.Sprintf(`{"key":%q}`, base64.StdEncoding.EncodeToString([]byte(lockName))), &r)
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

var etcdStories = []Story{
	{
		Name: "etcd-lease", Title: "a lease that expires while its client sleeps", Mistake: "ignores-loss", Server: "etcd",
		Code:   "grant a lease; put lock with it; work",
		Tale:   "Client A keeps its lease alive in the background. Its machine sleeps for a while, and nothing is kept alive. The lease expires, the key is deleted, and B gets the lock. A wakes up and goes on with its work: it never looks at the lease again.",
		Lesson: "Watch your lease: the work must end before the lease does.",
		wrong:  asleep(leased, "its machine sleeps"),
		right:  asleep(holdfastOn(leased.on, 2*time.Second), "its machine sleeps"),
	},
}
