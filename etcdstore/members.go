package etcdstore

import (
	"context"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/internal/storeurl"
	"github.com/holdfast-go/holdfast/internal/wakeup"
)

// members follows the member list of a cluster, for a client of Open. Its endpoints are the addresses of the URL and
// those of the members: see "Which members a client uses" in the package comment.
type members struct {
	client *clientv3.Client
	cfg    clientv3.Config // without the user; its endpoints are the addresses of the URL
	// cluster is the cluster that has advertised an address of the URL, 0 before one has.
	cluster uint64
	used    []string // the present endpoints
}

const (
	// readMembersEvery is the interval at which the list is read. It is also read after a request has failed, at most
	// once in readMembersPause.
	readMembersEvery = 10 * time.Second
	readMembersPause = time.Second
	// addressTimeout limits the check of one address.
	addressTimeout = 2 * time.Second
)

// followMembers begins to follow the member list. cfg is that of the client, without the user.
func (s *store) followMembers(cfg clientv3.Config) {
	m := &members{client: s.client, cfg: cfg, used: cfg.Endpoints}
	failed, reconnect := make(chan struct{}, 1), s.reconnect
	s.reconnect = func() {
		reconnect()
		wakeup.Send(failed)
	}
	s.calls.Go(func() {
		for backoff.Sleep(s.calls.Ctx, readMembersPause) == nil {
			select {
			case <-failed:
			case <-time.After(readMembersEvery - readMembersPause):
			case <-s.calls.Ctx.Done():
				return
			}
			m.read(s.calls.Ctx)
		}
	})
}

// read reads the list through the quorum, and sets the endpoints. Without an answer they stay.
func (m *members) read(ctx context.Context) {
	list, err := limited(ctx, func(ctx context.Context) (*clientv3.MemberListResponse, error) { return m.client.MemberList(ctx) })
	if err != nil {
		return
	}
	// The endpoints of a URL have one scheme. So the client does not leave TLS.
	scheme, _, _ := strings.Cut(m.cfg.Endpoints[0], "://")
	var given, advertised []string
	for _, endpoint := range m.cfg.Endpoints {
		given = append(given, strings.TrimPrefix(endpoint, scheme+"://"))
	}
	for _, member := range list.Members {
		if member.IsLearner { // it serves no requests
			continue
		}
		for _, endpoint := range member.ClientURLs {
			if address, ok := strings.CutPrefix(endpoint, scheme+"://"); ok {
				advertised = append(advertised, address)
			}
		}
	}
	cluster := list.Header.GetClusterId() // 0 from a proxy
	next, before := slices.Clone(m.cfg.Endpoints), m.used
	if m.cluster != cluster {
		before = nil
		if m.cluster = 0; storeurl.Advertised(ctx, advertised, given) {
			m.cluster = cluster
		}
	}
	for _, address := range advertised {
		endpoint := scheme + "://" + address
		if m.cluster != 0 && !slices.Contains(next, endpoint) && (slices.Contains(before, endpoint) || m.answers(ctx, endpoint)) {
			next = append(next, endpoint)
		}
	}
	if !slices.Equal(next, m.used) {
		m.used = next
		m.client.SetEndpoints(next...)
	}
}

// answers reports whether the cluster answers at an endpoint. A server names its cluster also when it
// refuses a watch. So the client sends no credentials to an address before it knows the cluster there.
func (m *members) answers(ctx context.Context, endpoint string) bool {
	ctx, cancel := context.WithTimeout(ctx, addressTimeout)
	defer cancel()
	cfg := m.cfg
	cfg.Endpoints = []string{endpoint}
	client, err := clientv3.New(cfg)
	if err != nil {
		return false
	}
	defer client.Close()
	stream, err := etcdserverpb.NewWatchClient(client.ActiveConnection()).Watch(ctx)
	if err != nil {
		return false
	}
	watch := &etcdserverpb.WatchCreateRequest{Key: []byte{0}}
	_ = stream.Send(&etcdserverpb.WatchRequest{RequestUnion: &etcdserverpb.WatchRequest_CreateRequest{CreateRequest: watch}})
	answer, err := stream.Recv()
	return err == nil && answer.GetHeader().GetClusterId() == m.cluster
}
