package etcd

import (
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/etcdstore"
	"github.com/holdfast-go/holdfast/internal/servers"
)

// TestLearnerIsPassed: one endpoint of the URL is a learner, as while a member is added. It refuses all requests, and the
// client makes them at the other endpoints.
func TestLearnerIsPassed(t *testing.T) {
	t.Parallel()
	c := start(t, servers.EtcdConfig{})
	admin := c.direct(t)
	learner, err := servers.JoinEtcd(t.Context(), servers.EtcdConfig{Dir: t.TempDir(), NoSync: true}, c.members, func(peer string) error {
		_, err := admin.MemberAddAsLearner(t.Context(), []string{peer})
		return err
	})
	check(t, err)
	t.Cleanup(learner.End)
	list, err := admin.MemberList(t.Context())
	check(t, err)
	if n := len(list.Members); n != len(c.members)+1 {
		t.Fatalf("the cluster has %d members", n)
	}
	voter := c.members[0].Client
	for _, url := range []string{"etcd://" + learner.Client + "," + voter, "etcd://" + voter + "," + learner.Client} {
		a, err := etcdstore.Open(t.Context(), url)
		check(t, err)
		b, err := etcdstore.Open(t.Context(), url)
		check(t, err)
		for range 5 {
			g := must(t, a, request("n", 1, time.Minute))
			w := queue(t, b, request("n", 1, time.Minute))
			for _, r := range a.Renew(t.Context(), []driver.Grant{g}) {
				check(t, r.Err)
			}
			release(t, a, g)
			release(t, b, w.Granted())
		}
		check(t, a.Close(t.Context()))
		check(t, b.Close(t.Context()))
	}
}
