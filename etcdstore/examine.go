package etcdstore

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/examine"
)

const (
	// manyRevisions are more than a periodic compaction of ten minutes usually leaves.
	manyRevisions = 20_000
	// defaultQuota is the size of the database at which a server without a setting is full. Servers before 3.6 do not
	// report theirs.
	defaultQuota = 2 << 30
	// longLease is a shortest lease that delays the next holder after a crash, in seconds.
	longLease = 5
	// briefToken is a lifetime of a login for which it costs time, in seconds.
	briefToken = 60
)

var checks = examine.Table{
	examine.Breaks("stale-reads", "etcd 3.4.42, 3.5.28, 3.6.9, or later",
		"after a pause of a member, a read may be old (etcd issue 20418): a holder notices the end of its lock later, and a value "+
			"is not the last one",
		"upgrade etcd", examine.Older("version", "3.4.42", "3.5.28", "3.6.9")),
	examine.Breaks("renewal-after-end", "etcd 3.4.38, 3.5.23, 3.6.5, or later",
		"a renewal may be confirmed although the lease has just been revoked (etcd issue 20547)", "upgrade etcd",
		examine.Older("version", "3.4.38", "3.5.23", "3.6.5")),
	examine.Breaks("former-leader", "etcd 3.4.31, 3.5.13, or later",
		"a leader whose disk is blocked confirms leases that its successor has ended (etcd issue 15247)", "upgrade etcd",
		examine.Older("version", "3.4.31", "3.5.13")),
	examine.Breaks("alarm", "no alarm", "with NOSPACE new locks are refused, with CORRUPT the members have different data",
		"NOSPACE: compact, defrag and disarm as in docs/etcd.md; CORRUPT: replace the member", examine.Given("alarm")),
	examine.Costs("space", "less than four fifths of the quota in use", "a full server refuses new locks",
		"enable compaction, defrag, or raise --quota-backend-bytes", examine.Full("db size", "quota", 80)),
	examine.Costs("compaction", "--auto-compaction-mode and --auto-compaction-retention",
		"the server keeps each version of each key until it is full, and then refuses new locks",
		"start the members with --auto-compaction-mode=periodic --auto-compaction-retention=10m",
		examine.More("number of revisions, all of which are kept,", manyRevisions)),
	examine.Costs("members", "3 or 5 members", "one member tolerates no failure, and an even number no more than one less",
		"add or remove a member", examine.NoMajority("members")),
	examine.Costs("endpoints", "all members in the URL", "if those of the URL are down, locks are unavailable",
		"name all members in the URL", examine.Fewer("hosts in the URL", "members")),
	examine.Costs("silent-member", "members that all answer", "the cluster tolerates one failure less", "start the member",
		examine.Given("silent")),
	examine.Costs("election", "an election timeout of 1s, by which the shortest lease is 2s",
		"a crash of a holder delays the next one for longer, and so does an election",
		"lower --election-timeout and --heartbeat-interval", examine.More("shortest lease in seconds", longLease)),
	examine.Costs("token", "a login that lasts for a minute or more", "each login takes about 50 ms of the server's time",
		"raise ttl in --auth-token", examine.Below("rest of the login in seconds", briefToken)),
}

// Checks implements driver.Examiner.
func (s *store) Checks() []driver.Check { return checks.Checks() }

// Examine implements driver.Examiner.
func (s *store) Examine(ctx context.Context) ([]driver.Finding, error) {
	if err := s.calls.Enter(); err != nil {
		return nil, errClosed
	}
	defer s.calls.Leave()
	var all []examine.Facts
	var failed error
	answered := 0
	for _, endpoint := range s.given {
		f := examine.Facts{examine.Where: endpoint}
		all = append(all, f)
		status, err := limited(ctx, func(ctx context.Context) (*clientv3.StatusResponse, error) { return s.status(ctx, endpoint) })
		if err != nil {
			f["silent"], failed = err.Error(), err
			continue
		}
		f["version"] = status.Version
		f["db size"], f["quota"] = strconv.FormatInt(status.DbSize, 10), strconv.FormatInt(defaultQuota, 10)
		if status.DbSizeQuota > 0 {
			f["quota"] = strconv.FormatInt(status.DbSizeQuota, 10)
		}
		answered++
	}
	if answered == 0 {
		return nil, unavailable(ctx, failed)
	}
	cluster, err := s.clusterFacts(ctx, len(all))
	if err != nil {
		return nil, unavailable(ctx, err)
	}
	return checks.Find(append(all, cluster)...), nil
}

// status returns the state of a member, of which a login sends requests without its token.
func (s *store) status(ctx context.Context, endpoint string) (*clientv3.StatusResponse, error) {
	if s.user != nil && s.user.name != "" {
		t, err := s.user.get(ctx, s.client.ActiveConnection())
		if err != nil {
			return nil, err
		}
		var end func()
		ctx, end = t.with(ctx)
		defer end()
	}
	return s.client.Status(ctx, endpoint)
}

// clusterFacts reads the facts of the whole cluster.
func (s *store) clusterFacts(ctx context.Context, endpoints int) (examine.Facts, error) {
	alarms, err := limited(ctx, s.client.AlarmList)
	if err != nil {
		return nil, err
	}
	members, err := limited(ctx, func(ctx context.Context) (*clientv3.MemberListResponse, error) { return s.client.MemberList(ctx) })
	if err != nil {
		return nil, err
	}
	f := examine.Facts{"hosts in the URL": strconv.Itoa(endpoints), "members": strconv.Itoa(len(members.Members))}
	for _, a := range alarms.Alarms {
		f["alarm"] += fmt.Sprintf("%s at member %x ", a.Alarm, a.MemberID)
	}
	// A read of the first revision fails after a compaction.
	first, err := limited(ctx, func(ctx context.Context) (*clientv3.GetResponse, error) {
		return s.client.Get(ctx, s.lay.sentinel(clientv3.NoLease), clientv3.WithRev(1))
	})
	if err == nil {
		f["number of revisions, all of which are kept,"] = strconv.FormatInt(first.Header.Revision, 10)
	}
	s.mu.Lock()
	if s.minTTL > 0 {
		f["shortest lease in seconds"] = strconv.Itoa(int(s.minTTL / time.Second))
	}
	s.mu.Unlock()
	if s.user != nil {
		if left, known := s.user.lifetime(); known {
			f["rest of the login in seconds"] = strconv.Itoa(int(left.Round(time.Second) / time.Second))
		}
	}
	return f, nil
}

// lifetime returns how long the present token lasts, if it is a JWT. A simple token lasts as long as it is used.
func (l *login) lifetime() (left time.Duration, known bool) {
	t := l.newest.Load()
	if t == nil {
		return 0, false
	}
	parts := strings.Split(t.text, ".")
	var claims struct{ Exp int64 }
	if len(parts) != 3 {
		return 0, false
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil || json.Unmarshal(payload, &claims) != nil || claims.Exp == 0 {
		return 0, false
	}
	return max(time.Until(time.Unix(claims.Exp, 0)), time.Second), true
}
