package server

import (
	"context"
	"crypto/rand"
	_ "embed"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/examine"
)

//go:embed scripts/rights.lua
var rightsSource string

var rightsScript = NewScript("rights", rightsSource)

const (
	// clearlyApart is a difference of clocks that is not only that of two round trips.
	clearlyApart = 500 * time.Millisecond
	// slowFailover is the longest time for which a primary may be silent before the others replace it. A lock with
	// the default TTL of 30s is renewed every 10s and valid for 27s, so it outlasts 17s.
	slowFailover = 15 * time.Second
	// rivalTimeout limits the search for keys of other libraries, which reads the names of all keys.
	rivalTimeout = 10 * time.Second
	rivalNames   = 1000
	// smallBuffer is less than the messages for the waiters of a process may need, in bytes.
	smallBuffer = 1 << 20
)

// NodeChecks are the checks of every server, also of one of a Redlock fleet.
var NodeChecks = examine.Table{
	examine.Breaks("eviction", "maxmemory-policy noeviction", "a full server deletes locks that are held",
		"set maxmemory-policy noeviction, and remove insist=true from the URL", // without it the store refuses the server
		examine.If("insist", "true", examine.IsNot("maxmemory_policy", "noeviction"))),
	examine.Breaks("rights", "the rights that docs/security.md lists", "calls fail, some only later, such as a release",
		"give the user these rights", examine.Given("rights")),
	examine.Costs("memory", "at most nine tenths of maxmemory in use", "a full server refuses new locks",
		"raise maxmemory, or remove other data", examine.Full("used_memory", "maxmemory", 90)),
	examine.Costs("disk", "writes of the append-only file and of snapshots that succeed",
		"the server refuses each write, so locks are unavailable", "see the log of the server: the disk may be full",
		examine.Any(examine.Is("aof_last_write_status", "err"), func(f examine.Facts) string {
			if f["save"] == "" { // without it a failed snapshot refuses no write
				return ""
			}
			return examine.If("stop-writes-on-bgsave-error", "yes", examine.Is("rdb_last_bgsave_status", "err"))(f)
		})),
	examine.Costs("clients", "at most nine tenths of maxclients in use", "the server refuses new connections",
		"raise maxclients, or close connections", examine.Full("connected_clients", "maxclients", 90)),
	examine.Costs("pubsub-buffer", "client-output-buffer-limit pubsub of 1mb or more, such as 32mb 8mb 60",
		"the server disconnects waiters when many messages arrive, and they wait up to a second longer",
		"raise the limit", func(f examine.Facts) string {
			limits := strings.Fields(f["client-output-buffer-limit"])
			i := slices.Index(limits, "pubsub")
			if i < 0 || i+3 >= len(limits) {
				return ""
			}
			for _, text := range limits[i+1 : i+3] {
				if n, _ := strconv.Atoi(text); n > 0 && n < smallBuffer {
					return "client-output-buffer-limit is " + strings.Join(limits[i:i+4], " ")
				}
			}
			return ""
		}),
	examine.Costs("proxy", "the address of the server itself",
		"a proxy spreads keys over several servers, so each lock is a call of its own", "give the address of the server",
		examine.Given("proxy")),
	examine.Note("version", "Redis 7.2 or later", "a clock that is set back while a script runs can end other locks of "+
		"the name, and before 6.2 nothing is tested", "upgrade the server", examine.Older("redis_version", "7.2.0")),
	examine.Unreadable("add +info, +config|get and the keys to the user of this command; locks do not need them"),
}

