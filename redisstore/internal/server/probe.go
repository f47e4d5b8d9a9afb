package server

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/driver"
)

// errReplica means that the server is a replica.
var errReplica = errors.New("locks are written at the primary: give that, or redis+sentinel:// with the sentinels")

const (
	// freshFor is how long the result of a probe is valid. A request that finds it older than
	// half of that starts a probe in the background. A request that finds it expired waits for a
	// probe. So a server that begins to evict keys grants nothing more after freshFor.
	freshFor = 2 * time.Second
	// refreshInterval is the interval at which a client of a Cluster reads which nodes it has. It
	// also does so after a node has redirected it.
	refreshInterval = 2 * time.Second
	// reconnectInterval is the minimal time between two reconnections of the client.
	reconnectInterval = 250 * time.Millisecond
	// nodeTimeout is the timeout of a probe of one node of a Cluster.
	nodeTimeout = 400 * time.Millisecond
	// maxAhead is how far a replica's clock may be ahead of its primary's.
	maxAhead = 10 * time.Second
)

// findings are the results of a probe of the servers.
type findings struct {
	at       int64 // the time of the probe, by Micros
	refused  error // the reason to refuse new locks, or nil
	version  string
	policy   string // maxmemory-policy, "" if the server does not report it
	durable  string // the data that survives a restart, in words for people
	replicas int    // the smallest number of replicas of a primary, -1 if it is not known yet
	unknown  bool   // the user may not use INFO
	// primaries are the replication IDs of the primaries.
	primaries []string
	// The other fields are set only if replicas must acknowledge grants. ahead is how far the
	// clock of a replica may be ahead of its primary's, and clocks has each replica's, by
	// address. uncompared means that a clock could not be compared.
	ahead      time.Duration
	clocks     map[string]replicaClock
	uncompared bool
}

// replicaClock is how far the clock of a replica is ahead of that of a primary.
type replicaClock struct {
	ahead   time.Duration
	primary string // its replication ID
}

// keepClocks adds what an earlier probe has found. A replica that could not be compared now keeps
// its difference, also if it is disconnected: it may come back with all leases and be promoted. That
// ends with its primary's replication ID, which a promotion changes, if all replicas could be compared
// after it. missed means that a primary did not answer.
func (f *findings) keepClocks(before *findings, missed bool) {
	missed = missed || f.unknown
	for address, c := range before.clocks {
		if _, compared := f.clocks[address]; !compared && (missed || f.uncompared || slices.Contains(f.primaries, c.primary)) {
			f.clocks[address] = c
			f.ahead = max(f.ahead, c.ahead)
		}
	}
	if missed {
		for _, id := range before.primaries {
			if !slices.Contains(f.primaries, id) {
				f.primaries = append(f.primaries, strings.Clone(id))
			}
		}
	}
}

// firstFindings returns the result of the last probe. It probes the servers if there is none.
func (s *Server) firstFindings(ctx context.Context) (*findings, error) {
	if f := s.probed.Load(); f != nil {
		return f, nil
	}
	f, err := s.probeAll(ctx, 0)
	if err == nil {
		err = f.refused
	}
	if err != nil {
		return nil, err
	}
	return f, nil
}

// RequireSafe returns an error unless a probe within the last freshFor found the servers safe.
func (s *Server) RequireSafe(ctx context.Context) error {
	f := s.probed.Load()
	if f != nil && f.refused == nil {
		switch age := time.Duration(Micros()-f.at) * time.Microsecond; {
		case age < freshFor/2:
			return nil
		case age < freshFor:
			s.probeSoon()
			return nil
		}
	}
	f, err := s.probeAll(ctx, Micros()-(freshFor/8).Microseconds())
	if err != nil {
		return err
	}
	return f.refused
}

// Fresh reports whether RequireSafe would return nil without a probe.
func (s *Server) Fresh() bool {
	f := s.probed.Load()
	return f != nil && f.refused == nil && Micros()-f.at < freshFor.Microseconds()
}

