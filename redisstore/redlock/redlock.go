package redlock

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/calls"
	"github.com/holdfast-go/holdfast/internal/held"
	"github.com/holdfast-go/holdfast/redisstore"
	"github.com/holdfast-go/holdfast/redisstore/internal/server"
)

const (
	fallbackInterval = time.Second     // limits how long a lost notification delays a waiter
	noticeTimeout    = 3 * time.Second // is how soon a holder notices that its grant has ended
)

// Store is one client of the locks on a fleet of servers. It implements [driver.Store], Inspector, Breaker and Exposer.
type Store struct{ *store }

type store struct {
	cfg     config
	nodes   []*node
	owned   bool // the stores of the nodes are closed with this one
	quorum  int
	where   string
	channel string

	calls *calls.Calls
	// life ends when Close has completed its work or has given up.
	life      context.Context
	giveUp    context.CancelFunc
	work      chan func() // the tasks for idle goroutines
	idle      atomic.Int32
	finished  chan struct{}
	probing   chan struct{}
	known     atomic.Bool
	advice    string           // about a fleet without votes; written before known is set
	tokens    server.HighWater // of the tokens that this client has seen
	listening sync.Once
	held      *held.Grants

	// A goroutine locks mu after the mutex of a ballot, never before it.
	mu           sync.Mutex
	ballots      map[string][]*ballot // requested, held, or not yet ended at every server; by request
	waiters      map[string]*waiter   // by request
	subscription chan struct{}        // replaced and closed when a subscription begins
}

var (
	_ driver.Store     = (*store)(nil)
	_ driver.Inspector = (*store)(nil)
	_ driver.Breaker   = (*store)(nil)
)

// New makes a store over one store for each server of a fleet: 3, 5 or 7 of them. It
// takes 1 to 15; an even number tolerates no more failures than one server less. The
// stores name single servers: under Sentinel, or in a Cluster, a primary may continue to vote
// beside the one that replaces it. New does not connect, and the store does not close them.
func New(stores []*redisstore.Store, options ...Option) (*Store, error) {
	c, err := configure(options)
	if err != nil {
		return nil, err
	}
	invalid := func(format string, args ...any) (*Store, error) {
		return nil, driver.Errorf(driver.CodeInvalid, "redlock: "+format, args...)
	}
	if len(stores) < 1 || len(stores) > maxServers {
		return invalid("%d servers: give 3, 5 or 7, at most %d", len(stores), maxServers)
	}
	s := &store{
		cfg: c, channel: "holdfast:redlock:wake:" + strings.ToLower(rand.Text()),
		quorum: len(stores)/2 + 1, // mutation: redlock-quorum
		calls:  calls.New(), finished: make(chan struct{}), probing: make(chan struct{}, 1), work: make(chan func()),
		ballots: map[string][]*ballot{}, waiters: map[string]*waiter{}, subscription: make(chan struct{}),
	}
	s.held = held.New(checkInterval, 0, s.checkHeld)
	var where []string
	for i, store := range stores {
		switch {
		case store == nil:
			return invalid("server %d is nil", i+1)
		case store.Client().Mode() != server.Standalone:
			return invalid("%s is a Cluster or a group under Sentinel: a fleet consists of single servers", store)
		case slices.Contains(where, store.String()):
			return invalid("%s is given twice: each server has one vote", store)
		}
		where = append(where, store.String())
		s.nodes = append(s.nodes, newNode(s, i, store))
	}
	s.where = "redlock over " + strings.Join(where, ", ")
	s.life, s.giveUp = context.WithCancel(context.Background())
	return &Store{s}, nil
}

// String returns where the locks live, without passwords.
func (s *store) String() string { return s.where }

// Exposed implements driver.Exposer.
func (s *store) Exposed() string {
	for _, n := range s.nodes {
		if e := n.store.Exposed(); e != "" {
			return e
		}
	}
	return ""
}

// GoString returns the same as String, so that %#v shows no password.
func (s *store) GoString() string { return s.where }

// Classify returns the code of an error of this store.
func (s *store) Classify(err error) driver.Code { return driver.CodeOf(err) }

// begin begins a call, and reads the states of the servers if no call has read them.
// The caller ends it with calls.Leave.
func (s *store) begin(ctx context.Context) error {
	if err := s.calls.Enter(); err != nil {
		return err
	}
	if err := s.readStates(ctx); err != nil {
		s.calls.Leave()
		return err
	}
	return nil
}

// task runs f in the background, and reports whether it does: not if the store is
// closed. Close waits for f.
func (s *store) task(f func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.life.Err() != nil {
		return false
	}
	s.calls.Tasks.Add(1)
	select {
	case s.work <- f:
	default:
		go s.serve(f)
	}
	return true
}

// serve runs f, and then further tasks, because each task would have to grow the stack
// of a new goroutine. At most two idle goroutines per server remain, for two requests
// to all servers.
func (s *store) serve(f func()) {
	for ok := true; ok; {
		f()
		s.calls.Tasks.Done()
		if int(s.idle.Add(1)) > 2*len(s.nodes) {
			s.idle.Add(-1)
			return
		}
		f, ok = <-s.work
		s.idle.Add(-1)
	}
}

// closeTimeout limits how long Close waits for servers that do not answer.
const closeTimeout = 2 * time.Second