// dataChecks are the checks of a server whose data must outlast it: not of a Redlock fleet.
var dataChecks = examine.Table{
	examine.Breaks("persistence", "appendonly yes", "a restart forgets locks that are held: another client gets one up "+
		"to 3s before its holder notices", "set appendonly yes", func(f examine.Facts) string {
		switch {
		case f["aof_enabled"] != "0":
			return ""
		case f["save"] == "":
			return "appendonly is no, and no snapshot is known"
		}
		return "appendonly is no, and snapshots (" + f["save"] + ") lack the last locks"
	}),
	examine.Breaks("failover", "replicas=N in the URL, with the number of replicas",
		"a promoted replica may not have received a lock, and grants it again", "add replicas=N to the URL",
		examine.Fewer("replicas", "connected_slaves")),
	examine.Breaks("too-few-replicas", "as many replicas as replicas=N in the URL", "no lock is granted or renewed",
		"start the replicas, or lower replicas=N", examine.Fewer("connected_slaves", "replicas")),
	examine.Breaks("min-replicas", "min-replicas-to-write 1 or more, and min-replicas-max-lag above 0",
		"a primary that is cut off grants locks that its successor grants, too",
		"set min-replicas-to-write 1 and min-replicas-max-lag 2", func(f examine.Facts) string {
			if f["mode"] == "redis-cluster" || f["mode"] == "redis" && f.Int("connected_slaves") == 0 {
				return ""
			}
			return examine.Any(examine.Is("min-replicas-to-write", "0"), examine.Is("min-replicas-max-lag", "0"))(f)
		}),
	examine.Breaks("replica-clock", "clocks that agree", "a failover to a replica whose clock is ahead ends locks early, "+
		"and one to a replica that is behind keeps them longer", "synchronize the clocks, and add replicas=N to the URL: "+
		"then leases are longer by the difference", examine.Given("replica-clock")),
	examine.Breaks("writable-replica", "replica-read-only yes", "a client that reaches this replica gets locks that are "+
		"held at the primary", "set replica-read-only yes", examine.Given("writable-replica")),
	examine.Breaks("rival", "each name locked by one library", "the clients of another library and those of holdfast hold "+
		"the lock at the same time", "use a layout of docs/redis-layouts.md for all clients, or another name",
		examine.Given("rival")),
	examine.Costs("replica-lag", "replicas that are online and at most 2s behind",
		"with replicas=N each lock waits for them; without, a failover loses the locks of that time",
		"see the load and the network of the replica", examine.Given("replica-lag")),
	examine.Costs("no-replica", "a replica for each primary", "locks stop while the primary is down", "add a replica",
		func(f examine.Facts) string {
			if f["mode"] == "redis" {
				return ""
			}
			return examine.Is("connected_slaves", "0")(f)
		}),
	examine.Costs("node-timeout", "cluster-node-timeout of 15s or less",
		"locks with a TTL of 30s are lost in a failover", "lower it, or use a longer TTL",
		examine.More("cluster-node-timeout", slowFailover.Milliseconds())),
	examine.Costs("coverage", "cluster-require-full-coverage no", "the failure of one shard stops the locks of all",
		"set cluster-require-full-coverage no",
		examine.If("mode", "redis-cluster", examine.Is("cluster-require-full-coverage", "yes"))),
	examine.Note("fsync", "appendfsync always", "a crash of the machine, not of the server, forgets the locks of the last "+
		"second, or with no of half a minute", "set appendfsync always if that matters more than speed",
		examine.If("aof_enabled", "1", examine.IsNot("appendfsync", "always"))),
}

// sentinelChecks are the checks of a sentinel.
var sentinelChecks = examine.Table{
	examine.Costs("sentinel-silent", "sentinels that answer", "with too few of them there is no failover",
		"start it, or remove its address from the URL", examine.Given("silent")),
	examine.Costs("sentinel-number", "three sentinels or more", "if one fails, there is no failover",
		"start three sentinels on three machines", examine.Below("sentinels", 3)),
	examine.Costs("sentinel-quorum", "a quorum that is a majority", "one sentinel with a bad link causes failovers, or "+
		"none takes place", "set the quorum to a majority of the sentinels", func(f examine.Facts) string {
		n, all := f.Int("quorum"), f.Int("sentinels")
		if f.Has("quorum", "sentinels") && (n <= all/2 || n > all) {
			return fmt.Sprintf("the quorum is %d of %d sentinels", n, all)
		}
		return ""
	}),
	examine.Costs("sentinel-timeout", "down-after-milliseconds of 15000 or less",
		"locks with a TTL of 30s are lost in a failover", "lower it, or use a longer TTL",
		examine.More("down-after-milliseconds", slowFailover.Milliseconds())),
}

