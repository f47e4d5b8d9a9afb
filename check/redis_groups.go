//go:build linux || darwin

package check

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/check/servers"
)

// redisReplicasTarget starts a primary and a replica that must acknowledge each grant.
// Clients reach the present primary through two proxies. Each proxy serves every second
// worker. So a fault can cut holders off from a primary that waiters reach.
func redisReplicasTarget(ctx context.Context, dir string) (*Target, error) {
	g, err := servers.StartRedisReplicas(ctx, dir, 1, redisUserSettings()...)
	if err != nil {
		return nil, err
	}
	t := &Target{}
	p := &redisPair{target: t, primary: g.Primary, replica: g.Replicas[0]}
	t.Close = func() error {
		for _, proxy := range p.proxies {
			proxy.Close()
		}
		g.Kill()
		return nil
	}
	all := g.All()
	clocks, err := p.prepare(ctx, all)
	if err == nil {
		err = g.Linked(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, t.Close())
	}
	address := func(worker int) string {
		return "redis://" + redisUser + p.proxies[worker%len(p.proxies)].Address() + "?replicas=1&replica_wait=200ms"
	}
	t.URL, t.ofWorker = address(0), address
	t.Left = redisLeft(all)
	faults := proxyFaults(p.proxies...)
	if clocks {
		faults = append(faults, StoreFault{Kind: "promote-clock-ahead", Loses: true, Often: 2, Begin: p.beginClockAhead, End: p.endClockAhead})
	}
	rejoin := func(ctx context.Context, _ Fault) error { return p.rejoin(ctx) }
	t.Faults = oneAtATime(append(faults,
		// The replica has all grants, so a failover loses none. But a failover may lose
		// a release, because clients do not wait until the replica has it.
		StoreFault{Kind: "failover", Loses: true, Begin: func(ctx context.Context, _ Fault) error { return p.promote(ctx) }, End: rejoin},
		StoreFault{Kind: "kill-replica", Begin: func(context.Context, Fault) error { p.replica.Kill(); return nil }, End: rejoin},
		StoreFault{Kind: "pause-replica", Begin: func(context.Context, Fault) error { return p.replica.Pause() },
			End: func(context.Context, Fault) error { return p.replica.Cont() }},
		StoreFault{Kind: faultPauseServer, Begin: func(context.Context, Fault) error { return p.primary.Pause() },
			End: func(context.Context, Fault) error { return p.primary.Cont() }},
		// The living primary becomes a replica of the promoted one.
		StoreFault{Kind: "demote-primary", Loses: true, Begin: func(ctx context.Context, _ Fault) error { return p.demote(ctx) }},
		flushAll(all), killSubscriptions(all), revokeRights(all), fillMemory(all), evictKeys(all)))
	return t, nil
}

// redisPair is a primary and its replica, which change roles, and the proxies that lead to the
// primary. At most one fault at a time uses it.
type redisPair struct {
	target           *Target
	primary, replica *servers.Redis
	proxies          []*servers.Proxy
	held             *pausedHolder // stopped by beginClockAhead
}

// prepare starts the proxies, and lets the servers start again with a clock that a fault can set.
// It reports whether the machine has what this needs.
func (p *redisPair) prepare(ctx context.Context, all []*servers.Redis) (clocks bool, err error) {
	for range 2 {
		proxy, err := servers.NewProxy(p.primary.Address())
		if err != nil {
			return false, err
		}
		p.proxies = append(p.proxies, proxy)
	}
	clocks = true
	for _, r := range slices.Backward(all) {
		if err := r.FakeClock(ctx); errors.Is(err, servers.ErrNotInstalled) {
			clocks = false
		} else if err != nil {
			return false, err
		}
	}
	return clocks, nil
}

// redirect makes the proxies lead to the present primary.
func (p *redisPair) redirect() (err error) {
	for _, proxy := range p.proxies {
		err = errors.Join(err, proxy.Redirect(p.primary.Address()))
	}
	return err
}

// promote kills the primary and promotes the replica.
func (p *redisPair) promote(ctx context.Context) error {
	p.primary.Kill()
	p.primary, p.replica = p.replica, p.primary
	if _, err := p.primary.Do(ctx, "REPLICAOF", "NO", "ONE"); err != nil {
		return err
	}
	return p.redirect()
}

// rejoin starts the killed server as a replica.
func (p *redisPair) rejoin(ctx context.Context) error {
	if err := p.replica.Restart(ctx); err != nil {
		return err
	}
	return follow(ctx, p.replica, p.primary)
}

