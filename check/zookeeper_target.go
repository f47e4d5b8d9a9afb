//go:build linux || darwin

package check

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/check/servers"
)

func init() {
	locals["zookeeper"] = zookeeperTarget
	locals["zookeeper-ensemble"] = ensembleTarget
}

// zookeeperTick is the servers' tickTime. Sessions last four ticks longer than the TTLs of a
// check.
const zookeeperTick = 50 * time.Millisecond

// zookeeperConfig makes servers remove the directories of idle names soon. The nodes of
// such a name are then numbered from 0 again.
var zookeeperConfig = servers.ZooKeeperConfig{Tick: zookeeperTick, Java: []string{"-Dznode.container.checkIntervalMs=500"}}

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
func zookeeperTarget(ctx context.Context, dir string) (*Target, error) {
	z, err := servers.StartZooKeeper(ctx, filepath.Join(dir, "zookeeper"), zookeeperConfig)
	if err != nil {
		return nil, err
	}
	err = z.CreateNode(ctx, "/check", servers.DigestUser(zookeeperUser, zookeeperPassword, rootRights))
	var back StoreFault
	if err == nil {
		back, err = restore(z, filepath.Join(dir, "backup"))
	}
	var p *servers.Proxy
	if err == nil {
		p, err = servers.NewProxy(z.Address())
	}
	if err != nil {
		z.Kill()
		return nil, err
	}
	faults := append(proxyFaults(p), serverFaults([]*servers.Server{z.Server}, nil)...)
	for i := range faults {
		if faults[i].Kind == "kill-server" {
			faults[i].End = func(ctx context.Context, _ Fault) error { return z.Restart(ctx) }
		}
	}
	faults = append(faults, back, revokeRight(z))
	alone := func(context.Context) (*servers.ZooKeeper, error) { return z, nil }
	faults = append(faults, stallDisk(alone)...)
	return &Target{
		URL:    fmt.Sprintf("zk://%s:%s@%s/check?tick=%s&acl=creator", zookeeperUser, zookeeperPassword, p.Address(), zookeeperTick),
		Faults: oneAtATime(faults),
		Left:   ephemerals(alone),
		Close: func() error {
			p.Close()
			z.Kill()
			return nil
		},
	}, nil
}

// atLeast returns the fault f with a duration of at least d.
func atLeast(d time.Duration, f StoreFault) StoreFault {
	var began time.Time
	begin, end := f.Begin, f.End
	f.Begin = func(ctx context.Context, f Fault) error { began = time.Now(); return begin(ctx, f) }
	f.End = func(ctx context.Context, f Fault) error {
		time.Sleep(time.Until(began.Add(d)))
		return end(ctx, f)
	}
	return f
}

// restore returns a fault that restores a server from a backup. The server then lacks the
// sessions, locks and transactions since the backup. The end of the fault makes a new backup.
func restore(z *servers.ZooKeeper, dir string) (StoreFault, error) {
	n := 0
	backup := func() string { return filepath.Join(dir, strconv.Itoa(n)) }
	return StoreFault{
		Kind: "restore-backup", Early: true, All: true, Rewinds: true,
		// The restore must complete even if the round ends, because the server is needed
		// after the round.
		Begin: func(ctx context.Context, _ Fault) error { return z.Restore(context.WithoutCancel(ctx), backup()) },
		End: func(context.Context, Fault) error {
			n++
			return z.Backup(backup())
		},
	}, z.Backup(backup())
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
		Kind: "revoke-right",
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

// stallDisk returns a fault that stops a server's writes for longer than sessions last. It
// returns nothing if this system cannot stall a disk.
func stallDisk(which func(context.Context) (*servers.ZooKeeper, error)) []StoreFault {
	if runtime.GOOS != "linux" {
		return nil
	}
	var stalled *servers.ZooKeeper
	return []StoreFault{atLeast(beyondSession, StoreFault{
		Kind: "stall-disk",
		Begin: func(ctx context.Context, _ Fault) (err error) {
			if stalled, err = which(ctx); err != nil {
				return err
			}
			return stalled.StallDisk()
		},
		End: func(context.Context, Fault) error { stalled.ResumeDisk(); return nil },
	})}
}

// ensembleTarget starts three servers. The URL for clients has the addresses of all three.
func ensembleTarget(ctx context.Context, dir string) (*Target, error) {
	e, err := servers.StartEnsemble(ctx, filepath.Join(dir, "zookeeper"), zookeeperConfig)
	if err != nil {
		return nil, err
	}
	var hit []*servers.ZooKeeper // by the present fault
	// undo returns a fault's End. It calls repair for the servers that the fault has hit, and waits
	// for a leader.
	undo := func(repair func(context.Context, *servers.ZooKeeper) error) func(context.Context, Fault) error {
		return func(ctx context.Context, _ Fault) error {
			var errs []error
			for _, m := range hit {
				errs = append(errs, repair(ctx, m))
			}
			_, err := e.Leader(ctx)
			return errors.Join(append(errs, err)...)
		}
	}
	restart := undo(func(ctx context.Context, m *servers.ZooKeeper) error { return m.Restart(ctx) })
	resume := undo(func(_ context.Context, m *servers.ZooKeeper) error { return m.Cont() })
	heal := undo(func(_ context.Context, m *servers.ZooKeeper) error { return e.Heal(m) })
	kill := func(m *servers.ZooKeeper) error { m.Kill(); return nil }
	leader := func(do func(*servers.ZooKeeper) error) func(context.Context, Fault) error {
		return func(ctx context.Context, _ Fault) error {
			m, err := e.Leader(ctx)
			if err != nil {
				return err
			}
			hit = []*servers.ZooKeeper{m}
			return do(m)
		}
	}
	followers := func(n int, do func(*servers.ZooKeeper) error) func(context.Context, Fault) error {
		return func(ctx context.Context, _ Fault) error {
			l, err := e.Leader(ctx)
			if err != nil {
				return err
			}
			hit = nil
			for _, m := range e.Members {
				if m != l && len(hit) < n {
					hit = append(hit, m)
					err = errors.Join(err, do(m))
				}
			}
			return err
		}
	}
	return &Target{
		URL: fmt.Sprintf("zk://%s/check?tick=%s", e.Addresses(), zookeeperTick),
		Faults: oneAtATime(append(stallDisk(e.Leader), []StoreFault{
			{Kind: "kill-leader", Begin: leader(kill), End: restart},
			atLeast(beyondSession, StoreFault{Kind: "pause-leader", Begin: leader((*servers.ZooKeeper).Pause), End: resume}),
			{Kind: "pause-follower", Begin: followers(1, (*servers.ZooKeeper).Pause), End: resume},
			{Kind: "lose-quorum", Begin: followers(2, kill), End: restart},
			{Kind: "cut-follower-off", Begin: followers(1, e.Silence), End: heal},
		}...)),
		Left:  ephemerals(e.Leader),
		Close: func() error { e.Close(); return nil },
	}, nil
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