// settings are the parameters of CONFIG GET that the checks need.
var settings = []string{"save", "appendfsync", "min-replicas-*", "client-output-buffer-limit", "cluster-node-timeout",
	"cluster-require-full-coverage", "stop-writes-on-bgsave-error", "maxclients"}

// Checks implements driver.Examiner.
func (b *Store) Checks() []driver.Check {
	return slices.Concat(NodeChecks.Checks(), dataChecks.Checks(), sentinelChecks.Checks())
}

// Examine implements driver.Examiner.
func (b *Store) Examine(ctx context.Context) ([]driver.Finding, error) {
	s := b.s
	if err := s.Enter(); err != nil {
		return nil, err
	}
	defer s.Leave()
	all, err := s.Facts(ctx)
	if err != nil {
		return nil, s.explainProbe(err)
	}
	return slices.Concat(NodeChecks.Find(all...), dataChecks.Find(all...), sentinelChecks.Find(s.sentinels(ctx)...)), nil
}

// Facts reads the facts of each primary, and of all together at the first one.
func (s *Server) Facts(ctx context.Context) (all []examine.Facts, err error) {
	err = s.Client.EachPrimary(ctx, func(n Node) error {
		info, err := s.readInfo(ctx, n, true)
		if err != nil {
			return err
		}
		f := examine.Facts{"mode": kinds[s.Client.Mode()], "insist": strconv.FormatBool(s.Config.Insist),
			"replicas": strconv.Itoa(s.Config.Replicas), examine.Where: fmt.Sprint(n)}
		maps.Copy(f, info)
		if info == nil {
			f.AddUnread("INFO")
		}
		if !readSettings(ctx, n, f, settings...) {
			f.AddUnread("CONFIG GET")
		}
		s.examineReplicas(ctx, n, info, f)
		all = append(all, f)
		return nil
	})
	if err != nil || len(all) == 0 {
		return all, err
	}
	if s.Spread.Load() {
		all[0]["proxy"] = "keys of one address are on several servers"
	}
	all[0]["rights"] = s.missingRights(ctx)
	s.findRivals(ctx, all[0])
	return all, nil
}

// readSettings reads parameters of CONFIG GET. It returns false if the user may not.
func readSettings(ctx context.Context, n Node, f examine.Facts, names ...string) bool {
	for _, name := range names {
		answer, err := n.Command(ctx, "CONFIG", "GET", name)
		if err != nil {
			return false
		}
		for i := 0; i+1 < len(answer); i += 2 {
			f[answer[i]] = answer[i+1]
		}
	}
	return true
}

// examineReplicas reads the facts of the replicas of a primary.
func (s *Server) examineReplicas(ctx context.Context, n Node, info map[string]string, f examine.Facts) {
	note := func(fact, address, format string, args ...any) {
		if f[fact] != "" {
			f[fact] += "; "
		}
		f[fact] += "replica " + address + " " + fmt.Sprintf(format, args...)
	}
	for address, r := range replicasOf(info) {
		if lag, err := strconv.Atoi(r["lag"]); r["state"] != "online" {
			note("replica-lag", address, "is in state %s", r["state"])
		} else if err == nil && lag > 2 {
			note("replica-lag", address, "was last heard of %d s ago", lag)
		}
		replica, err := s.Client.Replica(ctx, address)
		if err != nil {
			continue
		}
		own := examine.Facts{}
		upperOfPrimary, lowerOfPrimary, err1 := clockOf(ctx, n)
		upper, lower, err2 := clockOf(ctx, replica)
		if err := errors.Join(err1, err2); err != nil {
			f.AddUnread("the clock of replica %s: %v", address, err)
			continue
		}
		behind, ahead := time.Duration(lowerOfPrimary-upper)*time.Microsecond, time.Duration(lower-upperOfPrimary)*time.Microsecond
		switch {
		case behind > clearlyApart:
			note("replica-clock", address, "is %s behind", behind.Round(time.Millisecond))
		case ahead > clearlyApart:
			note("replica-clock", address, "is %s ahead", ahead.Round(time.Millisecond))
		}
		if readSettings(ctx, replica, own, "*-read-only") && own["replica-read-only"] == "no" {
			note("writable-replica", address, "has replica-read-only no")
		}
	}
}

