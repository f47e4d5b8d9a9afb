//go:build linux || darwin

package check

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/internal/servers"
)

// etcdTarget starts etcd. The workers' binary must import etcdstore.
func etcdTarget(members int, heartbeat time.Duration) starter {
	return func(ctx context.Context, dir string, t *Target) error {
		cluster, err := onDisks(func(disks bool) ([]*servers.Etcd, error) {
			return servers.StartEtcd(ctx, servers.EtcdConfig{
				Members: members, Heartbeat: heartbeat, Disks: disks, NoSync: true, Dir: filepath.Join(dir, "etcd"),
			})
		})
		if err != nil {
			return err
		}
		for _, m := range cluster {
			t.onClose(m.End)
		}
		proxies, hosts, err := t.proxies(servers.EtcdEndpoints(cluster)...)
		if err != nil {
			return err
		}
		gate, user := &etcdGate{m: cluster[0]}, ""
		var faults []StoreFault
		if members > 1 {
			faults = etcdClusterFaults(cluster)
		} else {
			if faults, err = etcdAloneFaults(ctx, gate, filepath.Join(dir, "backups")); err != nil {
				return err
			}
			user = etcdUser + ":" + etcdPassword + "@"
		}
		t.URL = "etcd://" + user + strings.Join(hosts, ",") + "/" + etcdPrefix
		t.Faults = OneAtATime(slices.Concat(proxyFaults(proxies...), []StoreFault{refuseNew(proxies)}, faults))
		t.Left = etcdKeys(gate)
		return nil
	}
}

// etcdAloneFaults returns the faults of a single member, which gets users. Its backups have them, too.
func etcdAloneFaults(ctx context.Context, g *etcdGate, backups string) ([]StoreFault, error) {
	if err := g.addUsers(ctx); err != nil {
		return nil, err
	}
	// It raises the revision above the old one, as an administrator should (etcdutl snapshot restore --bump-revision).
	restore := func(ctx context.Context, from string) error {
		ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
		defer cancel()
		before, err := etcdRevision(ctx, g)
		if err != nil {
			return err
		}
		if err := g.m.Restore(ctx, from); err != nil {
			return err
		}
		return raiseRevision(ctx, g, before+100)
	}
	member := present(&g.m)
	back, err := restoreFault(backups, restore, g.m.Backup)
	return []StoreFault{
		pauseFault(faultPauseServer, member), killFault(faultKillServer, member), back,
		{Kind: faultRevoke, Begin: func(ctx context.Context, f Fault) error {
			return g.permit(context.WithoutCancel(ctx), []string{"WRITE", "READ"}[f.N%2])
		}, End: func(ctx context.Context, _ Fault) error { return g.permit(ctx, "READWRITE") }},
		pauseFault(faultStall, member),
	}, err
}

// etcdClusterFaults returns the faults of a cluster. Two of them stop the leader's process, or only its disk, for
// longer than the TTL. When the leader continues, it may revoke leases that clients have renewed at its
// successor. The store declares that. A paused member may be the leader, too.
func etcdClusterFaults(cluster []*servers.Etcd) []StoreFault {
	leader := func(ctx context.Context, _ Fault) ([]*servers.Etcd, error) {
		if m := etcdLeader(ctx, cluster); m != nil {
			return []*servers.Etcd{m}, nil
		}
		return nil, nil // there is no leader now
	}
	faults := []StoreFault{
		early(pauseFault(faultPauseServer, oneOf(cluster))), killFault(faultKillServer, oneOf(cluster)), killFault(faultKillLeader, leader),
		early(pauseFault(faultPauseLeader, leader)),
	}
	if cluster[0].Disk() != nil {
		faults = append(faults, early(stallFault(leader)))
	}
	return append(faults, rollingRestart(cluster), StoreFault{Kind: "move-leader", Begin: func(ctx context.Context, f Fault) error {
		_ = moveLeader(ctx, cluster, f) // another fault may affect the members
		return nil
	}})
}

// moveLeader makes another member the leader, as before maintenance.
func moveLeader(ctx context.Context, cluster []*servers.Etcd, f Fault) error {
	leader := etcdLeader(ctx, cluster)
	next := cluster[f.N%len(cluster)]
	if leader == nil || next == leader {
		return nil
	}
	member, _, err := etcdStatus(ctx, next)
	if err != nil {
		return err
	}
	return (&etcdGate{m: leader}).do(ctx, "maintenance/transfer-leadership", fmt.Sprintf(`{"targetID":%q}`, member))
}

func etcdRevision(ctx context.Context, g *etcdGate) (int64, error) {
	var answer struct {
		Header struct {
			Revision int64 `json:",string"`
		}
	}
	err := g.request(ctx, "kv/range", `{"key":"AA=="}`, &answer)
	return answer.Header.Revision, err
}

// raiseRevision writes keys until the revision is reached. Like values, they stay: see etcdKeys.
func raiseRevision(ctx context.Context, g *etcdGate, to int64) error {
	const puts = 16
	g.client = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: puts}}
	defer func() {
		g.client.CloseIdleConnections()
		g.client = nil
	}()
	for {
		at, err := etcdRevision(ctx, g)
		if err != nil || at >= to {
			return err
		}
		errs := make([]error, puts)
		var writing sync.WaitGroup
		for i := range puts {
			writing.Go(func() {
				key := base64.StdEncoding.EncodeToString([]byte("raise/value/" + strconv.Itoa(i)))
				for n := (to-at)/puts + 1; n > 0 && errs[i] == nil; n-- {
					errs[i] = g.do(ctx, "kv/put", `{"key":"`+key+`"}`)
				}
			})
		}
		writing.Wait()
		if err := errors.Join(errs...); err != nil {
			return err
		}
	}
}

// etcdLeader returns the leader, nil if there is none.
func etcdLeader(ctx context.Context, members []*servers.Etcd) *servers.Etcd {
	for _, m := range members {
		if m.PID() == 0 {
			continue
		}
		if member, leader, err := etcdStatus(ctx, m); err == nil && leader != "" && leader == member {
			return m
		}
	}
	return nil
}

// etcdStatus returns the ID of a member, and of the leader that it knows.
func etcdStatus(ctx context.Context, m *servers.Etcd) (member, leader string, err error) {
	var status struct {
		Header struct {
			Member string `json:"member_id"`
		}
		Leader string
	}
	err = (&etcdGate{m: m}).request(ctx, "maintenance/status", "{}", &status)
	return status.Header.Member, status.Leader, err
}

// etcdKeys returns a Target's Left that lists the remaining keys of locks. It waits,
// because the keys of a killed process stand until its leases expire. Values stay.
func etcdKeys(g *etcdGate) func(context.Context) ([]string, error) {
	return leftSoon(20*time.Second, func(ctx context.Context) (left []string, err error) {
		var found struct{ Kvs []struct{ Key []byte } }
		err = g.request(ctx, "kv/range", `{"key":"AA==","range_end":"AA==","keys_only":true}`, &found)
		for _, kv := range found.Kvs {
			if key := string(kv.Key); !strings.Contains(key, "/value/") {
				left = append(left, key)
			}
		}
		return left, err
	})
}
