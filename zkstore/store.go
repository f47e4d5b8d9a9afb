package zkstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/internal/calls"
	"github.com/holdfast-go/holdfast/internal/contact"
	"github.com/holdfast-go/holdfast/internal/storeurl"
	"github.com/holdfast-go/holdfast/zkstore/internal/zk"
)

// Store is one client of a ZooKeeper ensemble. It has a session for each TTL, rounded up to a tick. It implements
// [driver.Store], Inspector, Breaker, Watcher, Swapper, Values and Exposer.
type Store struct{ *store }

type store struct {
	cfg     config
	servers []string // of the URL
	// following are the servers of the URL, and those that the ensemble has listed.
	following atomic.Pointer[[]string]
	where     string
	home      string // the parent of the names' nodes
	recipe    recipe

	calls   *calls.Calls
	reached contact.Contact

	refused backoff.Refused // the user

	longest  calls.Shared[struct{}, time.Duration] // the longest TTL that the server allows
	sessions calls.Shared[time.Duration, *session]
	writing  calls.Shared[struct{}, *zk.Session] // the session of guarded writes

	mu sync.Mutex
	// unanswered are the requests with a create that has no answer, by ID. A node of it may exist or
	// still appear.
	unanswered map[string]pendingCreate
	// acquiring are the requests whose Acquire has not returned.
	acquiring map[string]struct{}
	// mark is the high-water mark of the tokens of sessions that were forgotten.
	mark uint64
	// acceptedSize is the longest request that a server has been found to accept.
	acceptedSize atomic.Int64
}

// pendingCreate is the session and the connection of a create that has no answer. The connection is
// 0 if the create may be on any of the session's connections.
type pendingCreate struct {
	ss   *session
	conn int
}

// Open opens the locks at the servers of a URL. The client connects at the first use, so that
// an unreachable server is no error.
//
//	zk://[USER:PASSWORD@]HOST[:PORT][,HOST[:PORT]...][/ROOT]
//
// The default port is 2181. Parameters, all optional:
//
//	layout=readwrite          as WithLayout
//	tick=2s, grace=5s         as Tick and BreakGrace
//	acl=creator               as CreatorOnly
//	tls=true                  connections use TLS; then also:
//	ca=FILE                   PEM certificates to accept instead of the system's
//	cert=FILE, key=FILE       the client's own certificate
//	server_name=NAME          the name in the server's certificate
//
// There is no constructor for a connection that the caller has made. No other client library
// reports the facts about a session on which the validity of a lock depends.
func Open(_ context.Context, rawURL string, options ...Option) (*Store, error) {
	u, err := storeurl.Parse(rawURL, "zk")
	if err != nil {
		return nil, driver.Errorf(driver.CodeInvalid, "zkstore: %w", err)
	}
	return openParsed(u, options...)
}

func openParsed(u *url.URL, options ...Option) (*Store, error) {
	servers, fromURL, err := parseURL(u)
	if err != nil {
		return nil, err
	}
	c, servers, err := configure(servers, append(fromURL, options...))
	if err != nil {
		return nil, err
	}
	s := &store{
		cfg: c, servers: servers, recipe: recipes[c.layout],
		home: c.chroot, calls: calls.New(),
		unanswered: map[string]pendingCreate{}, acquiring: map[string]struct{}{},
	}
	s.longest = calls.Shared[struct{}, time.Duration]{Calls: s.calls, Timeout: openTimeout, Make: s.requestLongestTTL}
	s.sessions = calls.Shared[time.Duration, *session]{Calls: s.calls, Timeout: openTimeout, Make: s.newSession, Over: s.sessionOver}
	s.writing = calls.Shared[struct{}, *zk.Session]{Calls: s.calls, Timeout: openTimeout, Make: s.newWriter, Over: func(w *zk.Session) bool { return w.Ended() != nil }}
	s.following.Store(&servers)
	s.cfg.dial = s.reached.Through(c.dial)
	if c.namespace != "" {
		// The x keeps escape from treating the namespace as the start of a node's name.
		s.home += "/" + namespaceMark + strings.TrimPrefix(escape("x"+c.namespace), "x")
	}
	s.where = "zk://" + strings.Join(servers, ",") + c.chroot
	if c.layout != ReadWrite {
		s.where += " (layout " + string(c.layout) + ")"
	}
	if c.namespace != "" {
		s.where += fmt.Sprintf(" (namespace %s)", c.namespace)
	}
	return &Store{s}, nil
}

// String returns where the locks are.
func (s *store) String() string { return s.where }

// GoString returns the same as String, so that %#v shows no password.
func (s *store) GoString() string { return s.where }

// Exposed implements driver.Exposer.
func (s *store) Exposed() string { return s.cfg.exposed }

// dir returns the node of a name.
func (s *store) dir(name string) string { return s.home + "/" + escape(name) }

// slack returns the difference between a session's timeout and its TTLs. It covers a tick that the
// proof subtracts, twice the interval of heartbeats, and the time that the answers travel.
func (s *store) slack() time.Duration { return 4 * s.cfg.tick }

// heartbeat returns the interval of heartbeats.
func (s *store) heartbeat() time.Duration { return s.cfg.tick + s.cfg.tick/5 }

// round rounds a requested TTL up to whole ticks, as the store grants it.
func (s *store) round(ttl time.Duration) time.Duration {
	t := s.cfg.tick
	return max((ttl+t-1)/t*t, t)
}

func (s *store) clientConfig(timeout time.Duration) zk.Config {
	return zk.Config{
		Servers:   func() []string { return *s.following.Load() },
		Timeout:   timeout,
		Heartbeat: s.heartbeat(),
		Tick:      s.cfg.tick,
		Dial:      s.cfg.dialer(),
		Auth:      s.cfg.auth,
		Refused:   &s.refused,
	}
}