// demote promotes the replica while the primary lives, and makes the primary its replica.
func (p *redisPair) demote(ctx context.Context) error {
	if _, err := p.replica.Do(ctx, "REPLICAOF", "NO", "ONE"); err != nil {
		return err
	}
	p.primary, p.replica = p.replica, p.primary
	if err := p.redirect(); err != nil {
		return err
	}
	return follow(context.WithoutCancel(ctx), p.replica, p.primary)
}

// clockLead returns how far a fault sets a server's clock ahead.
func clockLead(f Fault) time.Duration { return 6*time.Second + f.For }

// beginClockAhead promotes a replica whose clock has been ahead for a while. The old primary lives
// and becomes its replica at once, so that it acknowledges grants again. Before the promotion, a
// holder of a long lease is stopped.
func (p *redisPair) beginClockAhead(ctx context.Context, f Fault) (err error) {
	if err := p.replica.SetClock(clockLead(f)); err != nil {
		return err
	}
	// A client that was stopped meanwhile also has time to compare the clocks.
	sleep(ctx, redisNotice+2*Slack)
	if ctx.Err() != nil {
		return ctx.Err() // no promotion before clients have compared the clocks
	}
	if p.held, err = p.target.pauseHolder(ctx, 3*time.Second, nil); err != nil {
		return err
	}
	ctx = context.WithoutCancel(ctx)
	if err := p.demote(ctx); err != nil {
		return errors.Join(err, p.resumeHeld())
	}
	if p.held != nil {
		sleep(ctx, min(time.Duration(p.held.until-machineTime()), 5*time.Second))
	}
	return nil
}

// endClockAhead continues the holder and sets the clocks back.
func (p *redisPair) endClockAhead(ctx context.Context, f Fault) (err error) {
	ctx = context.WithoutCancel(ctx)
	err = p.resumeHeld()
	// For a while, clients still extend leases by the former difference of the
	// clocks. After the clock is set back, such a lease would last for twice that
	// difference.
	sleep(ctx, redisNotice)
	err = errors.Join(err, p.primary.SetClock(0), p.replica.SetClock(0))
	// The tokens are ahead of the clock now. Until the clock has caught up, a
	// server that loses its data may grant smaller ones. No store excludes that.
	sleep(ctx, clockLead(f))
	return err
}

// resumeHeld continues the holder that beginClockAhead stopped, once: inject calls endClockAhead
// also after a failed beginClockAhead.
func (p *redisPair) resumeHeld() (err error) {
	if p.held != nil {
		err = p.held.resume()
		p.held = nil
	}
	return err
}

// follow configures a server as the replica of another, and waits until it is.
func follow(ctx context.Context, replica, primary *servers.Redis) error {
	if _, err := replica.Do(ctx, "REPLICAOF", "127.0.0.1", strconv.Itoa(primary.Port)); err != nil {
		return err
	}
	return (&servers.RedisReplicas{Primary: primary, Replicas: []*servers.Redis{replica}}).Linked(ctx)
}

