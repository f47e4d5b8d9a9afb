//go:build linux || darwin

package check

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/internal/servers"
)

// zookeeperTick is the servers' tickTime. Sessions last four ticks longer than the TTLs of a
// check.
const zookeeperTick = 50 * time.Millisecond

// zookeeperConfig makes servers remove the directories of idle names soon. The nodes of
// such a name are then numbered from 0 again.
func zookeeperConfig(disks bool) servers.ZooKeeperConfig {
	return servers.ZooKeeperConfig{Tick: zookeeperTick, Java: []string{"-Dznode.container.checkIntervalMs=500"}, Disks: disks}
}

// beyondSession is longer than the sessions of a check with the default TTL. Pauses of
// leaders and stalls of disks last that long.
const beyondSession = DefaultTTL + 8*zookeeperTick

// The user of a check has the rights that docs/zookeeper.md lists for the root. It has every
// right on the nodes that it creates.
const (
	zookeeperUser     = "check"
	zookeeperPassword = "rights"
	rootRights        = servers.RightCreate | servers.RightRead
)

// zookeeperTarget starts one server behind a proxy. The server keeps its data across restarts.
// Clients log in as a user with exactly the documented rights.
func zookeeperTarget(ctx context.Context, dir string, t *Target) error {
	z, err := onDisks(func(disks bool) (*servers.ZooKeeper, error) {
		return servers.StartZooKeeper(ctx, filepath.Join(dir, "zookeeper"), zookeeperConfig(disks))
	})
	if err != nil {
		return err
	}
	t.onClose(z.End)
	if err := z.CreateNode(ctx, "/check", servers.DigestUser(zookeeperUser, zookeeperPassword, rootRights)); err != nil {
		return err
	}
	back, err := restoreFault(filepath.Join(dir, "backup"), z.Restore, z.Backup)
	if err != nil {
		return err
	}
	p, err := t.proxy(z.Address())
	if err != nil {
		return err
	}
	server := present(&z)
	t.URL = fmt.Sprintf("zk://%s:%s@%s/check?tick=%s&acl=creator", zookeeperUser, zookeeperPassword, p.Address(), zookeeperTick)
	t.Faults = OneAtATime(slices.Concat(proxyFaults(p), []StoreFault{
		refuseNew([]*servers.Proxy{p}), pauseFault(faultPauseServer, server), killFault(faultKillServer, server),
		back, revokeRight(z), pauseFault(faultStall, server),
	}, longStall(z, server)))
	t.Left = ephemerals(func(context.Context) (*servers.ZooKeeper, error) { return z, nil })
	return nil
}

// revokeRight returns a fault that takes away one of the user's rights on a node. The node is the root, the
// parent of the sessions' guards, or the node of a name.
func revokeRight(z *servers.ZooKeeper) StoreFault {
	rights := []int32{servers.RightCreate, servers.RightDelete, servers.RightRead, servers.RightWrite}
	setRights := func(ctx context.Context, path string, rights int32) error {
		return z.SetACL(ctx, path, servers.DigestUser(zookeeperUser, zookeeperPassword, rights))
	}
	node := func(f Fault) (path string, all int32) {
		switch f.N / len(rights) % 4 {
		case 0:
			return "/check", rootRights
		case 1:
			return "/check/@", servers.RightAll
		}
		return "/check/" + f.Name, servers.RightAll
	}
	return StoreFault{
		Kind: faultRevoke,
		Begin: func(ctx context.Context, f Fault) error {
			path, all := node(f)
			return setRights(ctx, path, all&^rights[f.N%len(rights)])
		},
		End: func(ctx context.Context, f Fault) error {
			path, all := node(f)
			return setRights(ctx, path, all)
		},
	}
}

// longStall returns a fault that stops a server's writes for longer than sessions last. It returns
// nothing if the servers, of which z is one, have no disk that can be stalled.
func longStall(z *servers.ZooKeeper, which choice[*servers.ZooKeeper]) []StoreFault {
	if z.Disk() == nil {
		return nil
	}
	return []StoreFault{atLeast(beyondSession, stallFault(which))}
}

// ensembleTarget starts three servers. The URL for clients has the addresses of all three.
func ensembleTarget(ctx context.Context, dir string, t *Target) error {
	e, err := onDisks(func(disks bool) (*servers.Ensemble, error) {
		return servers.StartEnsemble(ctx, filepath.Join(dir, "zookeeper"), zookeeperConfig(disks))
	})
	if err != nil {
		return err
	}
	t.onClose(e.Close)
	leader := func(ctx context.Context, _ Fault) ([]*servers.ZooKeeper, error) {
		z, err := e.Leader(ctx)
		return []*servers.ZooKeeper{z}, err
	}
	followers := func(n int) choice[*servers.ZooKeeper] {
		return func(ctx context.Context, _ Fault) ([]*servers.ZooKeeper, error) {
			l, err := e.Leader(ctx)
			others := slices.DeleteFunc(slices.Clone(e.Members), func(z *servers.ZooKeeper) bool { return z == l })
			return others[:n], err
		}
	}
	faults := []StoreFault{
		killFault(faultKillLeader, leader), atLeast(beyondSession, pauseFault(faultPauseLeader, leader)),
		pauseFault("pause-follower", followers(1)), killFault("lose-quorum", followers(2)),
		affect("cut-follower-off", followers(1), simply(e.Silence), simply(e.Heal)),
	}
	for i, end := range faults { // each ends when there is a leader
		faults[i].End = func(ctx context.Context, f Fault) error {
			err := end.End(ctx, f)
			_, noLeader := e.Leader(ctx)
			return errors.Join(err, noLeader)
		}
	}
	t.URL = fmt.Sprintf("zk://%s/check?tick=%s", e.Addresses(), zookeeperTick)
	t.Faults = OneAtATime(slices.Concat(longStall(e.Members[0], leader), faults, []StoreFault{rollingRestart(e.Members)}))
	t.Left = ephemerals(e.Leader)
	return nil
}

// ephemerals returns the function Left of a Target. It lists the nodes of sessions that remain.
// It waits until the sessions of killed workers have expired.
func ephemerals(which func(context.Context) (*servers.ZooKeeper, error)) func(context.Context) ([]string, error) {
	return leftSoon(6*time.Second, func(ctx context.Context) (left []string, err error) {
		z, err := which(ctx)
		if err != nil {
			return nil, err
		}
		dump, err := z.Command(ctx, "dump")
		_, nodes, _ := strings.Cut(dump, "Sessions with Ephemerals")
		for line := range strings.Lines(nodes) {
			// The guard below /check/@ belongs to the session of the run's own client.
			if line = strings.TrimSpace(line); strings.HasPrefix(line, "/") && !strings.HasPrefix(line, "/check/@/") {
				left = append(left, line)
			}
		}
		return left, err
	})
}
