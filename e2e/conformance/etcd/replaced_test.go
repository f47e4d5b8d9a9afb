package etcd

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/servers"
)

// TestLockOutlivesEveryMember: three members are added, and then those of the URL are removed one after another. A lock
// stays, and a client that was open before gets one. The clients have a user. A new client with the old URL reports that no server is there.
func TestLockOutlivesEveryMember(t *testing.T) {
	t.Parallel()
	// With the strict check a cluster refuses a change of its members within five seconds of the one before.
	const loose = "--strict-reconfig-check=false"
	c := start(t, servers.EtcdConfig{Members: 3, Args: []string{loose}})
	admin := c.secure(t)
	url := "etcd://app:quite-secret@" + strings.Join(servers.EtcdEndpoints(c.members), ",") + "/locks/"
	holder, other := opened(t, url), opened(t, url)
	k, err := holder.Lock(t.Context(), "held")
	check(t, err)
	check(t, other.Ping(t.Context()))

	members := slices.Clone(c.members)
	old, err := admin.MemberList(t.Context())
	check(t, err)
	// agree waits until each running member lists n members, of which all have started or one has not. A member that lags
	// behind would refuse the next one.
	agree := func(n int, started bool) {
		for _, m := range members {
			at := c.direct(t, asRoot, func(cfg *clientv3.Config) { cfg.Endpoints = []string{m.Client} })
			eventually(t, "the members agree", func() bool {
				list, err := at.MemberList(t.Context(), clientv3.WithSerializable())
				check(t, err)
				starting := slices.ContainsFunc(list.Members, func(m *etcdserverpb.Member) bool { return len(m.ClientURLs) == 0 })
				return len(list.Members) == n && starting != started
			})
		}
	}
	for n := range c.members {
		joined, err := servers.JoinEtcd(t.Context(), servers.EtcdConfig{Dir: t.TempDir(), NoSync: true, Args: []string{loose}}, members, func(peer string) error {
			_, err := admin.MemberAdd(t.Context(), []string{peer})
			agree(len(c.members)+n+1, false)
			return err
		})
		check(t, err)
		t.Cleanup(joined.End)
		agree(len(c.members)+n+1, true)
		members = append(members, joined)
	}
	added := &cluster{members: members[len(c.members):]}
	for i := range added.members {
		at := &cluster{members: added.members[i:]}
		// Each client requests a watch, whose answer has the number of the cluster.
		eventually(t, "both clients have found a new member", func() bool { return at.calls(t, "Watch") >= 2 })
	}
	admin = added.direct(t, asRoot)
	for _, m := range old.Members {
		eventually(t, "a member is removed", func() bool { // without a leader for a while, a request may get no answer
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			defer cancel()
			_, err := admin.MemberRemove(ctx, m.ID)
			return err == nil || errors.Is(err, rpctypes.ErrMemberNotFound)
		})
		i := slices.IndexFunc(c.members, func(e *servers.Etcd) bool { return m.ClientURLs[0] == "http://"+e.Client })
		c.members[i].Kill()
	}
	added.leader(t, admin)

	check(t, other.Do(t.Context(), "free", func(context.Context) error { return nil }))
	if err := k.Context().Err(); err != nil {
		t.Fatalf("the lock was lost with the members: %v", context.Cause(k.Context()))
	}
	if _, err := other.TryLock(t.Context(), "held"); !errors.Is(err, holdfast.ErrBusy) {
		t.Errorf("another client gets %v, want busy", err)
	}
	check(t, k.Unlock())
	if _, err := opened(t, url).TryLock(t.Context(), "free"); !errors.Is(err, holdfast.ErrUnavailable) || !strings.Contains(err.Error(), "refused") {
		t.Errorf("a new client with the URL of the removed members: %v; want unavailable: connection refused", err)
	}
}

// opened opens a Locker, and closes it at the end of the test.
func opened(t *testing.T, url string) *holdfast.Locker {
	t.Helper()
	l, err := holdfast.Open(t.Context(), url)
	check(t, err)
	t.Cleanup(func() { _ = l.Close(context.Background()) })
	return l
}
