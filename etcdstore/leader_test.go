package etcdstore

import (
	"context"
	"testing"
	"testing/synctest"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/metadata"
)

// TestRequestIsRepeatedWithoutLeader: a request requires a leader. Only the refusal of a member without one repeats it,
// and not forever.
func TestRequestIsRepeatedWithoutLeader(t *testing.T) {
	for name, c := range map[string]struct {
		errs []error // the last one stays
		want error
	}{
		"an answer":               {[]error{nil}, nil},
		"two refusals":            {[]error{rpctypes.ErrGRPCNoLeader, rpctypes.ErrNoLeader, nil}, nil},
		"another error":           {[]error{rpctypes.ErrGRPCTimeout}, rpctypes.ErrGRPCTimeout},
		"refusals and an error":   {[]error{rpctypes.ErrGRPCNoLeader, rpctypes.ErrGRPCTimeout}, rpctypes.ErrGRPCTimeout},
		"nothing but refusals":    {[]error{rpctypes.ErrNoLeader}, rpctypes.ErrNoLeader},
		"refusals, ends with ctx": {[]error{rpctypes.ErrGRPCNoLeader}, rpctypes.ErrGRPCNoLeader},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				calls := 0
				_, err := withLeader(ctx, func(ctx context.Context) (any, error) {
					md, _ := metadata.FromOutgoingContext(ctx)
					if v := md.Get(rpctypes.MetadataRequireLeaderKey); len(v) != 1 || v[0] != rpctypes.MetadataHasLeader {
						t.Errorf("the request has the metadata %v", md)
					}
					err := c.errs[min(calls, len(c.errs)-1)]
					if calls++; name == "refusals, ends with ctx" {
						cancel()
					}
					return nil, err
				})
				if err != c.want {
					t.Errorf("%v, want %v", err, c.want)
				}
				switch {
				case name == "nothing but refusals":
					if calls < 10 || calls > 30 {
						t.Errorf("%d requests in %s", calls, noLeaderTimeout)
					}
				case calls != len(c.errs):
					t.Errorf("%d requests, want %d", calls, len(c.errs))
				}
			})
		})
	}
}
