//go:build linux || darwin

package check

import (
	"context"
	"errors"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/holdfast-go/holdfast/internal/servers"
)

// redisReplicasTarget starts a primary and a replica that must acknowledge each grant.
// Clients reach the present primary through two proxies. Each proxy serves every second
// worker. So a fault can cut holders off from a primary that waiters reach.
func redisReplicasTarget(ctx context.Context, dir string, t *Target) error {
	g, err := servers.StartRedisReplicas(ctx, dir, 1, redisUserSettings()...)
	if err != nil {
		return err
	}
	t.onClose(g.Kill)
	p := &redisPair{target: t, primary: g.Primary, replica: g.Replicas[0]}
	proxies, hosts, err := t.proxies(p.primary.Address(), p.primary.Address())
	if err != nil {
		return err
	}
	p.proxies = proxies
	clocks, err := fakeClocks(ctx, p.replica, p.primary)
	if err == nil {
		err = g.Linked(ctx)
	}
	if err != nil {
		return err
	}
	t.ofWorker = func(worker int) string {
		return "redis://" + redisUser + hosts[worker%len(hosts)] + "?replicas=1"
	}
	t.URL = t.ofWorker(0)
	faults := proxyFaults(p.proxies...)
	if clocks {
		faults = append(faults, StoreFault{
			Kind: "promote-clock-ahead", Loses: true, Often: 2, Begin: p.beginClockAhead, End: p.endClockAhead,
		})
	}
	t.Faults = OneAtATime(slices.Concat(faults, []StoreFault{
		// The replica has all grants, so a failover loses none. But a failover may lose
		// a release, because clients do not wait until the replica has it.
		{Kind: "failover", Loses: true, Begin: p.failOver,
			End: func(ctx context.Context, f Fault) error { return p.rejoin(ctx, p.replica, f) }},
		affect("kill-replica", present(&p.replica), kill, p.rejoin),
		pauseFault("pause-replica", present(&p.replica)),
		pauseFault(faultPauseServer, present(&p.primary)),
		redisStall(present(&p.primary)),
		// The clients' address leads to the promoted replica, as that of a service or a virtual IP.
		// Their connections to the old primary live on, and it becomes a replica.
		{Kind: "move-address", Loses: true, Often: 2, Begin: p.moveAddress},
		// The living primary becomes a replica of the promoted one.
		{Kind: "demote-primary", Loses: true, Begin: p.demote},
	}, redisDataFaults(g.All())))
	t.Left = redisLeft(g.All())
	return nil
}

// redisPair is a primary and its replica, which change roles, and the proxies that lead to the
// primary. At most one fault at a time uses it.
type redisPair struct {
	target           *Target
	primary, replica *servers.Redis
	proxies          []*servers.Proxy
	held             *pausedHolder // stopped by beginClockAhead
}

// promote promotes the replica. lead leads the clients of a proxy to it.
func (p *redisPair) promote(ctx context.Context, lead func(p *servers.Proxy, address string) error) error {
	_, err := p.replica.Do(ctx, "REPLICAOF", "NO", "ONE")
	if err != nil {
		return err
	}
	p.primary, p.replica = p.replica, p.primary
	for _, proxy := range p.proxies {
		err = errors.Join(err, lead(proxy, p.primary.Address()))
	}
	return err
}

// failOver kills the primary and promotes the replica. The promotion must complete, because rejoin makes the
// killed server a replica of the other one.
func (p *redisPair) failOver(ctx context.Context, _ Fault) error {
	p.primary.Kill()
	return p.promote(context.WithoutCancel(ctx), (*servers.Proxy).Redirect)
}

// rejoin starts a killed server as the replica.
func (p *redisPair) rejoin(ctx context.Context, r *servers.Redis, _ Fault) error {
	if err := r.Restart(ctx); err != nil {
		return err
	}
	return follow(ctx, r, p.primary)
}

// demote promotes the replica while the primary lives, and makes the primary its replica. moveAddress does so
// without an end of the clients' connections.
func (p *redisPair) demote(ctx context.Context, _ Fault) error {
	return p.exchange(ctx, (*servers.Proxy).Redirect)
}

func (p *redisPair) moveAddress(ctx context.Context, _ Fault) error {
	return p.exchange(ctx, func(p *servers.Proxy, address string) error { p.Lead(address); return nil })
}

