package redisstore

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/must"
)

// fake is a Client whose answers a test sets.
type fake struct {
	eval  func(s *Script, keys, args []string) ([]string, error)
	acked func(ctx context.Context, s *Script, keys, args []string) ([]string, int, error)
	probe chan struct{} // if not nil, a probe sends to it when it begins, and waits for it
	// noSubscriptions makes Subscribe fail.
	noSubscriptions bool
}

var errLost = errors.New("the answer was lost")

func serverNow() string { return strconv.FormatInt(time.Now().UnixMicro(), 10) }

func (f *fake) String() string { return "redis://fake" }
func (f *fake) Mode() Mode     { return Standalone }
func (f *fake) Reconnect()     {}
func (f *fake) Close()         {}

func (f *fake) Eval(_ context.Context, s *Script, keys, args []string) ([]string, error) {
	return f.eval(s, keys, args)
}

func (f *fake) EvalAll(ctx context.Context, s *Script, calls []Call) []Answer {
	all := make([]Answer, len(calls))
	if s.Name == "run_id" {
		return all
	}
	for i, c := range calls {
		all[i].Values, all[i].Err = f.Eval(ctx, s, c.Keys, c.Args)
	}
	return all
}

func (f *fake) Commands(_ context.Context, commands [][]string) []Answer {
	return make([]Answer, len(commands))
}

func (f *fake) EvalAcked(ctx context.Context, s *Script, keys, args []string, _ string, _ int, _ time.Duration) ([]string, int, error) {
	return f.acked(ctx, s, keys, args)
}

func (f *fake) EachPrimary(ctx context.Context, each func(Node) error) error {
	if f.probe != nil {
		f.probe <- struct{}{}
		<-f.probe
	}
	return each(f)
}

func (f *fake) Command(_ context.Context, args ...string) ([]string, error) {
	switch args[0] {
	case "EVAL":
		return []string{"T", serverNow()}, nil
	case "TIME":
		now := time.Now().UnixMicro()
		return []string{strconv.FormatInt(now/1_000_000, 10), strconv.FormatInt(now%1_000_000, 10)}, nil
	case "INFO":
		return []string{"redis_version:7.0.15\r\nrole:master\r\nmaxmemory_policy:noeviction\r\nconnected_slaves:1\r\n"}, nil
	}
	return []string{"0"}, nil
}

func (f *fake) Replica(context.Context, string) (Node, error) { return f, nil }

func (f *fake) Subscribe(ctx context.Context, _ string, ready func(), _ func(string)) error {
	if f.noSubscriptions {
		return errLost
	}
	ready()
	<-ctx.Done()
	return ctx.Err()
}

func (f *fake) SubscribeSharded(ctx context.Context, channel string, ready func(), got func(string)) error {
	return f.Subscribe(ctx, channel, ready, got)
}

func overFake(t *testing.T, f *fake, o ...Option) *Store {
	t.Helper()
	s, err := NewOver(f, o...)
	must.Succeed(t, err)
	t.Cleanup(func() { _ = s.Close(context.Background()) })
	return s
}

type noRequester struct{}

func (noRequester) Owner() driver.Owner      { return driver.Owner{Host: "h", PID: 1} }
func (noRequester) Queued([]driver.Holder)   {}
func (noRequester) Lost(driver.Cause, error) {}
func placed(seq string) []string             { return []string{"Q", serverNow(), seq, "0", "5", "-1"} }
func granted(token, slot string) []string    { return []string{"G", serverNow(), token, slot} }

