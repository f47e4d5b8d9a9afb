// Package server has what the stores on Redis have in common, whatever the layout of their locks: the client
// and the requests of the servers, the probes of the servers, the estimate of their clock, the life of calls,
// and the check of held grants.
package server

import (
	"context"
	"maps"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/calls"
	"github.com/holdfast-go/holdfast/internal/held"
)

// Server is the Redis of one store: a server, or those of a Cluster.
type Server struct {
	*calls.Calls
	Client    Client
	Config    Config
	Clock     Clock
	HighWater HighWater
	// Held has the grants that the store has returned. Their handles have a [Lease].
	Held *held.Grants
	// Spread is true if the keys of two names may be on different servers: see compareServers.
	Spread atomic.Bool

	recipe    Recipe
	lastOwner atomic.Pointer[encodedOwner]
	finished  chan struct{}

	probing chan struct{} // a semaphore: one probe at a time
	probed  atomic.Pointer[findings]
	// reconnected is when the store last made the client open new connections, by Micros.
	reconnected atomic.Int64

	mu        sync.Mutex
	late      map[string]int64 // until when a request without an answer may arrive, by ID
	lateLimit int              // the number of records in late at which RecordLate removes old ones
}

// Recipe has the functions of a store that depend on its layout. The store has begun the call.
type Recipe struct {
	// Declare completes the guarantees.
	Declare func(g *driver.Guarantees)
	// Renew sets new deadlines. The lease at the server gets lead in addition to the TTL.
	Renew func(ctx context.Context, grants []driver.Grant, lead time.Duration) []driver.Renewal
	// Undo removes what the server has of a request, and makes it refuse the request until lateUntil.
	Undo func(ctx context.Context, r *driver.Request, lateUntil int64) error
	// Break ends the grant of a token. The answer is R, or another letter if there is no such grant.
	Break func(ctx context.Context, name, token string) (Reply, error)
	// Check calls Prove or Lose of Held for grants. A failed check does nothing: if the renewals fail as
	// well, the validity of the grants ends.
	Check func(ctx context.Context, due []*held.Grant)
	// Inspect returns the states of names, in their order.
	Inspect func(ctx context.Context, names []string) []Inspected
	// Names returns the names that begin with prefix and may be held, in byte order.
	Names func(ctx context.Context, prefix string) ([]string, error)
	// Keys returns patterns of all keys of the locks. It is nil if these begin with holdfast:.
	Keys func() []string
	// Rival returns the key in which other client libraries keep a lock of the name. It is nil in their layouts.
	Rival func(name string) string
	// Closed waits for what the store does beside its calls, after the client was closed. It may be nil.
	Closed func()
}

// Store has the methods of driver.Store and of its extensions that all stores have in common.
type Store struct{ s *Server }

func (b *Store) server() *Server { return b.s }

// Of returns the Server of a store that embeds Store.
func Of(store interface{ server() *Server }) *Server { return store.server() }

// New returns the Server of a store, and the methods that the store embeds.
func New(c Client, cfg Config, r Recipe) (*Server, Store) {
	s := &Server{
		Calls: calls.New(), Client: c, Config: cfg, recipe: r, probing: make(chan struct{}, 1), finished: make(chan struct{}),
		late: map[string]int64{}, lateLimit: minLateLimit,
	}
	s.Held = held.New(checkInterval, provenFor, s.check)
	return s, Store{s}
}

// String returns where the locks are, without a password.
func (b *Store) String() string { return b.s.Client.String() }

// GoString returns the same as String, so that %#v shows no password.
func (b *Store) GoString() string { return b.String() }

// Exposed implements driver.Exposer for a store that was opened by URL.
func (b *Store) Exposed() string { return b.s.Config.Exposed }

// Classify returns the code of an error of this store.
func (b *Store) Classify(err error) driver.Code { return driver.CodeOf(err) }

// Begin begins a call, and probes the server if no probe has been made. The caller ends it with Leave.
func (s *Server) Begin(ctx context.Context) error {
	if err := s.Enter(); err != nil {
		return err
	}
	if _, err := s.firstFindings(ctx); err != nil {
		s.Leave()
		return err
	}
	return nil
}

// Close ends the waiting calls, withdraws their requests, and closes the client, unless the caller has
// opened the client. If ctx ends first, Close returns its error and the rest continues in the background; a
// second Close waits for it. Grants stay at the server until their TTL expires.
func (b *Store) Close(ctx context.Context) error {
	s := b.s
	s.Held.Stop()
	if s.Stop() {
		s.Cancel()
		calls.Wait(ctx, &s.Running)
		go func() { // the client's Close may wait for a silent server
			defer close(s.finished)
			s.Client.Close()
			if s.recipe.Closed != nil {
				s.recipe.Closed()
			}
			s.Tasks.Wait()
		}()
	}
	select {
	case <-s.finished:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Undo removes a queue entry or a grant by its ID. The server keeps a tombstone of the ID, so
// that it refuses a delayed request. It keeps the tombstone until it would refuse the request as
// too old.
func (b *Store) Undo(ctx context.Context, r driver.Request) error {
	s := b.s
	if err := driver.CheckName(r.Name); err != nil || r.ID == "" {
		return driver.Errorf(driver.CodeInvalid, "redisstore: undoing id %q of name %q", r.ID, r.Name)
	}
	if err := s.Begin(ctx); err != nil {
		return err
	}
	defer s.Leave()
	s.mu.Lock()
	lateUntil, known := s.late[r.ID]
	if !known {
		lateUntil = s.Clock.Deadline()
		s.recordLate(r.ID, lateUntil)
	}
	s.mu.Unlock()
	s.Held.Forget(r.ID)
	err := s.recipe.Undo(ctx, &r, lateUntil)
	if err == nil {
		s.mu.Lock()
		delete(s.late, r.ID)
		s.mu.Unlock()
	}
	return err
}

// Break ends a grant, and notifies its holder or the waiters.
func (b *Store) Break(ctx context.Context, name string, token uint64) error {
	s := b.s
	if err := driver.CheckName(name); err != nil {
		return driver.Errorf(driver.CodeInvalid, "redisstore: %w", err)
	}
	if err := s.Begin(ctx); err != nil {
		return err
	}
	defer s.Leave()
	rep, err := s.recipe.Break(ctx, name, strconv.FormatUint(token, 10))
	if err == nil && rep.Kind != 'R' {
		err = driver.NotHeld(name, token)
	}
	return err
}

// RecordLate records until when a request that ended with err may arrive, if its outcome is unknown and
// lateUntil is not 0.
func (s *Server) RecordLate(id string, err error, lateUntil int64) {
	if driver.CodeOf(err) != driver.CodeUnknown || lateUntil == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.recordLate(id, lateUntil)
}

// recordLate records until when a request without an answer may arrive. The request may never be undone, so
// each time that the records have doubled, recordLate removes those whose time has passed. The caller holds
// the mutex.
func (s *Server) recordLate(id string, until int64) {
	s.late[id] = until
	if len(s.late) < s.lateLimit {
		return
	}
	passed := s.Clock.Now() - Window.Microseconds()
	maps.DeleteFunc(s.late, func(_ string, until int64) bool { return until < passed })
	s.lateLimit = max(minLateLimit, 2*len(s.late))
}
