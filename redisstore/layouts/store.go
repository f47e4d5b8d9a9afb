package layouts

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/redisstore/internal/server"
)

// Store is one client of the locks in a layout. It implements [driver.Store], Inspector, Breaker, Watcher, Values and
// Exposer.
type Store struct{ *store }

type store struct {
	common
	srv      *server.Server
	layout   Layout
	rules    *rules
	verbs    *verbs
	client   string // its UUID
	channels *channels
	turns    turns
}

// common has the methods that do not depend on the layout of the locks.
type common = server.Store

var (
	_ driver.Store     = (*store)(nil)
	_ driver.Inspector = (*store)(nil)
	_ driver.Breaker   = (*store)(nil)
	_ driver.Watcher   = (*store)(nil)
	_ driver.Values    = (*store)(nil)
)

// handle is the store's own data in a grant.
type handle struct {
	server.Lease
	own string
}

// Option changes how a store is opened. The options are [FairWait], and those of package redisstore:
// Namespace, WaitReplicas and Insist.
type Option = server.Option

// FairWait sets how long each dead waiter of a fair lock that is free delays the waiters behind it: 1 s to 24 h.
// It has to equal the fairLockWaitTimeout of the Java clients. The default is 5 minutes, as in
// Redisson.
func FairWait(d time.Duration) Option { return func(c *server.Config) { c.FairWait = d } }

// Limits and default of FairWait.
const (
	defaultFairWait = 5 * time.Minute
	minFairWait     = time.Second
	maxFairWait     = 24 * time.Hour
)

// Open opens the locks in a layout on the server that a URL names. It does not connect yet. The URLs are
// those of redisstore.Open, with one more parameter:
//
//	fair_wait=5m              as FairWait
//
// If the URL has the parameter layout, it names the same layout.
func Open(_ context.Context, rawURL string, l Layout, options ...Option) (*Store, error) {
	t, err := server.ParseURL(rawURL)
	if err != nil {
		return nil, err
	}
	if t.Layout != "" && t.Layout != string(l) {
		return nil, driver.Errorf(driver.CodeInvalid, "redisstore: layout %q: the URL has the layout %q", l, t.Layout)
	}
	cfg, err := configure(l, t.Options(options))
	if err != nil {
		return nil, err
	}
	c, err := t.Connect()
	if err != nil {
		return nil, err
	}
	return newStore(c, l, cfg), nil
}

// New returns a store in a layout over a *redis.Client, also one of NewFailoverClient, or over a
// *redis.ClusterClient. The caller closes the client, after the store.
func New(c redis.UniversalClient, l Layout, options ...Option) (*Store, error) {
	over, err := server.NewClient(c)
	if err != nil {
		return nil, err
	}
	return NewOver(over, l, options...)
}

// NewOver returns a store whose requests another redisstore.Client sends, which the store closes.
func NewOver(c server.Client, l Layout, options ...Option) (*Store, error) {
	if c == nil {
		return nil, server.ErrNoClient
	}
	cfg, err := configure(l, options)
	if err != nil {
		return nil, err
	}
	return newStore(c, l, cfg), nil
}

// configure returns the settings by options, or an error if the layout does not exist or does not have them.
func configure(l Layout, options []Option) (server.Config, error) {
	c, err := server.Configure(options)
	_, known := layouts[l]
	switch {
	case err != nil:
		return c, err
	case !known:
		return c, driver.Errorf(driver.CodeInvalid, "redisstore: layout %q: there are %s", l, allNames())
	case c.FairWait == 0:
		c.FairWait = defaultFairWait
	case l != RedissonFair:
		return c, driver.Errorf(driver.CodeInvalid, "redisstore: fair wait %s: only the layout %s has a fair lock", c.FairWait, RedissonFair)
	case c.FairWait < minFairWait || c.FairWait > maxFairWait:
		return c, driver.Errorf(driver.CodeInvalid, "redisstore: fair wait %s: give %s to %s", c.FairWait, minFairWait, maxFairWait)
	}
	return c, nil
}

func newStore(c server.Client, l Layout, cfg server.Config) *Store {
	r := layouts[l]
	s := &store{layout: l, rules: r, verbs: loadVerbs(l, r), client: newUUID()}
	s.turns = turns{yield: r.yield, polls: r.poll > 0, all: map[string]*turn{}}
	s.srv, s.common = server.New(c, cfg, server.Recipe{
		Declare: s.declare, Renew: s.renew, Undo: s.undoAll, Check: s.check, Inspect: s.inspectAll, Names: s.names,
		Keys: func() []string { return append(s.call(&step{key: s.key("*")}).Keys, "holdfast:*") },
		Break: func(ctx context.Context, name, token string) (server.Reply, error) {
			return s.eval(ctx, s.verbs.take, &step{key: s.key(name), verbArg: token})
		},
	})
	s.channels = newChannels(s.srv)
	return &Store{s}
}

// bucket returns the bucket of a name's high-water mark.
func (s *store) bucket(name string) uint16 {
	return server.Bucket(s.srv.Config.Namespace, "\x00", name)
}
