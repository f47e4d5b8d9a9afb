// Package layouts keeps locks on a Redis server in the formats of other client libraries, so that programs with
// such a library and programs with holdfast share locks.
//
//	s, err := layouts.Open(ctx, "redis://localhost:6379", layouts.Redisson)
//
// or, with a blank import of package redisstore, a URL with the parameter layout, as in
// redis://localhost:6379?layout=redisson. docs/redis-layouts.md describes what each layout can do. The client, the
// probes of the servers, the check of held locks, replicas and failover are those of package redisstore.
//
// # Why it is safe
//
// Each step is one script that makes the same transition as the other client's own. Before
// it grants it checks what the other client would check, so the two exclude each other by
// the server's order of scripts. The owner that it writes is unique to the request. So the
// script ends no lock but its own, and no other client takes the owner for a re-entry. A grant
// ends by its lease at the server, or by a script that names its owner.
//
// The scripts handle a request without an answer as package redisstore does. It carries the
// server's time after which the server refuses it. Until then an undo and a release leave
// the request's ID behind, and a break leaves its owner. They are in a key beside the lock,
// which expires. The other clients do not read that key.
//
// A script executes each command that the server may refuse before it changes the lock, and
// then commands that the server has just accepted. So a missing right, a full server or a
// hash slot that moves leaves a lock as it was.
//
// In the layout plain, a release and a renewal are one command of the server, which
// compares the whole value. Servers without such a command run a script. The value is
// unique to the grant, so a late or repeated command has no effect on another grant. The
// client relies only on the answer that the command was applied. After any other answer it
// runs the script.
//
// All deadlines are by the server's clock. Where Redisson writes the Java client's wall
// clock (queue entries of a fair lock, permits), the scripts write the server's time in the
// same unit. A Java client whose clock is ahead then ends them early. The guarantees state
// that. Holders notice it within three seconds, and waiters queue again.
//
// # Waiting
//
// A waiter sends a request, subscribes, and sends the request again. It repeats the request when a message
// comes, when the holder's lease expires, and after a second. So a lost message of another client costs a
// second, and not a lease. Where other clients send no messages, it repeats the request as often as they do.
//
// Other clients keep no queue entry, so the first request after a release gets the lock. A message
// reaches a waiter of this process sooner than a waiter in Java, and a client that locks again at once
// overtakes every waiter that polls. Two rules keep each side from starving the other:
//
//   - A turn is a run of grants of this process, without a pause in which another client would have got
//     the lock. It ends with the first release after the length of the turn. The waiters of this process then
//     send no request for a while. In the layouts with messages there are turns only after a sign of
//     another client: it listens for the message of a release, or holds the name. No client sees the
//     waiters that poll, so in the layouts without messages every run is a turn.
//   - In the layouts without messages, a waiter that sees the lock pass from one grant of another client
//     to another was overtaken, and polls every millisecond.
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
	compares conditional
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
	own   string
	value string // of the name's key, in the layout plain
}

// Option changes how a store is opened. The options are [FairWait], and those of package redisstore:
// Namespace, WaitReplicas and Insist.
type Option = server.Option

// FairWait sets how long a dead waiter of a fair lock delays the waiters behind it: 1 s to 24 h.
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