// TestUndoWithoutAnswerEndsTheRequest has a grant that too few replicas acknowledge, and whose
// undo has no answer. The test requires that the request ends, because the undo could arrive
// after a later grant of the same ID.
func TestUndoWithoutAnswerEndsTheRequest(t *testing.T) {
	f := &fake{eval: func(sc *Script, _, _ []string) ([]string, error) { return nil, errLost }}
	calls := 0
	f.acked = func(context.Context, *Script, []string, []string) ([]string, int, error) {
		switch calls++; calls {
		case 1:
			return placed("1"), 0, nil
		case 2:
			return granted(serverNow(), "0"), 0, nil
		}
		return granted(serverNow(), "0"), 1, nil
	}
	s := overFake(t, f, WaitReplicas(1, time.Second))
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	g, err := s.Acquire(ctx, driver.Request{ID: "x", Name: "n", Limit: 1, TTL: time.Minute, Wait: true, From: noRequester{}})
	if err == nil || s.Classify(err) != driver.CodeUnknown || ctx.Err() != nil {
		t.Errorf("%+v, %v", g, err)
	}
}

// TestCancelledWaiterReturnsNoUndoneGrant has a grant that too few replicas acknowledge, and that was
// undone. The waiter's context ends before its next call. The test requires that the waiter does not
// return this grant.
func TestCancelledWaiterReturnsNoUndoneGrant(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	undos := 0
	f := &fake{eval: func(sc *Script, _, _ []string) ([]string, error) {
		if undos++; undos == 1 {
			time.AfterFunc(time.Millisecond, cancel) // within the delay before the next call
		}
		return []string{"U", serverNow()}, nil
	}}
	calls := 0
	f.acked = func(context.Context, *Script, []string, []string) ([]string, int, error) {
		if calls++; calls == 1 {
			return placed("1"), 0, nil
		}
		return granted(serverNow(), "0"), 0, nil
	}
	s := overFake(t, f, WaitReplicas(1, time.Second))
	g, err := s.Acquire(ctx, driver.Request{ID: "x", Name: "n", Limit: 1, TTL: time.Minute, Wait: true, From: noRequester{}})
	if s.Classify(err) != driver.CodeWithdrawn || undos < 2 {
		t.Errorf("%+v, %v after %d undos", g, err, undos)
	}
}

// TestCancelledRequestDoesNotWaitForProbe makes a request wait for the probe of another request.
// It requires that the request returns when its own context ends.
func TestCancelledRequestDoesNotWaitForProbe(t *testing.T) {
	f := &fake{probe: make(chan struct{}), eval: func(*Script, []string, []string) ([]string, error) { return nil, errLost }}
	s := overFake(t, f)
	first := make(chan error, 1)
	go func() {
		_, err := s.Guarantees(t.Context())
		first <- err
	}()
	<-f.probe
	ctx, cancel := context.WithCancel(t.Context())
	second := make(chan error, 1)
	go func() {
		_, err := s.Acquire(ctx, driver.Request{ID: "x", Name: "n", Limit: 1, TTL: time.Minute, From: noRequester{}})
		second <- err
	}()
	cancel()
	select {
	case err := <-second:
		if s.Classify(err) != driver.CodeWithdrawn {
			t.Errorf("%v", err)
		}
	case <-time.After(20 * time.Second):
		t.Error("a cancelled Acquire waits for the probe of another request")
	}
	close(f.probe)
	must.Report(t, <-first)
}

// silent is a client whose Close waits until its server answers.
type silent struct {
	fake
	answers chan struct{}
}

func (s *silent) Close() { <-s.answers }

// TestCloseReturnsWithItsContext requires that Close returns when its context ends, although the
// client waits for a silent server. A second Close has to wait for the end.
func TestCloseReturnsWithItsContext(t *testing.T) {
	f := &silent{answers: make(chan struct{})}
	s, err := NewOver(f)
	must.Succeed(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	done := make(chan error, 1)
	go func() { done <- s.Close(ctx) }()
	select {
	case err := <-done:
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%v", err)
		}
	case <-time.After(20 * time.Second):
		t.Error("Close waits for the client")
	}
	close(f.answers)
	must.Report(t, s.Close(t.Context()))
}