// redisSentinelTarget starts a primary and two replicas under three sentinels.
func redisSentinelTarget(ctx context.Context, dir string) (*Target, error) {
	s, err := servers.StartRedisSentinel(ctx, dir, 2, redisUserSettings()...)
	if err != nil {
		return nil, err
	}
	var more []string
	for _, r := range s.Sentinels[1:] {
		more = append(more, "addr="+r.Address())
	}
	all := s.All()
	var old *servers.Redis
	// A sentinel that stood still for two seconds does nothing for the next 30 (TILT mode).
	demoted := func(ctx context.Context) error {
		for end := time.Now().Add(2 * time.Minute); isPrimary(ctx, old); time.Sleep(20 * time.Millisecond) {
			if time.Now().After(end) {
				return errors.New("check: the old primary is not demoted")
			}
		}
		return nil
	}
	return &Target{
		URL: "redis+sentinel://" + redisUser + s.Sentinels[0].Address() + "/" + s.Name + "?" + strings.Join(more, "&"),
		Faults: oneAtATime([]StoreFault{
			{Kind: "kill-primary", Early: true, All: true, Loses: true, Begin: func(ctx context.Context, _ Fault) error {
				if old, err = s.Current(ctx); err != nil {
					return err
				}
				old.Kill()
				ctx = context.WithoutCancel(ctx)
				_, err = s.FailedOver(ctx, old)
				return err
			}, End: func(ctx context.Context, _ Fault) error {
				if err := old.Restart(ctx); err != nil {
					return err
				}
				return demoted(ctx)
			}},
			// No failover follows the pause. A failover would prove nothing: after it, the
			// old primary continues, and answers for a moment as before.
			{Kind: "pause-primary", Begin: func(ctx context.Context, _ Fault) error {
				r, err := s.Current(ctx)
				if err != nil {
					return err
				}
				if err := r.Pause(); err != nil {
					return err
				}
				time.Sleep(250 * time.Millisecond)
				return r.Cont()
			}},
			// Clients write to the old primary until it is demoted. These writes are lost.
			{Kind: "demote-primary", Early: true, All: true, Loses: true, Begin: func(ctx context.Context, _ Fault) error {
				if old, err = s.Current(ctx); err != nil {
					return err
				}
				ctx = context.WithoutCancel(ctx)
				if err := s.Failover(ctx); err != nil {
					return err
				}
				if _, err := s.FailedOver(ctx, old); err != nil {
					return err
				}
				return demoted(ctx)
			}},
			flushAll(all), killSubscriptions(all), revokeRights(all), fillMemory(all), evictKeys(all),
		}),
		Left: redisLeft(all),
		Close: func() error {
			s.Kill()
			return nil
		},
	}, nil
}

// redisClusterTarget starts a cluster of three primaries with a replica each.
func redisClusterTarget(ctx context.Context, dir string) (*Target, error) {
	c, err := servers.StartRedisCluster(ctx, dir, true, redisUserSettings()...)
	if err != nil {
		return nil, err
	}
	// replaceKilledOnly keeps the cluster from replacing a slow node, because such a failover would
	// have no declared fault.
	replaceKilledOnly := func(ctx context.Context) error { return c.SetNodeTimeout(ctx, time.Hour) }
	if err := replaceKilledOnly(ctx); err != nil {
		c.Kill()
		return nil, err
	}
	t := &Target{}
	m := &slotMoves{target: t, cluster: c}
	*t = Target{
		URL: "redis+cluster://" + redisUser + c.Nodes[0].Address() + "?addr=" + c.Nodes[1].Address() + "&addr=" + c.Nodes[2].Address(),
		Faults: oneAtATime([]StoreFault{
			{Kind: "move-slot", Begin: func(ctx context.Context, f Fault) error {
				if err := m.find(ctx, keyOf(ctx, c.Nodes, f.Name)); err != nil {
					return err
				}
				return m.begin(ctx)
			}, End: func(ctx context.Context, _ Fault) error { return m.end(ctx) }},
			{Kind: "move-slot-held", Often: 3, Begin: m.beginHeld, End: m.endHeld},
			{Kind: "kill-primary", Early: true, All: true, Loses: true, Begin: func(ctx context.Context, f Fault) error {
				if err := m.find(ctx, keyOf(ctx, c.Nodes, f.Name)); err != nil {
					return err
				}
				m.owner.Kill()
				ctx = context.WithoutCancel(ctx)
				if err := c.SetNodeTimeout(ctx, servers.RedisNodeTimeout); err != nil {
					return err
				}
				for end := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
					_, err := c.Owner(ctx, m.slot)
					if err == nil || time.Now().After(end) {
						return err
					}
				}
			}, End: func(ctx context.Context, _ Fault) error {
				if err := m.owner.Restart(ctx); err != nil {
					return err
				}
				if err := awaitFollows(ctx, m.owner); err != nil {
					return err
				}
				if err := c.Whole(ctx); err != nil {
					return err
				}
				return replaceKilledOnly(ctx)
			}},
			{Kind: "flush", Early: true, All: true, Begin: flushAll(c.Nodes).Begin}, killSubscriptions(c.Nodes),
			revokeRights(c.Nodes), fillMemory(c.Nodes), evictKeys(c.Nodes),
		}),
		Left: redisLeft(c.Nodes),
		Close: func() error {
			c.Kill()
			return nil
		},
	}
	return t, nil
}

// awaitFollows waits until a server is a replica that has all data of its primary. A server of a
// cluster must have all data again before it may become primary.
func awaitFollows(ctx context.Context, r *servers.Redis) error {
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		info, err := r.Info(ctx, "replication")
		if err == nil && info["role"] == "slave" && info["master_link_status"] == "up" {
			return nil
		}
		if time.Now().After(end) {
			return errors.New("check: the old primary does not follow")
		}
	}
}