// probeSoon starts a probe in the background, unless one runs.
func (s *Server) probeSoon() {
	if len(s.probing) > 0 {
		return
	}
	since := Micros() - (freshFor / 8).Microseconds()
	s.Go(func() {
		ctx, cancel := context.WithTimeout(s.Ctx, CallTimeout)
		defer cancel()
		_, _ = s.probeAll(ctx, since) // the next request gets the error
		s.lengthen()
	})
}

// probeAll probes every server that accepts writes, unless a probe was made since the given
// time. Only one probe runs at a time. The first probe also checks rights and persistence.
func (s *Server) probeAll(ctx context.Context, since int64) (*findings, error) {
	select {
	case s.probing <- struct{}{}:
	case <-ctx.Done():
		return nil, driver.Errorf(driver.CodeUnavailable, "%w", context.Cause(ctx))
	}
	defer func() { <-s.probing }()
	before := s.probed.Load()
	if before != nil && before.at >= since {
		return before, nil
	}
	f := &findings{at: Micros(), replicas: -1, clocks: map[string]replicaClock{}}
	if before != nil {
		f.version, f.durable = before.version, before.durable
		if s.Config.Replicas == 0 {
			f.replicas = before.replicas
		}
	}
	missed, err := s.probePrimaries(ctx, f, before == nil)
	if before != nil {
		f.policy = cmp.Or(f.policy, before.policy)
		f.keepClocks(before, missed)
	}
	if err == nil && missed {
		err = before.refused // the refusal may concern the node that did not answer now
	}
	if errors.Is(err, errReplica) {
		s.reconnect()
	}
	if err = s.explainProbe(err); err != nil {
		if driver.CodeOf(err) != driver.CodeRefused && !errors.Is(err, errReplica) || before == nil {
			return nil, err
		}
		known := *before // so that held locks can be renewed and released
		known.at, known.refused, known.primaries = f.at, err, f.primaries
		f = &known
	}
	s.probed.Store(f)
	if before != nil && slices.ContainsFunc(f.primaries, func(id string) bool { return !slices.Contains(before.primaries, id) }) {
		if s.Client.Mode() != Cluster {
			// Some connections may have been opened just before the address moved, and a living former
			// primary keeps the subscription.
			s.Client.Reconnect()
		}
		if s.Config.Replicas > 0 {
			s.distrustLeads()
		}
	}
	return f, nil
}

// probePrimaries probes every server that accepts writes. first marks the first probe, which needs
// an answer of each of them. A later probe needs one answer: missed reports that a server did not
// answer.
func (s *Server) probePrimaries(ctx context.Context, f *findings, first bool) (missed bool, err error) {
	answered := 0
	refused := func(err error) bool { return driver.CodeOf(s.Explain(err)) == driver.CodeRefused }
	skipsSilent := !first && s.Client.Mode() == Cluster
	err = s.Client.EachPrimary(ctx, func(n Node) error {
		ctx := ctx
		if skipsSilent {
			// A silent node must not make the locks of the other nodes unavailable.
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, nodeTimeout)
			defer cancel()
		}
		err := s.probe(ctx, n, f, first)
		switch {
		case err == nil:
			answered++
		case skipsSilent && !refused(err):
			missed, err = true, nil
		}
		return err
	})
	if err != nil && !first && answered > 0 && !refused(err) {
		missed, err = true, nil
	}
	if err == nil && answered == 0 {
		err = driver.Errorf(driver.CodeUnavailable, "no server that accepts writes was found")
	}
	return missed, err
}

// explainProbe adds the code to an error of a probe. An unknown outcome becomes CodeUnavailable,
// since no request was sent before the probe.
func (s *Server) explainProbe(err error) error {
	if err == nil {
		return nil
	}
	err = s.Explain(err)
	if driver.CodeOf(err) == driver.CodeUnknown {
		return driver.Errorf(driver.CodeUnavailable, "%w", err)
	}
	return err
}

