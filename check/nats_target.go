//go:build linux || darwin

package check

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/holdfast-go/holdfast/internal/servers"
)

func init() {
	locals["nats"] = natsTarget(1)
	locals["nats-cluster"] = natsTarget(3)
}

// natsTarget starts servers of NATS, and a bucket with a replica on each. The workers' binary must import natsstore.
func natsTarget(members int) starter {
	return func(ctx context.Context, dir string, t *Target) error {
		cluster, err := servers.StartNATS(ctx, servers.NATSConfig{Members: members, Dir: filepath.Join(dir, "nats")})
		if err != nil {
			return err
		}
		var clients []string
		for _, n := range cluster {
			t.onClose(n.End)
			clients = append(clients, n.Client)
		}
		proxies, hosts, err := t.proxies(clients...)
		if err != nil {
			return err
		}
		if err := cluster[0].CreateBucket(ctx, "locks", members); err != nil {
			return err
		}
		faults := []StoreFault{
			refuseNew(proxies), pauseFault(faultPauseServer, oneOf(cluster)), killFault(faultKillServer, oneOf(cluster)),
		}
		if members == 1 {
			faults = append(faults, pauseFault(faultStall, oneOf(cluster)))
		} else {
			leader := func(ctx context.Context, _ Fault) ([]*servers.NATS, error) {
				for _, n := range cluster {
					if leads, err := n.Leads(ctx, "KV_locks"); leads && err == nil {
						return []*servers.NATS{n}, nil
					}
				}
				return nil, nil // there is no leader now
			}
			faults = append(faults, killFault(faultKillLeader, leader), pauseFault(faultPauseLeader, leader), rollingRestart(cluster))
		}
		t.URL = fmt.Sprintf("nats://%s?bucket=locks&replicas=%d&skew=10ms", strings.Join(hosts, ","), members)
		t.Faults = OneAtATime(slices.Concat(proxyFaults(proxies...), faults))
		return nil
	}
}