// slotMoves moves slots of a cluster to other primaries. At most one fault at a time uses it.
type slotMoves struct {
	target  *Target
	cluster *servers.RedisCluster
	slot    int            // the slot of the present fault
	owner   *servers.Redis // the primary of slot when the fault began
	begun   []slotMove
	held    *pausedHolder // stopped by beginHeld
}

// slotMove is a move that has begun and not ended.
type slotMove struct {
	slot     int
	from, to *servers.Redis
}

// find makes the slot of a key the slot of the present fault.
func (m *slotMoves) find(ctx context.Context, key string) (err error) {
	if m.slot, err = m.cluster.Slot(ctx, key); err == nil {
		m.owner, err = m.cluster.Owner(ctx, m.slot)
	}
	return err
}

// begin begins to move the slot of the present fault, unless it is being moved.
func (m *slotMoves) begin(ctx context.Context) error {
	if slices.ContainsFunc(m.begun, func(b slotMove) bool { return b.slot == m.slot }) {
		return nil
	}
	var to *servers.Redis
	for _, r := range m.cluster.Nodes {
		if r != m.owner && isPrimary(ctx, r) {
			to = r
			break
		}
	}
	m.begun = append(m.begun, slotMove{m.slot, m.owner, to})
	return m.cluster.BeginMove(ctx, m.slot, m.owner, to)
}

// end ends all moves.
func (m *slotMoves) end(ctx context.Context) (err error) {
	for _, b := range m.begun {
		err = errors.Join(err, m.cluster.EndMove(ctx, b.slot, b.from, b.to))
	}
	m.begun = nil
	return err
}

// beginHeld stops a holder that has no waiters, and moves the slot of its name. During the move,
// the name gets its first waiters. Most such holders are in sparse rounds, of which a run has few.
// There a name gets two waiters within seconds. Without such a holder, beginHeld moves the slot of
// the fault's name.
func (m *slotMoves) beginHeld(ctx context.Context, f Fault) (err error) {
	search, cancel := context.WithTimeout(ctx, time.Second) // a sparse round has many such holders
	defer cancel()
	m.held, err = m.target.pauseHolder(search, 4*time.Second, func(name string) (bool, error) { return m.beginUnawaited(ctx, name) })
	if err != nil {
		return err
	}
	if m.held == nil {
		if err := m.find(ctx, keyOf(ctx, m.cluster.Nodes, f.Name)); err != nil {
			return err
		}
		return m.begin(ctx)
	}
	sleep(ctx, min(time.Duration(m.held.until-machineTime()), 5*time.Second))
	return nil
}

// beginUnawaited begins to move the slot of a name that has no waiters. It returns false if the
// name has waiters.
func (m *slotMoves) beginUnawaited(ctx context.Context, name string) (bool, error) {
	key := keyOf(ctx, m.cluster.Nodes, name)
	if err := m.find(ctx, key); err != nil || m.fields(ctx, key) != 1 {
		return false, err
	}
	if err := m.begin(ctx); err != nil {
		return false, err
	}
	if m.fields(ctx, key) > 1 { // a waiter came before the move
		return false, m.end(context.WithoutCancel(ctx))
	}
	return true, nil
}

// fields returns the number of fields of a key: one until a waiter comes. While the slot moves, a
// missing key is an error, and fields returns 0.
func (m *slotMoves) fields(ctx context.Context, key string) int64 {
	answer, _ := m.owner.Do(ctx, "HLEN", key)
	n, _ := answer.(int64)
	return n
}

// endHeld ends the moves and continues the holder.
func (m *slotMoves) endHeld(ctx context.Context, _ Fault) error {
	err := m.end(ctx)
	if m.held != nil {
		err = errors.Join(err, m.held.resume())
		m.held = nil
	}
	return err
}

// keyOf returns the key of a name that is held or has waiters now. For any other name it
// returns the name itself, whose slot may be that of other names.
func keyOf(ctx context.Context, nodes []*servers.Redis, name string) string {
	for _, r := range nodes {
		if !isPrimary(ctx, r) {
			continue
		}
		if found, err := r.Do(ctx, "KEYS", "*:"+name); err == nil {
			if keys, _ := found.([]any); len(keys) > 0 {
				if key, ok := keys[0].(string); ok {
					return key
				}
			}
		}
	}
	return name
}
