package server

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/internal/calls"
)

// Limits of a lease.
const (
	MinTTL = time.Millisecond
	MaxTTL = 24 * time.Hour
)

// CheckRequest returns an error for a request that the scripts of a store cannot encode.
func CheckRequest(store string, r *driver.Request) error {
	bad := r.ID == "" || len(r.ID) > 40 || r.Limit < 1 || r.Limit > driver.Unlimited || r.From == nil
	for _, c := range []byte(r.ID) {
		bad = bad || c != '-' && (c < '0' || c > '9') && (c < 'A' || c > 'Z') && (c < 'a' || c > 'z')
	}
	if err := driver.CheckName(r.Name); err != nil || bad {
		return driver.Errorf(driver.CodeInvalid, "%s: a request of id %q, name %q, limit %d", store, r.ID, r.Name, r.Limit)
	}
	return nil
}

// WithdrawnIfEnded gives the error of a request without effect the code CodeWithdrawn, if ctx has
// ended.
func WithdrawnIfEnded(ctx context.Context, err error) error {
	if driver.CodeOf(err) == driver.CodeUnavailable && ctx.Err() != nil {
		return &driver.Error{Code: driver.CodeWithdrawn, Err: err}
	}
	return err
}

// BeginRequest is Begin for an Acquire, after a check of the request.
func (s *Server) BeginRequest(ctx context.Context, r *driver.Request) error {
	if err := CheckRequest("redisstore", r); err != nil {
		return err
	}
	if r.TTL < MinTTL || r.TTL > MaxTTL {
		return driver.Errorf(driver.CodeInvalid, "redisstore: TTL %s: give %s to %s", r.TTL, MinTTL, MaxTTL)
	}
	if err := s.Begin(ctx); err != nil {
		return WithdrawnIfEnded(ctx, err)
	}
	if err := ctx.Err(); err != nil {
		s.Leave()
		return &driver.Error{Code: driver.CodeWithdrawn, Err: err}
	}
	return nil
}

// Reply is the answer of a script.
type Reply struct {
	Kind   byte
	Now    int64 // the server's time; 0 if the script does not return it
	Values []string
	Sent   driver.Instant
}

// EndCause returns the cause of the end of a grant, from the answer to a renewal or a check.
func (r *Reply) EndCause() driver.Cause {
	if r.Kind == 'T' {
		return driver.CauseTaken
	}
	return driver.CauseGone
}

// HandleOf returns the handle of a grant of this store.
func HandleOf[H any](g *driver.Grant) (H, error) {
	h, ok := g.Handle.(H)
	if !ok {
		return h, driver.Errorf(driver.CodeInvalid, "redisstore: a grant of another store")
	}
	return h, nil
}

// Digit returns a truth value as an argument of a script.
func Digit(b bool) string {
	if b {
		return "1"
	}
	return "0"
}

// Eval runs a script whose answer starts with a letter and the server's time.
func (s *Server) Eval(ctx context.Context, sc *Script, keys, args []string) (Reply, error) {
	sent, at := driver.Now(), Micros()
	values, err := s.Client.Eval(ctx, sc, keys, args)
	return s.Read(sc, keys, sent, at, values, err)
}

// Result is the outcome of one of several calls.
type Result struct {
	Reply Reply
	Err   error
}

// EvalAll runs a script once for each call, in as few round trips as it can.
func (s *Server) EvalAll(ctx context.Context, sc *Script, calls []Call) []Result {
	sent, at := driver.Now(), Micros()
	all := make([]Result, len(calls))
	for i, a := range s.Client.EvalAll(ctx, sc, calls) {
		all[i].Reply, all[i].Err = s.Read(sc, calls[i].Keys, sent, at, a.Values, a.Err)
	}
	return all
}

// EvalAcked is Eval, followed by WAIT if the answer starts with the letter only: see Client.EvalAcked. If too few
// replicas acknowledge what the script wrote, it returns the answer and an error that wraps ErrFewReplicas.
func (s *Server) EvalAcked(ctx context.Context, sc *Script, keys, args []string, only string) (Reply, error) {
	sent, at := driver.Now(), Micros()
	values, acked, err := s.Client.EvalAcked(ctx, sc, keys, args, only, s.Config.Replicas, s.Config.AckTimeout)
	rep, err := s.Read(sc, keys, sent, at, values, err)                 // mutation: failover-acked-sent
	if err == nil && rep.Kind == only[0] && acked < s.Config.Replicas { // mutation: failover-acked
		err = driver.Errorf(driver.CodeUnavailable, "%w: %d of %d acknowledged it within %s", ErrFewReplicas, acked, s.Config.Replicas, s.Config.AckTimeout)
	}
	return rep, err
}

// EvalGrant is EvalAcked for a script that makes a grant. It undoes a grant that too few replicas acknowledge.
func (s *Server) EvalGrant(ctx context.Context, sc *Script, keys, args []string, undo func() error) (Reply, error) {
	rep, err := s.EvalAcked(ctx, sc, keys, args, "G")
	if errors.Is(err, ErrFewReplicas) {
		if uerr := undo(); uerr != nil {
			err = driver.Errorf(driver.CodeUnknown, "%w: %w: %w", err, ErrUndoFailed, uerr)
		}
	}
	return rep, err
}

