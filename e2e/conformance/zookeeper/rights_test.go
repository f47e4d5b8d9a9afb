package zookeeper

import (
	"context"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/driver/drivertest"
	"github.com/holdfast-go/holdfast/e2e/conformance/requests"
	"github.com/holdfast-go/holdfast/internal/servers"
	"github.com/holdfast-go/holdfast/zkstore"
)

// TestDocumentedRightsSuffice: the rights of docs/zookeeper.md suffice for all requests.
// If a right is missing, the client reports the refusal, leaves nothing behind and disturbs
// no other client's lock. With the right again, all requests succeed.
func TestDocumentedRightsSuffice(t *testing.T) {
	z := alone(t, plain)
	const root = "/rights"
	user := func(rights int32) servers.ZooKeeperACL { return servers.DigestUser("me", "secret", rights) }
	const onRoot = servers.RightCreate | servers.RightRead
	must(t, z.CreateNode(t.Context(), root, user(onRoot)))
	at := func(t testing.TB, o ...zkstore.Option) *zkstore.Store {
		return open(t, []string{z.Address()}, append(o, zkstore.Root(root))...)
	}
	raw := connect(t, z.Address())
	must(t, raw.AddAuth("digest", []byte("me:secret")))
	names := func(t testing.TB) (paths []string) {
		all, _, err := raw.Children(root)
		must(t, err)
		for _, name := range all {
			if name != "@" {
				paths = append(paths, root+"/"+name)
			}
		}
		return paths
	}
	node := func(path string) func(testing.TB) []string {
		return func(testing.TB) []string { return []string{path} }
	}
	guards := node(root + "/@")
	var missing []drivertest.Refusal
	for _, c := range []struct {
		what    string
		paths   func(testing.TB) []string
		all     int32 // the usual rights
		without int32
		noticed bool
	}{
		{"to create on the root", node(root), onRoot, servers.RightCreate, false}, // the name's node exists
		{"to read the root", node(root), onRoot, servers.RightRead, false},        // only List needs it
		{"to create on the name", names, servers.RightAll, servers.RightCreate, true},
		{"to read the name", names, servers.RightAll, servers.RightRead, true},
		{"to write on the name", names, servers.RightAll, servers.RightWrite, false},
		{"to read the guards' node", guards, servers.RightAll, servers.RightRead, true},
		{"to create on the guards' node", guards, servers.RightAll, servers.RightCreate, false},
		{"to delete on the guards' node", guards, servers.RightAll, servers.RightDelete, false},
		{"to write on the guards' node", guards, servers.RightAll, servers.RightWrite, false},
	} {
		var changed []string
		set := func(t testing.TB, rights int32) {
			for _, path := range changed {
				must(t, z.SetACL(t.Context(), path, user(rights)))
			}
		}
		missing = append(missing, drivertest.Refusal{
			Name: c.what, Unnoticed: !c.noticed,
			Begin: func(t testing.TB) { changed = c.paths(t); set(t, c.all&^c.without) },
			End:   func(t testing.TB) { set(t, c.all) },
		})
	}
	s := at(t, zkstore.Digest("me", "secret"), zkstore.CreatorOnly())
	defer s.Close(context.WithoutCancel(t.Context()))
	g := requests.Must(t, s, requests.New("listed", driver.Exclusive, requests.Long))
	for st, err := range s.List(t.Context(), "") {
		must(t, err)
		if st.Name != g.Name || len(st.Holders) != 1 {
			t.Errorf("%+v", st)
		}
	}
	requests.Release(t, s, g)
	h := drivertest.Harness{TTL: time.Second, Session: true, Open: func(t testing.TB, _ string) driver.Store {
		return at(t, zkstore.Digest(servers.ZooKeeperAdmin, servers.ZooKeeperAdminPassword))
	}}
	drivertest.Refusals(t, h, s, missing...)

	// The right to delete on the name. A break without it is refused, and has requested the holder to end.
	g = requests.Must(t, s, requests.New("deleted", driver.Exclusive, requests.Long))
	must(t, z.SetACL(t.Context(), root+"/deleted", user(servers.RightAll&^servers.RightDelete)))
	if err := s.Release(t.Context(), g, 0); driver.CodeOf(err) != driver.CodeRefused {
		t.Errorf("a release without the right to delete: %v, want refused", err)
	}
	must(t, z.SetACL(t.Context(), root+"/deleted", user(servers.RightAll)))
	requests.Release(t, s, g)
	empty(t, s, g.Name)
}