// longestTTL returns the longest TTL that the server allows. It requests it once.
func (s *store) longestTTL(ctx context.Context) (time.Duration, error) {
	return opened(ctx, s, &s.longest, struct{}{})
}

// openTimeout is the timeout of an attempt to open a session, and to verify that one has ended.
const openTimeout = 5 * time.Second

// opened returns a shared value, which is opened if necessary. No request was sent if that fails.
func opened[K comparable, T any](ctx context.Context, s *store, v *calls.Shared[K, T], key K) (T, error) {
	value, err := v.Get(ctx, key)
	if err != nil && ctx.Err() != nil {
		err = &zk.NotSentError{Err: ctx.Err()}
	}
	return value, s.fail(err)
}

// requestLongestTTL returns the longest TTL that the server allows. It returns an error for a server
// whose tick is longer than configured.
func (s *store) requestLongestTTL(ctx context.Context, _ struct{}) (time.Duration, error) {
	least, most, err := zk.Limits(ctx, s.clientConfig(0))
	if err != nil {
		return 0, &zk.NotSentError{Err: err}
	}
	if least > 2*s.cfg.tick {
		return 0, driver.Errorf(driver.CodeRefused, "zkstore: the server's least session timeout is %s, which is twice its tickTime unless configured: it ticks slower than the %s that were assumed; give tick=%s", least, s.cfg.tick, (least+1)/2)
	}
	_ = s.reached.Explain(nil) // records that a server has answered
	longest := (most - s.slack()) / s.cfg.tick * s.cfg.tick
	if longest < s.cfg.tick {
		return 0, driver.Errorf(driver.CodeRefused, "zkstore: the server's longest session timeout is %s: at least %s are needed (five ticks of %s)", most, s.slack()+s.cfg.tick, s.cfg.tick)
	}
	return longest, nil
}

// Guarantees returns the guarantees of this store. The first call reads the session timeouts
// that the server allows.
func (s *store) Guarantees(ctx context.Context) (driver.Guarantees, error) {
	if s.calls.Stopped() {
		return driver.Guarantees{}, errClosed()
	}
	longest, err := s.longestTTL(ctx)
	if err != nil {
		return driver.Guarantees{}, err
	}
	return s.guarantees(longest), nil
}

// session returns the session for a TTL, and opens it if necessary.
func (s *store) session(ctx context.Context, ttl time.Duration) (*session, error) {
	longest, err := s.longestTTL(ctx)
	if err != nil {
		return nil, err
	}
	if ttl > longest {
		return nil, driver.Errorf(driver.CodeInvalid, "zkstore: TTL %s: this server's sessions carry at most %s (its maxSessionTimeout less %s)", ttl, longest, s.slack())
	}
	return opened(ctx, s, &s.sessions, ttl)
}

// sessionOver reports whether a session has ended. Then its successor begins above its tokens.
func (s *store) sessionOver(ss *session) bool {
	if ss.zk.Ended() == nil {
		return false
	}
	mark := ss.highest()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mark = max(s.mark, mark)
	return true
}

// anySession returns a session for a request without a TTL: an existing one, or a new one.
func (s *store) anySession(ctx context.Context) (*session, error) {
	for _, ss := range s.liveSessions() {
		if ss.zk.Conn() != 0 {
			return ss, nil
		}
	}
	longest, err := s.longestTTL(ctx)
	if err != nil {
		return nil, err
	}
	return s.session(ctx, min(longest, s.round(5*s.cfg.tick)))
}

// liveSessions returns the sessions that have not ended.
func (s *store) liveSessions() []*session {
	made := slices.Collect(maps.Values(s.sessions.Made()))
	return slices.DeleteFunc(made, func(ss *session) bool { return ss.zk.Ended() != nil })
}

// Close ends the sessions, and with them every grant and queue entry of this client.
func (s *store) Close(ctx context.Context) error {
	if !s.calls.Stop() {
		return nil
	}
	all := s.liveSessions()
	errs := make([]error, len(all))
	var closing sync.WaitGroup
	closing.Go(func() { s.closeWriting(ctx) })
	for i, ss := range all {
		closing.Go(func() {
			if errs[i] = ss.zk.Close(ctx); errs[i] == zk.ErrExpired {
				errs[i] = s.verifyEnded(ctx, ss)
			}
		})
	}
	closing.Wait()
	s.calls.Cancel() // sessions that were opened meanwhile are abandoned
	s.calls.Tasks.Wait()
	if i := slices.IndexFunc(errs, func(err error) bool { return err != nil }); i >= 0 {
		return &driver.Error{Code: driver.CodeUnavailable, Err: fmt.Errorf("closing: the session is left to expire: %w", errs[i])}
	}
	return nil
}

// verifyEnded verifies that a session has ended. One server has reported it as expired (see
// invalidateSession). A new session writes to the guard node, and only a leader with a majority
// answers a write.
func (s *store) verifyEnded(ctx context.Context, ss *session) error {
	ctx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	client, err := zk.Open(ctx, s.clientConfig(s.slack()+s.cfg.tick))
	if err != nil {
		return err
	}
	defer client.Close(ctx)
	path, _ := ss.guard()
	for {
		c := zk.Set(path, nil, -1)
		err := client.Do(ctx, c)
		switch {
		case err == nil && errors.Is(c.Err, zk.ErrNoNode):
			return nil
		case err == nil:
			return cmp.Or(c.Err, errors.New("a server reports that it expired, and its nodes still exist"))
		case ctx.Err() != nil || client.Ended() != nil:
			return err
		}
	}
}

var _ interface {
	driver.Store
	driver.Inspector
	driver.Breaker
	driver.Watcher
	fmt.Stringer
} = (*store)(nil)