// ErrFewReplicas means that too few replicas acknowledged a grant, a renewal or a release.
var ErrFewReplicas = errors.New("too few replicas")

// ErrUndoFailed means that an undo was sent and has no answer.
var ErrUndoFailed = errors.New("it could not be undone")

// ErrUndone means that the server refuses the ID of the request for a while: the request was
// undone, or its grant was broken before the client received it.
var ErrUndone = driver.Errorf(driver.CodeUnavailable, "the request was undone, or its grant was broken")

// Read parses the answer of a script, and corrects the estimate of the server's clock.
func (s *Server) Read(sc *Script, keys []string, sent driver.Instant, at int64, values []string, err error) (Reply, error) {
	if err != nil {
		return Reply{}, s.Explain(err, keys...)
	}
	if len(values) == 1 {
		// The fast paths of the scripts return all words in one string.
		switch v := values[0]; {
		case len(v) == 1:
			return Reply{Kind: v[0], Sent: sent}, nil
		case len(v) > 2 && v[0] == 'G' && v[1] != ' ':
			values = []string{"G", v[1:], v[1:], "0"}
		default:
			values = strings.Split(v, " ")
		}
	}
	if len(values) < 2 || len(values[0]) != 1 {
		return Reply{}, driver.Errorf(driver.CodeUnknown, "the script %s returned %q", sc.Name, values)
	}
	now, err := strconv.ParseInt(values[1], 10, 64)
	if err != nil {
		return Reply{}, driver.Errorf(driver.CodeUnknown, "the script %s returned %q", sc.Name, values)
	}
	s.Clock.Learn(at, now)
	return Reply{Kind: values[0][0], Now: now, Values: values[2:], Sent: sent}, nil
}

// CallTimeout is the timeout of one call of a waiter, which then tries again. If replicas have to acknowledge
// a grant, the timeout is at least theirs plus ackMargin.
const (
	CallTimeout = 2 * time.Second
	ackMargin   = time.Second
)

// SubscribeTimeout is how long the first waiter waits for its subscription before it reports that it is queued.
const SubscribeTimeout = 100 * time.Millisecond

// withdrawTimeout is the timeout of a waiter that withdraws its request.
const withdrawTimeout = 250 * time.Millisecond

// Withdraw undoes a request that waited, and returns its error: why, or the end of ctx if why is nil. The undo
// has a context of its own.
func (s *Server) Withdraw(ctx context.Context, why error, undo func(ctx context.Context) error) error {
	switch {
	case why != nil:
	case s.Ctx.Err() != nil:
		why = calls.ErrClosed
	default:
		why = driver.Errorf(driver.CodeWithdrawn, "%w", context.Cause(ctx))
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), withdrawTimeout)
	defer cancel()
	if err := undo(ctx); err != nil {
		return driver.Errorf(driver.CodeUnknown, "%w; the request could not be withdrawn: %w", why, err)
	}
	return why
}

// Subscribe is a method of [Client] that subscribes.
type Subscribe = func(ctx context.Context, channel string, ready func(), got func(string)) error

// KeepSubscribed subscribes to a channel, and again after an error, until ctx ends. It calls ended when a
// subscription has ended or failed.
func KeepSubscribed(ctx context.Context, subscribe Subscribe, channel string, ready func(), got func(string), ended func()) {
	// The server's end reaches all clients at one moment: without the random part they would return in step.
	for retry := (backoff.Backoff{First: 5 * time.Millisecond, Max: time.Second}); ctx.Err() == nil; {
		_ = subscribe(ctx, channel, func() {
			retry.Reset()
			ready()
		}, got)
		ended()
		_ = retry.Sleep(ctx)
	}
}

// EndsWait reports whether the error of a call ends the wait of its request.
func EndsWait(err error) bool {
	return !IsTransient(err) ||
		errors.Is(err, ErrUndoFailed) || // the undo may still arrive, and would remove a later grant of this ID
		errors.Is(err, ErrUndone) // a new request with another ID may be granted
}

// RetryDelay returns the delay after failed calls: 40 ms after the first one, doubled after each
// further one, at most limit.
func RetryDelay(failures int, limit time.Duration) time.Duration {
	return min(limit, 20*time.Millisecond<<min(failures, 6))
}

// WaiterTimeout returns the timeout of one call of a waiter.
func (s *Server) WaiterTimeout() time.Duration {
	if s.Config.Replicas == 0 {
		return CallTimeout
	}
	return max(CallTimeout, s.Config.AckTimeout+ackMargin)
}

// Jitter shortens a delay by up to a fifth, so that the refreshes of many waiters are spread over
// time. It never exceeds the interval that the script has returned.
func Jitter(delay time.Duration) time.Duration { return delay - rand.N(delay/5+1) }