// TestWaiterCallOutlastsReplicaTimeout requires that a waiter's call has a longer timeout than
// the acknowledgement of the replicas. Otherwise every call would end before the waiter gets its
// grant.
func TestWaiterCallOutlastsReplicaTimeout(t *testing.T) {
	const ackTimeout = 5 * time.Second
	first := true
	f := &fake{acked: func(ctx context.Context, _ *Script, _, _ []string) ([]string, int, error) {
		if first {
			first = false
			return placed("1"), 0, nil
		}
		if end, ok := ctx.Deadline(); ok && time.Until(end) < ackTimeout {
			return nil, 0, errLost // the call ends too early
		}
		return granted("7", "0"), 1, nil
	}}
	f.eval = func(*Script, []string, []string) ([]string, error) { return []string{"U", serverNow()}, nil }
	s := overFake(t, f, WaitReplicas(1, ackTimeout))
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if g, err := s.Acquire(ctx, driver.Request{ID: "next", Name: "n", Limit: 1, TTL: time.Minute, Wait: true, From: noRequester{}}); err != nil || g.Token != 7 {
		t.Errorf("%+v, %v", g, err)
	}
}

// queuedHook is a requester that calls the function in when once its request is queued.
type queuedHook struct {
	noRequester
	when func()
}

func (n queuedHook) Queued([]driver.Holder) { n.when() }

