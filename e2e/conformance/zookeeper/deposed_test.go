package zookeeper

import (
	"context"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/e2e/conformance/requests"
	"github.com/holdfast-go/holdfast/internal/servers"
	"github.com/holdfast-go/holdfast/zkstore"
)

// deposed is a leader that was stopped until its successor led. It has not noticed that yet.
type deposed struct {
	name  string
	young *zkstore.Store // a client of the other members
	old   *zkstore.Store // a client of the stopped leader alone
}

// atADeposedLeader stops a leader, calls change, and sends request to the old leader before it continues. Then it
// waits for the end of request. mark is a part of what the request writes. If the request is not sent in time, for
// example because the election took longer than the client's timeout, it tries again with the next leader.
func atADeposedLeader(t *testing.T, prepare, change func(d deposed), mark string, request func(context.Context, deposed) error) {
	t.Helper()
	e := three(t)
	for attempt := 1; attempt <= 10; attempt++ {
		if reachesDeposedLeader(t, e, leader(t, e), prepare, change, mark, request) {
			return
		}
	}
	t.Fatal("no request reached the stopped leader")
}

func reachesDeposedLeader(t *testing.T, e *servers.Ensemble, l *servers.ZooKeeper, prepare, change func(deposed), mark string, request func(context.Context, deposed) error) bool {
	t.Helper()
	d := deposed{name: newName()}
	hook, sent := sends(mark, d.name) // heartbeats have neither
	_, d.old = locker(t, []string{l.Address()}, onWrites(nil, hook))
	_, d.young = locker(t, addresses(others(e, l)...))
	prepare(d)

	must(t, l.Pause())
	goOn := sync.OnceFunc(func() {
		must(t, l.Cont())
		leader(t, e)
	})
	defer goOn()
	// The connections of the other members to the old leader end, so that these members need not
	// wait for a timeout.
	for _, m := range others(e, l) {
		must(t, e.Silence(m))
		must(t, e.Heal(m))
	}
	successor(t, e, l)
	change(d)
	select {
	case <-sent: // sent by prepare
	default:
	}
	done := make(chan error, 1)
	requesting, giveUp := context.WithCancel(t.Context())
	defer giveUp()
	go func() {
		err := request(requesting, d)
		for err != nil && requesting.Err() == nil { // retry like the core
			err = request(requesting, d)
		}
		done <- err
	}()
	select {
	case <-sent: // the request is queued at the old leader, or on its way there
	case <-time.After(2 * time.Second):
		giveUp()
		<-done
		return false
	}
	goOn()
	defer time.AfterFunc(testTimeout, giveUp).Stop() // from now on there is a leader again
	must(t, <-done)
	return true
}

// TestUndoAtADeposedLeaderIsNotConfirmed: the leader was stopped, and its successor has made
// a node that the old leader does not have. An Undo reaches the old leader before it notices
// its successor. The old leader's answer must not confirm the Undo.
func TestUndoAtADeposedLeaderIsNotConfirmed(t *testing.T) {
	const ttl = 2 * time.Minute // their sessions and their timeouts outlast the test
	request := func(name string) driver.Request {
		return requests.New(name, driver.Exclusive, ttl)
	}
	var r driver.Request
	var last deposed
	atADeposedLeader(t, func(d deposed) {
		for _, s := range []*zkstore.Store{d.old, d.young} { // so that their sessions stand
			must(t, s.Release(t.Context(), requests.Must(t, s, request(newName())), 0))
		}
	}, func(d deposed) {
		ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
		defer cancel()
		for {
			r = request(d.name)
			if _, err := d.young.Acquire(ctx, r); err == nil {
				return
			}
			for d.young.Undo(ctx, r) != nil {
				must(t, ctx.Err())
			}
		}
	}, "/@", func(ctx context.Context, d deposed) error {
		last = d
		return d.old.Undo(ctx, r)
	})
	if st := state(t, last.young, last.name); len(st.Holders) > 0 {
		t.Errorf("the Undo was confirmed, and the grant stands: %+v", st.Holders)
	}
}

// TestReadAtADeposedLeaderIsNoOlder: a value and a guard's mark are read at a leader that was stopped while they were
// written at its successor. The read returns what was written.
func TestReadAtADeposedLeaderIsNoOlder(t *testing.T) {
	for what, test := range map[string]struct {
		write func(context.Context, *zkstore.Store, string, uint64) error
		read  func(context.Context, *zkstore.Store, string) (string, error)
	}{
		"value": {func(ctx context.Context, s *zkstore.Store, name string, n uint64) error {
			_, version, err := s.Get(ctx, name)
			if err == nil {
				_, err = s.Put(ctx, name, strconv.AppendUint(nil, n, 10), version)
			}
			return err
		}, func(ctx context.Context, s *zkstore.Store, name string) (string, error) {
			data, _, err := s.Get(ctx, name)
			return string(data), err
		}},
		"mark": {func(ctx context.Context, s *zkstore.Store, name string, n uint64) error {
			return s.Guard().Raise(ctx, name, n)
		}, func(ctx context.Context, s *zkstore.Store, name string) (string, error) {
			n, err := s.Guard().Newest(ctx, name)
			return strconv.FormatUint(n, 10), err
		}},
	} {
		t.Run(what, func(t *testing.T) {
			var got string
			atADeposedLeader(t, func(d deposed) {
				must(t, test.write(t.Context(), d.young, d.name, 1))
				_, err := test.read(t.Context(), d.old, d.name)
				must(t, err)
			}, func(d deposed) {
				ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
				defer cancel()
				for test.write(ctx, d.young, d.name, 2) != nil {
					must(t, ctx.Err())
				}
			}, "%values", func(ctx context.Context, d deposed) (err error) {
				got, err = test.read(ctx, d.old, d.name)
				return err
			})
			if got != "2" {
				t.Errorf("the read returned %q, want what the successor has confirmed", got)
			}
		})
	}
}