// missingRights returns the commands that scripts need and the user may not use, and the answer of SUBSCRIBE.
func (s *Server) missingRights(ctx context.Context) string {
	tag := "{" + strings.ToLower(rand.Text()) + "}"
	channel := "holdfast:doctor:" + tag
	var missing []string
	failed, err := s.Client.Eval(ctx, rightsScript, []string{channel + ":text", channel + ":hash"}, []string{channel})
	if err != nil {
		return err.Error()
	}
	for i := 0; i+1 < len(failed); i += 2 {
		if isDenied(failed[i+1]) && !slices.Contains(missing, failed[i]) {
			missing = append(missing, failed[i])
		}
	}
	listening, end := context.WithTimeout(ctx, CallTimeout)
	defer end()
	if err := s.Client.Subscribe(listening, channel, end, func(string) {}); err != nil && isDenied(err.Error()) {
		missing = append(missing, "subscribe")
	}
	if len(missing) == 0 {
		return ""
	}
	return "the user may not use " + strings.Join(missing, ", ")
}

// isDenied reports whether the text of an error means that the user has no right.
func isDenied(text string) bool {
	return slices.ContainsFunc(answered, func(a answerOf) bool { return a.help == rights && strings.Contains(text, a.word) })
}

// findRivals looks for keys of other client libraries with the names of locks that are held or awaited now.
func (s *Server) findRivals(ctx context.Context, f examine.Facts) {
	if s.recipe.Rival == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, rivalTimeout)
	defer cancel()
	names, err := s.recipe.Names(ctx, "")
	if err != nil {
		f.AddUnread("the names of locks: %v", err)
		return
	}
	names = names[:min(len(names), rivalNames)]
	var commands [][]string
	for _, name := range names {
		commands = append(commands, []string{"TYPE", s.recipe.Rival(name)})
	}
	if len(commands) == 0 {
		return
	}
	var found []string
	for i, a := range s.Client.Commands(ctx, commands) {
		if a.Err != nil {
			f.AddUnread("keys outside of holdfast:*")
			return
		}
		if kind := strings.Join(a.Values, ""); kind != "none" {
			found = append(found, fmt.Sprintf("the lock %q and a %s of that key", names[i], kind))
		}
	}
	f["rival"] = strings.Join(found, "; ")
}

// sentinels reads the facts of the sentinels of a URL.
func (s *Server) sentinels(ctx context.Context) (all []examine.Facts) {
	c, ok := s.Client.(*goredisClient)
	if !ok {
		return nil
	}
	for _, address := range c.sentinels.Addrs {
		f := examine.Facts{examine.Where: "sentinel " + address}
		all = append(all, f)
		limited, cancel := context.WithTimeout(ctx, 2*dialTimeout)
		n, err := c.node(address, redis.Options{Username: c.sentinels.SentinelUsername,
			Password: c.sentinels.SentinelPassword, Dialer: c.sentinels.Dialer, Protocol: 2, DialTimeout: dialTimeout})
		var answer []string
		if err == nil {
			answer, err = n.Command(limited, "SENTINEL", "MASTER", c.sentinels.MasterName)
		}
		cancel()
		if err != nil {
			f["silent"] = "sentinel " + address + ": " + err.Error()
			continue
		}
		for i := 0; i+1 < len(answer); i += 2 {
			f[answer[i]] = answer[i+1]
		}
		f["sentinels"] = strconv.FormatInt(f.Int("num-other-sentinels")+1, 10)
	}
	return all
}

// replicasOf returns the fields of each replica in INFO replication, by address.
func replicasOf(info map[string]string) map[string]map[string]string {
	all := map[string]map[string]string{}
	for name, text := range info {
		number, ok := strings.CutPrefix(name, "slave")
		if _, err := strconv.Atoi(number); !ok || err != nil {
			continue // not the line of a replica, slaveN:ip=...,port=...
		}
		part := map[string]string{}
		for field := range strings.SplitSeq(text, ",") {
			k, v, _ := strings.Cut(field, "=")
			part[k] = v
		}
		all[net.JoinHostPort(part["ip"], part["port"])] = part
	}
	return all
}