// probe reads the settings of one server, and returns an error if the server is unsafe.
func (s *Server) probe(ctx context.Context, n Node, f *findings, first bool) (err error) {
	if first {
		if err := s.probeRights(ctx, n); err != nil {
			return err
		}
		compared := make(chan error, 1)
		go func() { compared <- s.compareServers(ctx) }()
		defer func() { err = cmp.Or(err, <-compared) }()
	}
	info, err := s.readInfo(ctx, n, first)
	if err != nil {
		return err
	}
	if info == nil {
		f.unknown, f.replicas = true, max(f.replicas, 0)
		return nil
	}
	if err := checkRole(info, first); err != nil {
		return err
	}
	if first {
		if info["cluster_enabled"] == "1" && s.Client.Mode() != Cluster {
			return driver.Errorf(driver.CodeRefused, "the server is a node of a Redis Cluster: use redis+cluster://")
		}
		f.version = info["redis_version"]
		switch {
		case info["aof_enabled"] == "1":
			f.durable = "an append-only file"
		case f.durable == "" && info["rdb_last_save_time"] != "":
			f.durable = "snapshots at most"
		}
	}
	if p := info["maxmemory_policy"]; p != "" {
		if f.policy == "" || f.policy == "noeviction" {
			f.policy = p
		}
		if p != "noeviction" && !s.Config.Insist { // mutation: redis-policy
			return driver.Errorf(driver.CodeRefused, "maxmemory-policy is %s: a full server would evict held locks; set it to noeviction, or accept that with insist=true", p)
		}
	}
	replicas, err := strconv.Atoi(info["connected_slaves"])
	if err != nil {
		replicas = max(f.replicas, 0) // the number that an earlier probe found
	}
	if f.replicas < 0 || replicas < f.replicas {
		f.replicas = replicas
	}
	if id := info["master_replid"]; id != "" {
		f.primaries = append(f.primaries, strings.Clone(id))
	}
	if s.Config.Replicas == 0 || replicas == 0 {
		return nil
	}
	return s.compareClocks(ctx, n, info, f)
}

// readInfo returns the fields of INFO: all of them for the first probe, else those that a later
// probe needs. It returns nil if the user may not use INFO. A server with the module of Redis
// Enterprise for several primaries gets the role crdt.
func (s *Server) readInfo(ctx context.Context, n Node, first bool) (map[string]string, error) {
	commands := [][]string{{"INFO"}}
	if !first {
		commands = [][]string{{"INFO", "memory"}, {"INFO", "replication"}}
	}
	info, crdt := map[string]string{}, false
	for _, command := range commands {
		answer, err := n.Command(ctx, command...)
		if err != nil {
			if e, answered := err.(ServerError); !answered || driver.CodeOf(s.Explain(e)) == driver.CodeUnavailable {
				return nil, err
			}
			return nil, nil
		}
		if len(answer) == 0 {
			return nil, driver.Errorf(driver.CodeUnavailable, "INFO returns nothing")
		}
		for line := range strings.Lines(answer[0]) {
			if k, v, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
				info[k] = v
				crdt = crdt || k == "module" && strings.Contains(strings.ToLower(v), "crdt")
			}
		}
	}
	if crdt {
		info["role"] = "crdt"
	}
	return info, nil
}

// checkRole returns an error if the server is a replica, or one of several that accept writes for
// the same data. A replica at the first probe is probably a wrong address. A later one was the primary,
// so a failover is under way.
func checkRole(info map[string]string, first bool) error {
	switch role := info["role"]; role {
	case "master", "":
		return nil
	case "slave":
		code := driver.CodeUnavailable
		if first {
			code = driver.CodeRefused
		}
		return driver.Errorf(code, "the server is a replica of %s:%s: %w", info["master_host"], info["master_port"], errReplica)
	default:
		// KeyDB reports active-replica.
		return driver.Errorf(driver.CodeRefused, "the server's role is %s: where several servers accept writes for the same data, each would grant the lock", role)
	}
}