// Close ends the waiting calls. It then waits, for at most two seconds or until ctx
// ends, until the servers have confirmed the releases and withdrawals under way. Grants
// stand until their TTL expires. At last it closes the stores that Open opened, all at
// once, and not those that were given to New.
func (s *store) Close(ctx context.Context) error {
	first := s.calls.Stop()
	s.held.Stop()
	if first {
		s.calls.Cancel()
		go func() {
			defer close(s.finished)
			timer := time.AfterFunc(closeTimeout, s.giveUp)
			s.calls.Running.Wait()
			s.calls.Tasks.Wait()
			timer.Stop()
			s.giveUp()
			s.mu.Lock()
			close(s.work) // task sends no more
			s.mu.Unlock()
			var below sync.WaitGroup // a store may wait for its server, which is silent
			for _, n := range s.nodes {
				if s.owned {
					below.Go(func() { _ = n.store.Close(context.WithoutCancel(ctx)) })
				}
			}
			below.Wait()
		}()
	}
	select {
	case <-s.finished:
		return nil
	case <-ctx.Done():
		if first {
			s.giveUp()
		}
		return ctx.Err()
	}
}

// readStates requests the state of every server, once, and returns when a quorum has answered.
func (s *store) readStates(ctx context.Context) error {
	if s.known.Load() {
		return nil
	}
	select {
	case s.probing <- struct{}{}:
	case <-ctx.Done():
		return driver.Errorf(driver.CodeUnavailable, "%w", context.Cause(ctx))
	}
	defer func() { <-s.probing }()
	if s.known.Load() {
		return nil
	}
	found := s.states(ctx, s.nodes, true)
	var answered int
	var failures []error
	byRun := map[string]string{}
	for i, f := range found {
		switch {
		case f.err == nil:
			answered++
			if first, twice := byRun[f.run]; twice && f.run != "" {
				return driver.Errorf(driver.CodeRefused, "%s and %s are one server, which has one vote", first, s.nodes[i].store)
			}
			byRun[f.run] = s.nodes[i].store.String()
		case driver.CodeOf(f.err) == driver.CodeRefused:
			// Even if a quorum answers: a server that refuses is set up in another way than the others, and without it the
			// fleet tolerates one failure less. After the first success here, it counts like one that does not answer.
			return f.err
		default:
			failures = append(failures, f.err)
		}
	}
	if answered < s.quorum {
		return s.unavailable("%d of %d servers answer, and a quorum is %d: %w", answered, len(s.nodes), s.quorum, errors.Join(failures...))
	}
	s.advice = s.adviseNew(found)
	if s.cfg.fresh {
		s.admitNew(ctx, found)
	}
	for i, f := range found {
		if f.err == nil && !f.votes() {
			s.nodes[i].admitSoon()
		}
	}
	s.known.Store(true)
	return nil
}

func (s *store) unavailable(format string, args ...any) error {
	return driver.Errorf(driver.CodeUnavailable, format, args...)
}

// Guarantees returns the guarantees of locks on this fleet. It reads the states of a
// quorum of the servers.
func (s *store) Guarantees(ctx context.Context) (driver.Guarantees, error) {
	if err := s.begin(ctx); err != nil {
		return driver.Guarantees{}, err
	}
	defer s.calls.Leave()
	return s.guarantees(), nil
}

func (s *store) guarantees() driver.Guarantees {
	n := len(s.nodes)
	g := driver.Guarantees{
		Kind: "redlock", Scope: driver.ScopeNetwork, Reach: "every client of the same servers",
		Crash: driver.CrashFreesAfterTTL, Pause: driver.PauseLoses,
		Order: driver.OrderLongest, Wake: driver.WakePush, Fallback: fallbackInterval, TryFirst: true,
		Tokens: "above the counters of a majority, and at least the servers' clock in microseconds. " +
			"They may fall only if a majority loses its data and its clocks were set back",
		EarlyEnd: []string{"the deletion of its key on so many servers that no quorum is left", "the clocks of several servers set forward within its TTL, or of one unseen"},
		Notice:   noticeTimeout,
		MinTTL:   minTTL, MaxTTL: s.cfg.maxTTL, Granularity: time.Millisecond, LeftoversExpire: true,
		Linger: true, Break: driver.BreakNow, Visible: driver.VisibleHolders,
		Notes: []string{
			fmt.Sprintf("a grant needs %d of %d servers, so %d may fail", s.quorum, n, n-s.quorum),
			fmt.Sprintf("a server that was restarted, or lost its data, has no vote for %s; a server whose clock differs by more than %s has no vote", s.cfg.maxTTL, s.cfg.skew),
			fmt.Sprintf("a crash frees a name %s after its TTL", 2*s.cfg.skew),
		},
	}
	if n < 3 || n%2 == 0 {
		g.Notes = append(g.Notes, fmt.Sprintf("WARNING: use 3, 5 or 7 servers: %d servers tolerate only %d failures", n, n-s.quorum))
	}
	if s.cfg.redsync {
		g.Notes = append(g.Notes, "redsync ignores that a vote is withheld and that others wait, writes no tokens and notifies no waiters")
	}
	if s.cfg.unprotected {
		g.Notes = append(g.Notes, "WARNING: unprotected: servers that lost their data vote at once")
	}
	return g
}
