// Package holdfasttest tests a service that uses locks.
//
// [Store] is a memory store whose calls a test disturbs: it stops, delays, refuses and loses them, by the test's own
// script or by a seed. [LoseAtEachStep] finds the steps at which the service works without a lock.
//
// Both need no server, and work in real time and in a testing/synctest bubble.
package holdfasttest

import (
	"context"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/internal/link"
	"github.com/holdfast-go/holdfast/memstore"
)

// Store is one client of a memory store. It implements [driver.Store], so holdfast.New takes it. Its methods
// disturb the calls of this client only; give each instance of a service a [Store.Client] of its own. They take
// effect at the next call, last until Heal, and are safe for concurrent use. Inspections, Break and Watch are never
// disturbed.
//
// Script simulates failures of the store itself, for all its clients: it loses held locks, fails renewals, and
// more.
type Store struct {
	*memstore.Store
	link link.Link
}

// NewStore returns a client of a new, empty store. Nothing disturbs it yet.
func NewStore() *Store { return &Store{Store: memstore.New()} }

// Client returns another client of the same locks, as in another process. Nothing disturbs it yet.
func (s *Store) Client() *Store { return &Store{Store: s.Store.Client()} }

// Namespace returns another client of the same store with names of its own. Nothing disturbs it yet.
func (s *Store) Namespace(namespace string) *Store {
	return &Store{Store: s.Store.Namespace(namespace)}
}

// Partition stops all requests and answers until Heal. A call waits for Heal, at most until its context ends; then its
// outcome is unknown. A partition that lasts for the TTL of a lock loses it, as a pause of the process does.
func (s *Store) Partition() { s.link.Cut() }

// LoseAnswers loses the next n answers: the store executes the requests, and their outcome is unknown to the
// client. 0 ends that.
func (s *Store) LoseAnswers(n int) { s.link.Lose(n) }

// Refuse refuses the next n requests, as a server does if the client lacks a right. The store does not execute
// them. 0 ends that.
func (s *Store) Refuse(n int) { s.link.Refuse(n) }

// Delay delays every request and every answer by a time. 0 ends that. A renewal with a larger delay than the request
// timeout, a third of the TTL and at most 5 s, has no answer.
func (s *Store) Delay(request, answer time.Duration) { s.link.Delay(request, answer) }

// Heal ends all disturbances of this client.
func (s *Store) Heal() { s.link.Heal() }

// Disturb disturbs this client until ctx ends, and then heals it. It partitions, loses up to three answers, refuses up
// to three requests, delays by up to an eighth of ttl, or breaks a held lock of any client, one after another.
// Each disturbance, and each pause after it, lasts for up to twice ttl: give the TTL of the service's locks, 30 s
// by default. The seed decides the kinds and the times: equal seeds disturb equally.
func (s *Store) Disturb(ctx context.Context, seed uint64, ttl time.Duration) {
	defer s.Heal()
	r := rand.New(rand.NewPCG(seed, 0))
	upTo := func(d time.Duration) time.Duration { return time.Duration(r.Int64N(int64(max(d, 1)))) }
	for ctx.Err() == nil {
		kind, n, out, in := r.IntN(5), 1+r.IntN(3), upTo(ttl/8), upTo(ttl/8)
		lasts, pause := upTo(2*ttl), upTo(2*ttl)
		switch kind {
		case 0:
			s.Partition()
		case 1:
			s.LoseAnswers(n)
		case 2:
			s.Refuse(n)
		case 3:
			s.Delay(out, in)
		default:
			if names := s.held(); len(names) > 0 {
				_ = s.Script().Lose(names[n%len(names)], driver.CauseTaken) // the holder may have released it just now
			}
		}
		_ = backoff.Sleep(ctx, lasts)
		s.Heal()
		_ = backoff.Sleep(ctx, pause)
	}
}

// held returns the names that a client holds, without those that are only kept for a minimum hold.
func (s *Store) held() (names []string) {
	for st := range s.List(context.Background(), "") {
		for _, h := range st.Holders {
			if !h.Kept {
				names = append(names, st.Name)
				break
			}
		}
	}
	return names
}

// Classify implements [driver.Store].
func (s *Store) Classify(err error) driver.Code { return link.Classify(s.Store, err) }

// Acquire implements [driver.Store].
func (s *Store) Acquire(ctx context.Context, r driver.Request) (g driver.Grant, err error) {
	err = s.link.Call(ctx, func() error { g, err = s.Store.Acquire(ctx, r); return err })
	return g, err
}

// Undo implements [driver.Store].
func (s *Store) Undo(ctx context.Context, r driver.Request) error {
	return s.link.Call(ctx, func() error { return s.Store.Undo(ctx, r) })
}

// Renew implements [driver.Store].
func (s *Store) Renew(ctx context.Context, grants []driver.Grant) (answers []driver.Renewal) {
	err := s.link.Call(ctx, func() error { answers = s.Store.Renew(ctx, grants); return nil })
	if err != nil {
		return slices.Repeat([]driver.Renewal{{Err: err}}, len(grants))
	}
	return answers
}

// Release implements [driver.Store].
func (s *Store) Release(ctx context.Context, g driver.Grant, keep time.Duration) error {
	return s.link.Call(ctx, func() error { return s.Store.Release(ctx, g, keep) })
}

// Get implements [driver.Values].
func (s *Store) Get(ctx context.Context, key string) (data []byte, version string, err error) {
	err = s.link.Call(ctx, func() error { data, version, err = s.Store.Get(ctx, key); return err })
	return data, version, err
}

// Put implements [driver.Values].
func (s *Store) Put(ctx context.Context, key string, data []byte, version string) (next string, err error) {
	err = s.link.Call(ctx, func() error { next, err = s.Store.Put(ctx, key, data, version); return err })
	return next, err
}
