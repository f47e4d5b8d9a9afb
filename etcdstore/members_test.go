package etcdstore

import (
	"context"
	"net"
	"net/url"
	"slices"
	"sync"
	"testing"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/holdfast-go/holdfast/internal/must"
)

// memberServer imitates a member of a cluster with a member list. It refuses watches, as with authentication.
type memberServer struct {
	etcdserverpb.UnimplementedClusterServer
	etcdserverpb.UnimplementedWatchServer

	mu      sync.Mutex
	cluster uint64
	list    []*etcdserverpb.Member
}

func (m *memberServer) set(cluster uint64, list []*etcdserverpb.Member) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.cluster, m.list = cluster, list
}

func (m *memberServer) header() *etcdserverpb.ResponseHeader {
	m.mu.Lock()
	defer m.mu.Unlock()
	return &etcdserverpb.ResponseHeader{ClusterId: m.cluster}
}

func (m *memberServer) MemberList(context.Context, *etcdserverpb.MemberListRequest) (*etcdserverpb.MemberListResponse, error) {
	h := m.header()
	m.mu.Lock()
	defer m.mu.Unlock()
	return &etcdserverpb.MemberListResponse{Header: h, Members: m.list}, nil
}

func (m *memberServer) Watch(stream etcdserverpb.Watch_WatchServer) error {
	if _, err := stream.Recv(); err != nil {
		return err
	}
	return stream.Send(&etcdserverpb.WatchResponse{Header: m.header(), WatchId: -1, Created: true, Canceled: true})
}

// serve starts the server, and returns its address.
func (m *memberServer) serve(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must.Succeed(t, err)
	s := grpc.NewServer()
	etcdserverpb.RegisterClusterServer(s, m)
	etcdserverpb.RegisterWatchServer(s, m)
	go func() { _ = s.Serve(l) }()
	t.Cleanup(s.Stop)
	return l.Addr().String()
}

// TestEndpointsFollowTheMemberList: a client uses the addresses of the URL, and those of the members that
// vote, and have the scheme of the URL and the cluster. It uses the URL alone if no member advertises an address of it, and
// when another cluster answers there.
func TestEndpointsFollowTheMemberList(t *testing.T) {
	const cluster = 7
	one := &memberServer{cluster: cluster}
	address, other := one.serve(t), one.serve(t) // the client may ask either for the list
	stranger, unreachable := (&memberServer{cluster: 8}).serve(t), "127.0.0.1:1"
	member := func(name string, urls ...string) *etcdserverpb.Member {
		return &etcdserverpb.Member{Name: name, ClientURLs: urls}
	}
	learner := member("learner", "http://"+other)
	learner.IsLearner = true
	_, port, _ := net.SplitHostPort(address)
	listed := member("other", "http://"+other)
	cfg, _, err := parseURL(&url.URL{Scheme: "etcd", Host: address})
	must.Succeed(t, err)
	client, err := clientv3.New(cfg)
	must.Succeed(t, err)
	defer client.Close()
	m := &members{client: client, cfg: cfg, used: cfg.Endpoints}
	for _, step := range []struct {
		what    string
		cluster uint64
		list    []*etcdserverpb.Member
		more    []string
	}{
		{"no member advertises an address of the URL", cluster, []*etcdserverpb.Member{listed}, nil},
		{"a member advertises it under another name", cluster, []*etcdserverpb.Member{member("one", "http://localhost:"+port), listed}, []string{"localhost:" + port, other}},
		{"the member was removed", cluster, []*etcdserverpb.Member{listed}, []string{other}},
		{"another cluster", 9, []*etcdserverpb.Member{listed}, nil},
		{"all rules", cluster, []*etcdserverpb.Member{
			member("one", "http://"+address), learner, member("secure", "https://"+other),
			member("stranger", "http://"+stranger), member("unreachable", "http://"+unreachable)}, nil},
		{"the learner votes", cluster, []*etcdserverpb.Member{member("one", "http://"+address), listed}, []string{other}},
	} {
		one.set(step.cluster, step.list)
		m.read(t.Context())
		want := []string{"http://" + address}
		for _, a := range step.more {
			want = append(want, "http://"+a)
		}
		if got := m.client.Endpoints(); !slices.Equal(got, want) {
			t.Errorf("%s: the endpoints are %q, want %q", step.what, got, want)
		}
	}
}