// TestQueuedIsReportedWithoutSubscription makes the subscription of a client fail. It requires
// that a waiter reports that it is queued after the first answer, without waiting for the
// subscription.
func TestQueuedIsReportedWithoutSubscription(t *testing.T) {
	requests := make(chan struct{}, 100)
	f := &fake{noSubscriptions: true, eval: func(sc *Script, _, _ []string) ([]string, error) {
		if sc == acquireScript {
			requests <- struct{}{}
			return []string{"Q", serverNow(), "1", "0", "60000", "-1"}, nil
		}
		return []string{"U", serverNow()}, nil
	}}
	s := overFake(t, f)
	s.mu.Lock()
	s.listen()
	s.mu.Unlock()
	for failed := false; !failed; time.Sleep(time.Millisecond) {
		s.mu.Lock()
		failed = s.subscription.failed
		s.mu.Unlock()
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	_, err := s.Acquire(ctx, driver.Request{ID: "next", Name: "n", Limit: 1, TTL: time.Minute, Wait: true, From: queuedHook{when: cancel}})
	if s.Classify(err) != driver.CodeWithdrawn || len(requests) != 1 {
		t.Errorf("%v, after %d calls; want one", err, len(requests))
	}
}

// multiMaster is one of several servers that accept writes for the same data.
type multiMaster struct {
	fake
	info string
}

func (m *multiMaster) EachPrimary(_ context.Context, each func(Node) error) error { return each(m) }

func (m *multiMaster) Command(ctx context.Context, args ...string) ([]string, error) {
	if args[0] == "INFO" {
		return []string{m.info}, nil
	}
	return m.fake.Command(ctx, args...)
}

// TestActiveActiveIsRefused requires an error for a server that accepts writes beside others for
// the same data, because each would grant the lock.
func TestActiveActiveIsRefused(t *testing.T) {
	for _, info := range []string{
		"redis_version:6.3.4\r\nrole:active-replica\r\nmaxmemory_policy:noeviction\r\n", // KeyDB
		"redis_version:7.4.0\r\nrole:master\r\nmaxmemory_policy:noeviction\r\nmodule:name=crdt,ver=1,api=1\r\n",
	} {
		s, err := NewOver(&multiMaster{info: info})
		must.Succeed(t, err)
		_, err = s.Acquire(t.Context(), driver.Request{ID: "x", Name: "n", Limit: 1, TTL: time.Minute, From: noRequester{}})
		if err == nil || s.Classify(err) != driver.CodeRefused {
			t.Errorf("%q: %v", info, err)
		}
		must.Report(t, s.Close(t.Context()))
	}
}

// listening is a client for which a test sends messages, or ends the subscription.
type listening struct {
	fake
	mu   sync.Mutex
	got  func(string)
	gone chan struct{}
}

func (l *listening) Subscribe(ctx context.Context, _ string, ready func(), got func(string)) error {
	l.mu.Lock()
	l.got, l.gone = got, make(chan struct{})
	gone := l.gone
	l.mu.Unlock()
	ready()
	select {
	case <-gone:
		return errLost
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (l *listening) EachPrimary(_ context.Context, each func(Node) error) error { return each(l) }

// TestMessageWakesWaiter has a waiter whose next refresh is a minute away. It requires that the
// waiter sends its request when a message comes, and when a lost subscription begins again.
func TestMessageWakesWaiter(t *testing.T) {
	for _, how := range []string{"message", "new subscription"} {
		t.Run(how, func(t *testing.T) {
			waits, wake := make(chan struct{}), make(chan struct{})
			var once sync.Once
			f := &listening{}
			f.eval = func(sc *Script, _, _ []string) ([]string, error) {
				if sc != acquireScript {
					return []string{"U", serverNow()}, nil
				}
				select {
				case <-wake:
					return granted("7", "0"), nil
				default:
					return []string{"Q", serverNow(), "1", "0", "60000", "-1"}, nil
				}
			}
			s, err := NewOver(f)
			must.Succeed(t, err)
			t.Cleanup(func() { _ = s.Close(context.Background()) })
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			done := make(chan error, 1)
			go func() {
				_, err := s.Acquire(ctx, driver.Request{ID: "next", Name: "n", Limit: 1, TTL: time.Minute, Wait: true,
					From: queuedHook{when: func() { once.Do(func() { close(waits) }) }}})
				done <- err
			}()
			select {
			case <-waits:
			case err := <-done:
				t.Fatal(err)
			}
			close(wake)
			f.mu.Lock()
			if how == "message" {
				f.got("wnext")
			} else {
				close(f.gone)
			}
			f.mu.Unlock()
			if err := <-done; err != nil {
				t.Errorf("after a %s: %v", how, err)
			}
		})
	}
}

// evicting is a server whose eviction policy was changed, and which may leave a probe unanswered.
type evicting struct {
	multiMaster
	mode   Mode
	silent bool
}

func (e *evicting) Mode() Mode { return e.mode }

func (e *evicting) EachPrimary(_ context.Context, each func(Node) error) error {
	err := each(e)
	if e.mode == Cluster && err == nil {
		err = each(&e.fake) // a second node
	}
	return err
}

func (e *evicting) Command(ctx context.Context, args ...string) ([]string, error) {
	if e.silent {
		return nil, context.DeadlineExceeded
	}
	return e.multiMaster.Command(ctx, args...)
}

// TestUnansweredProbeKeepsRefusal has a store that refused a server because it evicts keys. It
// requires that a probe without an answer does not permit new locks.
func TestUnansweredProbeKeepsRefusal(t *testing.T) {
	for _, mode := range []Mode{Standalone, Sentinel, Cluster} {
		synctest.Test(t, func(t *testing.T) {
			e := &evicting{mode: mode}
			e.info = "redis_version:7.0.15\r\nrole:master\r\nmaxmemory_policy:noeviction\r\n"
			e.eval = func(*Script, []string, []string) ([]string, error) { return []string{"B", serverNow()}, nil }
			s, err := NewOver(e)
			must.Succeed(t, err)
			acquire := func() error {
				time.Sleep(time.Minute) // so that the request needs a new probe
				_, err := s.Acquire(t.Context(), driver.Request{ID: "x", Name: "n", Limit: 1, TTL: time.Second, From: noRequester{}})
				return err
			}
			if err := acquire(); s.Classify(err) != driver.CodeBusy {
				t.Fatal(err)
			}
			e.info = strings.ReplaceAll(e.info, "noeviction", "allkeys-lru")
			if err := acquire(); s.Classify(err) != driver.CodeRefused {
				t.Errorf("mode %d: a server that evicts: %v", mode, err)
			}
			e.silent = true
			if err := acquire(); s.Classify(err) == driver.CodeBusy {
				t.Errorf("mode %d: an unanswered probe permits new locks", mode)
			}
			must.Report(t, s.Close(t.Context()))
		})
	}
}