// rightsProbe returns the server's time. Before that it deletes a key that does not exist: the scripts that acquire a
// lock need no right to DEL, and those that end it do. Another error than that of a missing right means nothing, because
// the key may belong to another node or be outside the user's keys.
const rightsProbe = `local d = redis.pcall('DEL', 'holdfast:probe')
if type(d) == 'table' and d.err and string.find(d.err, "can't run", 1, true) then return redis.error_reply('NOPERM without the command DEL no lock can be released') end
local t = redis.call('TIME')
return {'T', string.format('%.0f', t[1] * 1000000 + t[2])}`

// probeRights runs the commands that the scripts need, so that a missing right is an error at
// the first request.
func (s *Server) probeRights(ctx context.Context, n Node) error {
	sent := Micros()
	answer, err := n.Command(ctx, "EVAL", rightsProbe, "0")
	if err != nil {
		return err
	}
	if len(answer) == 2 {
		if now, err := strconv.ParseInt(answer[1], 10, 64); err == nil {
			s.Clock.Learn(sent, now)
		}
	}
	if s.Config.Replicas > 0 {
		// Some managed servers do not have WAIT.
		if _, err := n.Command(ctx, "WAIT", "0", "1"); err != nil {
			if _, answered := err.(ServerError); answered {
				return driver.Errorf(driver.CodeRefused, "replicas=%d needs WAIT: %w", s.Config.Replicas, err)
			}
			return err
		}
	}
	return nil
}

// compareClocks reads the time of the replicas of a primary. If a clock is ahead, the store
// makes all leases longer by that time. So after a failover to that replica no lease expires
// before the validity of its holder ends.
func (s *Server) compareClocks(ctx context.Context, n Node, info map[string]string, f *findings) error {
	_, lower, err := clockOf(ctx, n)
	if err != nil {
		return err
	}
	for address := range replicasOf(info) {
		replica, err := s.Client.Replica(ctx, address)
		var upper int64
		if err == nil {
			upper, _, err = clockOf(ctx, replica)
		}
		if err != nil {
			f.uncompared = true
			continue
		}
		// The replica's time minus Micros is at most upper, the primary's at least lower.
		ahead := time.Duration(upper-lower) * time.Microsecond
		if ahead > maxAhead {
			return driver.Errorf(driver.CodeRefused, "the clock of the replica %s is %s ahead of its primary's: a failover to it would free held locks; set the clock", address, ahead.Round(time.Millisecond))
		}
		f.clocks[address] = replicaClock{max(ahead, 0), info["master_replid"]}
		f.ahead = max(f.ahead, ahead)
	}
	return nil
}

// clockOf returns the upper and the lower limit of the server's time minus Micros.
func clockOf(ctx context.Context, n Node) (upper, lower int64, err error) {
	sent := Micros()
	answer, err := n.Command(ctx, "TIME")
	if err != nil {
		return 0, 0, err
	}
	received := Micros()
	if len(answer) != 2 {
		return 0, 0, driver.Errorf(driver.CodeUnavailable, "TIME returns %q", answer)
	}
	seconds, err1 := strconv.ParseInt(answer[0], 10, 64)
	rest, err2 := strconv.ParseInt(answer[1], 10, 64)
	if err := errors.Join(err1, err2); err != nil {
		return 0, 0, driver.Errorf(driver.CodeUnavailable, "TIME returns %q", answer)
	}
	now := seconds*1_000_000 + rest
	return now - sent, now - received, nil
}