func (p *redisPair) exchange(ctx context.Context, lead func(p *servers.Proxy, address string) error) error {
	if err := p.promote(ctx, lead); err != nil {
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
	if err := p.demote(ctx, f); err != nil {
		return errors.Join(err, p.held.resume())
	}
	p.held.outlast(ctx)
	return nil
}

// endClockAhead continues the holder and sets the clocks back.
func (p *redisPair) endClockAhead(ctx context.Context, f Fault) (err error) {
	ctx = context.WithoutCancel(ctx)
	err = p.held.resume()
	// For a while, clients still extend leases by the former difference of the
	// clocks. After the clock is set back, such a lease would last for twice that
	// difference.
	sleep(ctx, redisNotice)
	err = errors.Join(err, setClock(ctx, p.primary, 0), p.replica.SetClock(0))
	// The tokens are ahead of the clock now. Until the clock has caught up, a
	// server that loses its data may grant smaller ones. No store excludes that.
	sleep(ctx, clockLead(f))
	return err
}

// setClock sets a server's clock ahead of the machine's, between two scripts. A script of a server before
// Redis 7.2 counts a TTL from the new time, and finds a key expired by the time of its own beginning.
// So it would lose other fields of the key, and the key's TTL.
func setClock(ctx context.Context, r *servers.Redis, ahead time.Duration) error {
	if _, err := r.Do(ctx, "CLIENT", "PAUSE", "10000", "WRITE"); err != nil {
		return err
	}
	err := r.SetClock(ahead)
	_, unpaused := r.Do(ctx, "CLIENT", "UNPAUSE")
	return errors.Join(err, unpaused)
}

// follow configures a server as the replica of another, and waits until it is.
func follow(ctx context.Context, replica, primary *servers.Redis) error {
	if _, err := replica.Do(ctx, "REPLICAOF", "127.0.0.1", strconv.Itoa(primary.Port)); err != nil {
		return err
	}
	return (&servers.RedisReplicas{Primary: primary, Replicas: []*servers.Redis{replica}}).Linked(ctx)
}

// redisSentinelTarget starts a primary and two replicas under three sentinels.
func redisSentinelTarget(ctx context.Context, dir string, t *Target) error {
	group, err := servers.StartRedisSentinel(ctx, dir, 2, redisUserSettings()...)
	if err != nil {
		return err
	}
	t.onClose(group.Kill)
	s := &redisSentinel{RedisSentinel: group}
	t.URL = "redis+sentinel://" + redisUser + s.Sentinels[0].Address() + "/" + s.Name + addresses(s.Sentinels[1:])
	t.Faults = OneAtATime(append([]StoreFault{
		{Kind: "kill-primary", Early: true, All: true, Loses: true, Begin: s.killPrimary, End: s.restartKilled},
		{Kind: "pause-primary", Begin: s.pausePrimary},
		// Clients write to the old primary until it is demoted. These writes are lost.
		{Kind: "demote-primary", Early: true, All: true, Loses: true, Begin: s.demote},
		{Kind: faultRolling, Early: true, All: true, Loses: true, Begin: s.roll},
	}, redisDataFaults(s.All())...))
	t.Left = redisLeft(s.All())
	return nil
}

// addresses returns the query of a URL with further addresses.
func addresses(more []*servers.Redis) string {
	q := url.Values{}
	for _, r := range more {
		q.Add("addr", r.Address())
	}
	return "?" + q.Encode()
}

// redisSentinel is a group under sentinels. At most one fault at a time uses it.
type redisSentinel struct {
	*servers.RedisSentinel
	old *servers.Redis // the primary when the present fault began
}

// killPrimary kills the primary, and waits until the sentinels have replaced it.
func (s *redisSentinel) killPrimary(ctx context.Context, _ Fault) (err error) {
	if s.old, err = s.Current(ctx); err != nil {
		return err
	}
	s.old.Kill()
	_, err = s.FailedOver(context.WithoutCancel(ctx), s.old)
	return err
}

func (s *redisSentinel) restartKilled(ctx context.Context, _ Fault) error {
	if err := s.old.Restart(ctx); err != nil {
		return err
	}
	return s.demoted(ctx)
}

// pausePrimary stops the primary for a moment. No failover follows. A failover would prove nothing: after it, the
// old primary continues, and answers for a moment as before.
func (s *redisSentinel) pausePrimary(ctx context.Context, _ Fault) error {
	r, err := s.Current(ctx)
	if err != nil {
		return err
	}
	if err := r.Pause(); err != nil {
		return err
	}
	time.Sleep(250 * time.Millisecond)
	return r.Cont()
}

func (s *redisSentinel) demote(ctx context.Context, _ Fault) (err error) {
	if s.old, err = s.Current(ctx); err != nil {
		return err
	}
	return s.replace(context.WithoutCancel(ctx))
}

// replace makes the sentinels replace the living primary, and waits until it is a replica.
func (s *redisSentinel) replace(ctx context.Context) error {
	if err := s.Failover(ctx); err != nil {
		return err
	}
	if _, err := s.FailedOver(ctx, s.old); err != nil {
		return err
	}
	return s.demoted(ctx)
}

// demoted waits until the old primary is a replica. A sentinel that stood still for two seconds does nothing for
// the next 30 (TILT mode).
func (s *redisSentinel) demoted(ctx context.Context) error {
	return servers.Within(ctx, 2*time.Minute, func() error {
		if isPrimary(ctx, s.old) {
			return errors.New("check: the old primary is not demoted")
		}
		return nil
	})
}

// roll restarts the replicas, and the old primary after a failover. The last writes of the old primary are lost.
func (s *redisSentinel) roll(ctx context.Context, _ Fault) (err error) {
	if s.old, err = s.Current(ctx); err != nil {
		return err
	}
	ctx = context.WithoutCancel(ctx)
	for _, r := range s.All() {
		if r == s.old {
			continue
		}
		if err := restartReplica(ctx, r); err != nil {
			return err
		}
	}
	if err := s.replace(ctx); err != nil {
		return err
	}
	return restartReplica(ctx, s.old)
}

// redisClusterTarget starts a cluster of three primaries with a replica each.
func redisClusterTarget(ctx context.Context, dir string, t *Target) error {
	group, err := servers.StartRedisCluster(ctx, dir, true, redisUserSettings()...)
	if err != nil {
		return err
	}
	t.onClose(group.Kill)
	c := &redisCluster{RedisCluster: group, target: t}
	if err := c.replaceKilledOnly(ctx); err != nil {
		return err
	}
	t.URL = "redis+cluster://" + redisUser + c.Nodes[0].Address() + addresses(c.Nodes[1:3])
	t.Faults = OneAtATime(append([]StoreFault{
		{Kind: "move-slot", Begin: c.beginMove, End: c.endMoves},
		{Kind: "move-slot-held", Often: 3, Begin: c.beginHeld, End: c.endHeld},
		{Kind: "kill-primary", Early: true, All: true, Loses: true, Begin: c.killPrimary, End: c.restartKilled},
		{Kind: faultRolling, Begin: c.roll},
	}, redisDataFaults(c.Nodes)...))
	t.Left = redisLeft(c.Nodes)
	return nil
}

// restartReplica restarts a replica, and waits until it follows again.
func restartReplica(ctx context.Context, r *servers.Redis) error {
	if err := awaitFollows(ctx, r); err != nil {
		return err
	}
	if err := r.Restart(ctx); err != nil {
		return err
	}
	return awaitFollows(ctx, r)
}

// awaitFollows waits until a server is a replica that has all data of its primary. A server of a
// cluster must have all data again before it may become primary.
func awaitFollows(ctx context.Context, r *servers.Redis) error {
	return servers.Until(ctx, func() error { return r.Follows(ctx) })
}

// redisCluster is a cluster with the present fault. At most one fault at a time uses it.
type redisCluster struct {
	*servers.RedisCluster
	target *Target
	slot   int            // the slot of the present fault
	owner  *servers.Redis // the primary of slot when the fault began
	begun  []slotMove
	held   *pausedHolder // stopped by beginHeld
}

// replaceKilledOnly keeps the cluster from replacing a slow node, because such a failover would
// have no declared fault.
func (c *redisCluster) replaceKilledOnly(ctx context.Context) error {
	return c.SetNodeTimeout(ctx, time.Hour)
}

// killPrimary kills the primary of a name, and waits until the cluster has replaced it.
func (c *redisCluster) killPrimary(ctx context.Context, f Fault) error {
	if _, err := c.find(ctx, f.Name); err != nil {
		return err
	}
	c.owner.Kill()
	ctx = context.WithoutCancel(ctx)
	if err := c.SetNodeTimeout(ctx, servers.RedisNodeTimeout); err != nil {
		return err
	}
	return servers.Until(ctx, func() error { _, err := c.Owner(ctx, c.slot); return err })
}

func (c *redisCluster) restartKilled(ctx context.Context, _ Fault) error {
	if err := c.owner.Restart(ctx); err != nil {
		return err
	}
	if err := awaitFollows(ctx, c.owner); err != nil {
		return err
	}
	if err := c.Whole(ctx); err != nil {
		return err
	}
	return c.replaceKilledOnly(ctx)
}

// roll restarts every node. A primary hands its slots to its replica before: it stops
// its clients until the replica has all writes, so nothing is lost.
func (c *redisCluster) roll(ctx context.Context, _ Fault) error {
	ctx = context.WithoutCancel(ctx)
	leading := primaries(ctx, c.Nodes)
	successor := map[string]*servers.Redis{} // by the port of the primary
	for _, r := range c.Nodes {
		if slices.Contains(leading, r) {
			continue
		}
		if err := restartReplica(ctx, r); err != nil {
			return err
		}
		info, err := r.Info(ctx, "replication")
		if err != nil {
			return err
		}
		successor[info["master_port"]] = r
	}
	for _, r := range leading {
		next := successor[strconv.Itoa(r.Port)]
		if next == nil {
			continue // a new primary without a replica: it stays
		}
		if err := c.handOver(ctx, r, next); err != nil {
			return err
		}
		if err := restartReplica(ctx, r); err != nil {
			return err
		}
	}
	if err := c.Whole(ctx); err != nil {
		return err
	}
	return c.replaceKilledOnly(ctx) // a restarted node has its first settings
}

// handOver makes next the primary in the place of r. An attempt ends after 5 s. It fails if a node has voted for
// another successor of r within twice its node timeout.
func (c *redisCluster) handOver(ctx context.Context, r, next *servers.Redis) (err error) {
	for range 3 {
		if _, err = next.Do(ctx, "CLUSTER", "FAILOVER"); err != nil {
			return err
		}
		if err = servers.Within(ctx, 6*time.Second, func() error { return r.Follows(ctx) }); err == nil {
			return nil
		}
		if err := c.SetNodeTimeout(ctx, servers.RedisNodeTimeout); err != nil {
			return err
		}
	}
	return err
}

// slotMove is a move that has begun and not ended.
type slotMove struct {
	slot     int
	from, to *servers.Redis
}

// find makes the slot of a name's key the slot of the present fault. It returns the key.
func (c *redisCluster) find(ctx context.Context, name string) (key string, err error) {
	key = c.keyOf(ctx, name)
	if c.slot, err = c.Slot(ctx, key); err == nil {
		c.owner, err = c.Owner(ctx, c.slot)
	}
	return key, err
}

// beginMove moves the slot of the fault's name.
func (c *redisCluster) beginMove(ctx context.Context, f Fault) error {
	if _, err := c.find(ctx, f.Name); err != nil {
		return err
	}
	return c.move(ctx)
}

// move begins to move the slot of the present fault, unless it is being moved.
func (c *redisCluster) move(ctx context.Context) error {
	if slices.ContainsFunc(c.begun, func(b slotMove) bool { return b.slot == c.slot }) {
		return nil
	}
	others := slices.DeleteFunc(primaries(ctx, c.Nodes), func(r *servers.Redis) bool { return r == c.owner })
	if len(others) == 0 {
		return errors.New("check: the cluster has no other primary")
	}
	c.begun = append(c.begun, slotMove{c.slot, c.owner, others[0]})
	return c.BeginMove(ctx, c.slot, c.owner, others[0])
}

// endMoves ends all moves.
func (c *redisCluster) endMoves(ctx context.Context, _ Fault) (err error) {
	for _, b := range c.begun {
		err = errors.Join(err, c.EndMove(ctx, b.slot, b.from, b.to))
	}
	c.begun = nil
	return err
}

// beginHeld stops a holder that has no waiters, and moves the slot of its name. During the move,
// the name gets its first waiters. Most such holders are in sparse rounds, of which a run has few.
// There a name gets two waiters within seconds. Without such a holder, beginHeld moves the slot of
// the fault's name.
func (c *redisCluster) beginHeld(ctx context.Context, f Fault) (err error) {
	search, cancel := context.WithTimeout(ctx, time.Second) // a sparse round has many such holders
	defer cancel()
	c.held, err = c.target.pauseHolder(search, 4*time.Second, func(name string) (bool, error) { return c.beginUnawaited(ctx, name) })
	if err != nil {
		return err
	}
	if c.held == nil {
		return c.beginMove(ctx, f)
	}
	c.held.outlast(ctx)
	return nil
}

// beginUnawaited begins to move the slot of a name that has no waiters. It returns false if the
// name has waiters.
func (c *redisCluster) beginUnawaited(ctx context.Context, name string) (bool, error) {
	key, err := c.find(ctx, name)
	if err != nil || c.fields(ctx, key) != 1 {
		return false, err
	}
	if err := c.move(ctx); err != nil {
		return false, err
	}
	if c.fields(ctx, key) > 1 { // a waiter came before the move
		return false, c.endMoves(context.WithoutCancel(ctx), Fault{})
	}
	return true, nil
}

// fields returns the number of fields of a key: one until a waiter comes. While the slot moves, a
// missing key is an error, and fields returns 0.
func (c *redisCluster) fields(ctx context.Context, key string) int64 {
	answer, _ := c.owner.Do(ctx, "HLEN", key)
	n, _ := answer.(int64)
	return n
}

// endHeld ends the moves and continues the holder.
func (c *redisCluster) endHeld(ctx context.Context, f Fault) error {
	return errors.Join(c.endMoves(ctx, f), c.held.resume())
}

// keyOf returns the key of a name that is held or has waiters now. For any other name it
// returns the name itself, whose slot may be that of other names.
func (c *redisCluster) keyOf(ctx context.Context, name string) string {
	for _, r := range primaries(ctx, c.Nodes) {
		if keys, err := redisKeys(ctx, r, "*:"+name); err == nil && len(keys) > 0 {
			return keys[0]
		}
	}
	return name
}
