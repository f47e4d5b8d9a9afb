//go:build linux || darwin

package check

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/check/servers"
)

func init() {
	locals["zookeeper"] = zookeeperTarget
	locals["zookeeper-ensemble"] = ensembleTarget
}

// zookeeperTick is the servers' tickTime: sessions are four of it longer than the
// TTLs of a check.
const zookeeperTick = 50 * time.Millisecond

// zookeeperTarget is one server that keeps its data, behind a proxy.
func zookeeperTarget(ctx context.Context, dir string) (*Target, error) {
	z, err := servers.StartZooKeeper(ctx, filepath.Join(dir, "zookeeper"), servers.ZooKeeperConfig{Tick: zookeeperTick})
	if err != nil {
		return nil, err
	}
	p, err := servers.NewProxy(z.Address())
	if err != nil {
		z.Kill()
		return nil, err
	}
	return &Target{
		URL:    fmt.Sprintf("zk://%s/check?tick=%s", p.Address(), zookeeperTick),
		Faults: oneAtATime(append(proxyFaults(p), serverFaults([]*servers.Server{z.Server}, nil)...)),
		Left:   func(ctx context.Context) ([]string, error) { return ephemerals(ctx, z) },
		Close: func() error {
			p.Close()
			z.Kill()
			return nil
		},
	}, nil
}

// ensembleTarget is three servers. Clients know all of them.
func ensembleTarget(ctx context.Context, dir string) (*Target, error) {
	e, err := servers.StartEnsemble(ctx, filepath.Join(dir, "zookeeper"), servers.ZooKeeperConfig{Tick: zookeeperTick})
	if err != nil {
		return nil, err
	}
	var hit []*servers.ZooKeeper
	// again brings back what was hit, and waits for a leader.
	again := func(back func(context.Context, *servers.ZooKeeper) error) func(context.Context, Fault) error {
		return func(ctx context.Context, _ Fault) error {
			var errs []error
			for _, m := range hit {
				errs = append(errs, back(ctx, m))
			}
			_, err := e.Leader(ctx)
			return errors.Join(append(errs, err)...)
		}
	}
	restart := again(func(ctx context.Context, m *servers.ZooKeeper) error { return m.Restart(ctx) })
	resume := again(func(_ context.Context, m *servers.ZooKeeper) error { return m.Cont() })
	heal := again(func(_ context.Context, m *servers.ZooKeeper) error { return e.Heal(m) })
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
		Faults: oneAtATime([]StoreFault{
			{Kind: "kill-leader", Begin: leader(kill), End: restart},
			{Kind: "pause-leader", Begin: leader((*servers.ZooKeeper).Pause), End: resume},
			{Kind: "pause-follower", Begin: followers(1, (*servers.ZooKeeper).Pause), End: resume},
			{Kind: "lose-quorum", Begin: followers(2, kill), End: restart},
			{Kind: "cut-follower-off", Begin: followers(1, e.Silence), End: heal},
		}),
		Left: func(ctx context.Context) ([]string, error) {
			l, err := e.Leader(ctx)
			if err != nil {
				return nil, err
			}
			return ephemerals(ctx, l)
		},
		Close: func() error { e.Close(); return nil },
	}, nil
}

// ephemerals lists what sessions have left, once those that were killed have had
// the time to expire.
func ephemerals(ctx context.Context, z *servers.ZooKeeper) ([]string, error) {
	var left []string
	for range 300 {
		said, err := z.Command(ctx, "dump")
		if err != nil {
			return nil, err
		}
		left = left[:0]
		_, nodes, _ := strings.Cut(said, "Sessions with Ephemerals")
		for line := range strings.Lines(nodes) {
			// The run's own client has a session, and its guard.
			if line = strings.TrimSpace(line); strings.HasPrefix(line, "/") && !strings.HasPrefix(line, "/check/@/") {
				left = append(left, line)
			}
		}
		if len(left) == 0 {
			return nil, nil
		}
		time.Sleep(20 * time.Millisecond)
	}
	return left, nil
}