// probeIfOld starts a probe in the background if the last one is old: the server of held grants may
// have become a replica. It also does so if a lease is to be lengthened.
func (s *Server) probeIfOld() {
	short := s.Config.Replicas > 0 && len(s.short()) > 0
	if f := s.probed.Load(); short || f == nil || Micros()-f.at > (freshFor/2).Microseconds() {
		s.probeSoon()
	}
}

// Guarantees returns the guarantees of locks on this Redis. The first call probes the server.
func (b *Store) Guarantees(ctx context.Context) (driver.Guarantees, error) {
	s := b.s
	if err := s.Enter(); err != nil {
		return driver.Guarantees{}, err
	}
	defer s.Leave()
	f, err := s.firstFindings(ctx)
	if err != nil {
		return driver.Guarantees{}, err
	}
	return s.declare(f), nil
}

var kinds = map[Mode]string{Standalone: "redis", Sentinel: "redis-sentinel", Cluster: "redis-cluster"}

var reaches = map[Mode]string{
	Standalone: "every client of the server with the same database number", Sentinel: "every client of the group with the same database number",
	Cluster: "every client of the cluster",
}

// declare returns the guarantees for the findings of a probe.
func (s *Server) declare(f *findings) driver.Guarantees {
	g := driver.Guarantees{
		Kind: kinds[s.Client.Mode()], Scope: driver.ScopeNetwork, Reach: reaches[s.Client.Mode()],
		Crash: driver.CrashFreesAfterTTL, Pause: driver.PauseLoses,
		Wake: driver.WakePush, TryFirst: true,
		EarlyEnd: []string{"a flush or a deletion of the key", "a restart that loses data", "the server's clock set forward"},
		Notice:   noticeTimeout,
		MinTTL:   MinTTL, MaxTTL: MaxTTL, LeftoversExpire: true,
		Break: driver.BreakNow,
	}
	if f.replicas > 0 || s.Client.Mode() != Standalone {
		if s.Config.Replicas == 0 {
			g.EarlyEnd = append(g.EarlyEnd, "a failover to a replica that has not received the grant")
		} else {
			g.EarlyEnd = append(g.EarlyEnd, "a failover to a replica that is not one of the "+strconv.Itoa(s.Config.Replicas)+" that acknowledged the grant")
		}
	}
	switch {
	case f.unknown:
		g.Notes = append(g.Notes, "this user cannot read the server's settings, so it is unknown whether the server evicts keys or keeps data")
	case f.policy != "" && f.policy != "noeviction":
		g.EarlyEnd = append(g.EarlyEnd, "eviction: maxmemory-policy is "+f.policy)
	}
	if f.policy == "noeviction" {
		notice := freshFor.String()
		if s.Client.Mode() == Cluster {
			notice += ", and a new node within " + (refreshInterval + freshFor).String()
		}
		g.Notes = append(g.Notes, "a server that begins to evict keys grants no lock after "+notice+"; held locks may be evicted")
	}
	if f.durable != "" {
		g.Notes = append(g.Notes, "a restart keeps the locks that the server's persistence has: "+f.durable)
	}
	if s.Config.Replicas > 0 {
		g.Notes = append(g.Notes, "a grant, a renewal or a release with a minimum hold counts only after "+strconv.Itoa(s.Config.Replicas)+" replicas have acknowledged it")
		g.EarlyEnd = append(g.EarlyEnd, "a failover to a replica whose clock was set ahead within the last "+noticeTimeout.String())
		if f.uncompared {
			g.Notes = append(g.Notes, "the clock of a replica could not be compared with the primary's: a failover to a replica whose clock is ahead ends locks early")
		} else {
			g.Notes = append(g.Notes, "leases are longer by the time that a replica's clock is ahead of the primary's, up to "+maxAhead.String()+"; above that new locks are refused",
				"a failover to a replica whose clock is ahead ends a minimum hold earlier by that time")
		}
	}
	g.Notes = append(g.Notes, "a holder that cannot reach the server notices when its validity ends")
	s.recipe.Declare(&g)
	return g
}
