package redisstore

import (
	"context"
	"strconv"
	"strings"

	"github.com/holdfast-go/holdfast/driver"
)

// findings is what the server was found to be.
type findings struct {
	version  string
	policy   string // maxmemory-policy, "" if the server does not say
	durable  string // what survives a restart, for people
	replicas int    // the least that a primary has now
	unknown  bool   // INFO is not allowed
}

// know probes the server, once: what would be unsafe is refused, unless it was
// insisted on. It also learns the server's time.
func (s *Store) know(ctx context.Context) (*findings, error) {
	if f := s.probed.Load(); f != nil {
		return f, nil
	}
	select {
	case s.probing <- struct{}{}:
	case <-ctx.Done():
		return nil, driver.Errorf(driver.Unavailable, "%w", context.Cause(ctx))
	}
	defer func() { <-s.probing }()
	if f := s.probed.Load(); f != nil {
		return f, nil
	}
	f := &findings{replicas: -1}
	err := s.client.EachPrimary(ctx, func(n Node) error { return s.probe(ctx, n, f) })
	if err != nil {
		return nil, s.explainProbe(err)
	}
	if f.replicas < 0 {
		return nil, driver.Errorf(driver.Unavailable, "no server that takes writes was found")
	}
	s.probed.Store(f)
	return f, nil
}

// explainProbe: nothing of a request has been sent while the server is not known.
func (s *Store) explainProbe(err error) error {
	err = s.explain(err)
	if driver.CodeOf(err) == driver.Unknown {
		return driver.Errorf(driver.Unavailable, "%w", err)
	}
	return err
}

func (s *Store) probe(ctx context.Context, n Node, f *findings) error {
	// The scripts need these; a user without the right to them is told now.
	sent := micros()
	answer, err := n.Command(ctx, "EVAL", "local t = redis.call('TIME') return {'T', string.format('%.0f', t[1] * 1000000 + t[2])}", "0")
	if err != nil {
		return err
	}
	if len(answer) == 2 {
		if now, err := strconv.ParseInt(answer[1], 10, 64); err == nil {
			s.clock.learn(sent, now)
		}
	}
	if s.cfg.replicas > 0 {
		// Some managed servers do not have it.
		if _, err := n.Command(ctx, "WAIT", "0", "1"); err != nil {
			if _, answered := err.(ServerError); answered {
				return driver.Errorf(driver.Refused, "replicas=%d needs WAIT: %w", s.cfg.replicas, err)
			}
			return err
		}
	}
	info, err := n.Command(ctx, "INFO")
	if err != nil {
		if _, answered := err.(ServerError); !answered {
			return err
		}
		f.unknown, f.replicas = true, max(f.replicas, 0)
		return nil
	}
	if len(info) == 0 {
		return driver.Errorf(driver.Unavailable, "INFO answers nothing")
	}
	has := map[string]string{}
	for line := range strings.Lines(info[0]) {
		if k, v, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			has[k] = v
		}
	}
	f.version = has["redis_version"]
	if has["role"] == "slave" {
		return driver.Errorf(driver.Refused, "the server is a replica of %s:%s: locks are written at the primary; give that, or redis+sentinel:// with the sentinels", has["master_host"], has["master_port"])
	}
	if has["cluster_enabled"] == "1" && s.client.Mode() != Cluster {
		return driver.Errorf(driver.Refused, "the server is a node of a Redis Cluster: use redis+cluster://")
	}
	if p := has["maxmemory_policy"]; p != "" {
		f.policy = p
		if p != "noeviction" && !s.cfg.insist {
			return driver.Errorf(driver.Refused, "maxmemory-policy is %s: a server that is full would evict locks while they are held; set it to noeviction, or accept that with insist=true", p)
		}
	}
	switch {
	case has["aof_enabled"] == "1":
		f.durable = "an append-only file"
	case f.durable == "" && has["rdb_last_save_time"] != "":
		f.durable = "snapshots at most"
	}
	replicas, _ := strconv.Atoi(has["connected_slaves"])
	if f.replicas < 0 || replicas < f.replicas {
		f.replicas = replicas
	}
	return nil
}

// Guarantees says what locks on this Redis promise. It probes the server.
func (s *Store) Guarantees(ctx context.Context) (driver.Guarantees, error) {
	if err := s.enter(); err != nil {
		return driver.Guarantees{}, err
	}
	defer s.ops.Done()
	f, err := s.know(ctx)
	if err != nil {
		return driver.Guarantees{}, err
	}
	return s.declare(f), nil
}

var kinds = map[Mode]string{Standalone: "redis", Sentinel: "redis-sentinel", Cluster: "redis-cluster"}

func (s *Store) declare(f *findings) driver.Guarantees {
	g := driver.Guarantees{
		Kind: kinds[s.client.Mode()], Scope: driver.ScopeNetwork,
		Crash: driver.CrashFreesAfterTTL, Pause: driver.PauseLoses,
		Order: driver.OrderFIFO, Wake: driver.WakePush, Fallback: wakeBound, TryFirst: true,
		Shared: true, Semaphore: true, Mixed: true, Slots: true,
		Tokens: "the server's microseconds, above the last token of the name's bucket and above all that the asking client has seen; " +
			"they rise after a flush, a restart without data or a failover unless the clock is set back further than the outage and the client is new",
		EarlyEnd: []string{"a flush or a deletion of the key", "a restart that loses data", "the server's clock set forward"},
		Notice:   noticeBound,
		MinTTL:   minTTL, MaxTTL: maxTTL, Lapses: true,
		Linger: true, Break: driver.BreakNow, Visible: driver.VisibleAll,
	}
	if f.replicas > 0 || s.client.Mode() != Standalone {
		if s.cfg.replicas == 0 {
			g.EarlyEnd = append(g.EarlyEnd, "a failover to a replica that has not received the grant")
		} else {
			g.EarlyEnd = append(g.EarlyEnd, "a failover to a replica that is none of the "+strconv.Itoa(s.cfg.replicas)+" that acknowledged the grant")
		}
	}
	switch {
	case f.unknown:
		g.Notes = append(g.Notes, "the server does not let this user see its settings: whether it evicts keys or keeps data is not known")
	case f.policy != "" && f.policy != "noeviction":
		g.EarlyEnd = append(g.EarlyEnd, "eviction: maxmemory-policy is "+f.policy)
	}
	if f.durable != "" {
		g.Notes = append(g.Notes, "a restart keeps what its persistence has: "+f.durable)
	}
	if s.cfg.replicas > 0 {
		g.Notes = append(g.Notes, "a grant or renewal counts only when "+strconv.Itoa(s.cfg.replicas)+" replicas have acknowledged it")
	}
	g.Notes = append(g.Notes, "early ends are noticed within that time while the server can be reached, else when trust runs out")
	return g
}
