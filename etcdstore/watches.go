package etcdstore

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/internal/backoff"
	"github.com/holdfast-go/holdfast/internal/wakeup"
)

// watches is the stream on which a store watches keys. The client library's Watcher opens a new
// stream, and with authentication logs in, whenever the last watch of a stream has ended. It also
// sets one watch after the other.
//
// The store opens the stream for the first watch, and again when the stream has ended. Each time it
// sets all watches again, from the present revision.
type watches struct {
	client etcdserverpb.WatchClient

	mu      sync.Mutex
	all     map[*watch]struct{}
	serving bool          // a goroutine keeps the stream
	added   chan struct{} // signals a new watch

	// The state of the open stream.
	open      bool
	requested []*watch                     // watches that were requested, in that order
	made      map[int64]*watch             // by the server's number
	unsent    []*etcdserverpb.WatchRequest // for the sender
	sendNow   chan struct{}
	drop      context.CancelCauseFunc
	// reported is the newest revision that the member has reported. expectedRev is a revision that the
	// quorum had reached at expectedAt and that the member has not reported yet. It is 0 if there is
	// none.
	reported, expectedRev int64
	expectedAt            time.Time
}

// watch reports the changes of a key, or of a range of keys.
type watch struct {
	key, end []byte // as in etcd: end is nil for a single key
	puts     bool   // report writes as well as deletions
	// update is called by the stream's goroutine and must not block. It may be called once
	// more after unwatch.
	update func(watchUpdate)

	// The mutex of watches guards these fields.
	id      int64
	isSet   bool
	refused bool // refused once, perhaps because the login of the stream was too old
}

// setPrefix makes a watch of every key with the prefix.
func (w *watch) setPrefix(prefix string) {
	w.key, w.end = []byte(prefix), []byte(clientv3.GetPrefixRangeEnd(prefix))
	if prefix == "" {
		w.key, w.end = []byte{0}, []byte{0}
	}
}

// covers reports whether a key is watched.
func (w *watch) covers(key []byte) bool {
	switch {
	case w.end == nil:
		return bytes.Equal(key, w.key)
	case bytes.Equal(w.end, []byte{0}): // no end
		return bytes.Compare(key, w.key) >= 0
	}
	return bytes.Compare(key, w.key) >= 0 && bytes.Compare(key, w.end) < 0
}

// watchUpdate is one of four reports. The watch is set, and changes from now on are reported. Or
// the watch is interrupted, and is being set again. Or keys have changed. Or the server has refused
// the watch, which is over.
type watchUpdate struct {
	isSet, interrupted bool
	events             []*mvccpb.Event
	err                error
}

const (
	// progressEvery is the interval at which the client requests the member's revision. It replaces a
	// member that sends nothing for silentTimeout by another one.
	progressEvery = 500 * time.Millisecond
	silentTimeout = 1250 * time.Millisecond
	// lagTimeout is how long a member may not report a revision that the quorum has reached.
	lagTimeout = 750 * time.Millisecond
	// idleTimeout is how long a stream without watches stays open.
	idleTimeout = time.Minute
)

var (
	errIdle       = errors.New("nothing is watched")
	errLags       = errors.New("the member that serves the watches lags behind the quorum")
	errSilent     = errors.New("the stream of watches is silent")
	errRestored   = errors.New("the server was restored from an older copy")
	errOutOfOrder = errors.New("the stream of watches is out of order")
	errOldLogin   = errors.New("a watch is refused: the login of its stream may be too old")
)

// watch sets a watch, until unwatch or an update with an error.
func (s *store) watch(w *watch) {
	m := &s.watches
	m.mu.Lock()
	if m.all == nil {
		m.all, m.added, m.sendNow = map[*watch]struct{}{}, make(chan struct{}, 1), make(chan struct{}, 1)
	}
	m.all[w] = struct{}{}
	if m.open {
		m.request(w)
	}
	wakeup.Send(m.added)
	serving := m.serving
	m.serving = true
	m.mu.Unlock()
	if !serving && !s.calls.Go(s.serveWatches) {
		w.update(watchUpdate{err: errClosed})
	}
}

func (s *store) unwatch(w *watch) {
	m := &s.watches
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.all[w]; !ok {
		return
	}
	delete(m.all, w)
	if w.isSet {
		m.cancel(w)
	}
}

// request queues the request for a watch. The caller holds mu.
func (m *watches) request(w *watch) {
	create := &etcdserverpb.WatchCreateRequest{Key: w.key, RangeEnd: w.end}
	if !w.puts {
		create.Filters = []etcdserverpb.WatchCreateRequest_FilterType{etcdserverpb.WatchCreateRequest_NOPUT}
	}
	m.requested = append(m.requested, w)
	m.send(&etcdserverpb.WatchRequest{RequestUnion: &etcdserverpb.WatchRequest_CreateRequest{CreateRequest: create}})
}

// cancel queues the end of a watch. The caller holds mu.
func (m *watches) cancel(w *watch) {
	delete(m.made, w.id)
	w.isSet = false
	m.send(&etcdserverpb.WatchRequest{RequestUnion: &etcdserverpb.WatchRequest_CancelRequest{
		CancelRequest: &etcdserverpb.WatchCancelRequest{WatchId: w.id}}})
}

func (m *watches) send(r *etcdserverpb.WatchRequest) {
	m.unsent = append(m.unsent, r)
	wakeup.Send(m.sendNow)
}

// serveWatches keeps the stream until the store is closed.
func (s *store) serveWatches() {
	m := &s.watches
	retry, silent := backoff.Backoff{First: waitRetry, Max: waitRetryMax}, silentTimeout
	for {
		for m.count() == 0 {
			select {
			case <-m.added:
			case <-s.calls.Ctx.Done():
				return
			}
		}
		began := time.Now()
		if s.client.Username != "" {
			_, _, _ = s.keepaliveStream(s.calls.Ctx) // log in for the keepalives first, since leases need them
		}
		err := s.watchStream(silent)
		if err == errIdle {
			continue
		}
		s.reconnect()
		// Wait longer next time: many logins would not help an overloaded server.
		if silent = min(2*silent, openTimeout); !errors.Is(err, errSilent) {
			silent = silentTimeout
		}
		if time.Since(began) > 2*waitRetryMax {
			retry.Reset()
		}
		if retry.Sleep(s.calls.Ctx) != nil {
			return
		}
	}
}

func (m *watches) count() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.all)
}

// watchStream opens a stream, serves it until it ends, and returns the reason. The stream ends if the
// member sends nothing for timeout.
func (s *store) watchStream(timeout time.Duration) error {
	m := &s.watches
	ctx, end := context.WithCancelCause(clientv3.WithRequireLeader(s.calls.Ctx))
	defer end(nil)
	tooLong := time.AfterFunc(openTimeout, func() { end(errSilent) })
	stream, err := m.client.Watch(ctx)
	if !tooLong.Stop() && err == nil {
		err = errSilent
	}
	if err != nil {
		return err
	}
	m.requestAll(end)
	silent := time.AfterFunc(timeout, func() { end(errSilent) })
	defer silent.Stop()
	var sending sync.WaitGroup
	sending.Go(func() { end(m.sendAll(ctx, stream)) })
	defer sending.Wait()
	defer end(nil)
	defer m.interruptAll()
	for {
		answer, err := stream.Recv()
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil {
			return err
		}
		silent.Reset(timeout)
		if err := m.take(answer); err != nil {
			return err
		}
	}
}

// requestAll requests every watch on a new stream.
func (m *watches) requestAll(drop context.CancelCauseFunc) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.open, m.drop = true, drop
	m.reported, m.expectedRev = 0, 0
	m.requested, m.unsent, m.made = nil, nil, map[int64]*watch{}
	for w := range m.all {
		m.request(w)
	}
}

// interruptAll reports to every watch that it is interrupted.
func (m *watches) interruptAll() {
	m.mu.Lock()
	m.open = false
	var all []*watch
	for w := range m.all {
		w.isSet = false
		all = append(all, w)
	}
	m.mu.Unlock()
	for _, w := range all {
		w.update(watchUpdate{interrupted: true})
	}
}

// expect handles a revision that the quorum has reached. A member that does not report it soon is
// cut off or overloaded: its watches are set at another one.
func (m *watches) expect(rev int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.expectedRev == 0 && m.reported < rev {
		m.expectedRev, m.expectedAt = rev, time.Now()
	}
}

// dropLagging ends a stream whose member has not reported the expected revision.
func (m *watches) dropLagging() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.open && m.expectedRev > 0 && time.Since(m.expectedAt) > lagTimeout {
		m.expectedRev = 0
		m.drop(errLags)
	}
}

// newest returns the newest revision that the member of the last stream has reported.
func (m *watches) newest() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.reported
}

// dropRestored ends a stream that reported a revision before a write, if the revision rev of that write
// is not larger: the server was restored from an older copy.
func (m *watches) dropRestored(rev int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.open && m.reported >= rev {
		m.drop(errRestored)
	}
}

// sendAll sends the queued requests, and regular requests for progress. It returns errIdle when there
// was no watch for idleTimeout.
func (m *watches) sendAll(ctx context.Context, stream etcdserverpb.Watch_WatchClient) error {
	progress := time.NewTicker(progressEvery)
	defer progress.Stop()
	used := time.Now()
	for {
		m.mu.Lock()
		batch := m.unsent
		m.unsent = nil
		m.mu.Unlock()
		for _, r := range batch {
			if err := stream.Send(r); err != nil {
				return err
			}
		}
		select {
		case <-m.sendNow:
		case <-progress.C:
			if m.count() > 0 {
				used = time.Now()
			} else if time.Since(used) > idleTimeout {
				return errIdle
			}
			m.mu.Lock()
			m.send(&etcdserverpb.WatchRequest{RequestUnion: &etcdserverpb.WatchRequest_ProgressRequest{ProgressRequest: &etcdserverpb.WatchProgressRequest{}}})
			m.mu.Unlock()
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// take passes one answer of the server on to its watch. After an error another stream is needed.
func (m *watches) take(answer *etcdserverpb.WatchResponse) error {
	w, u, err := m.match(answer)
	if w != nil {
		w.update(u)
	}
	return err
}

// match returns the watch that an answer concerns, and the update for it. The watch is nil if there is
// nothing to report.
func (m *watches) match(answer *etcdserverpb.WatchResponse) (*watch, watchUpdate, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if h := answer.GetHeader(); h != nil && h.Revision > m.reported {
		if m.reported = h.Revision; m.reported >= m.expectedRev {
			m.expectedRev = 0
		}
	}
	if answer.Created {
		return m.created(answer)
	}
	w := m.made[answer.WatchId]
	if w == nil {
		return nil, watchUpdate{}, nil
	}
	if answer.Canceled { // by the server
		delete(m.made, w.id)
		w.isSet = false
		m.request(w)
		return w, watchUpdate{interrupted: true}, nil
	}
	for _, ev := range answer.Events {
		// A proxy may set watches in another order than they were requested in.
		if !w.covers(ev.Kv.Key) {
			return nil, watchUpdate{}, errOutOfOrder
		}
	}
	if len(answer.Events) == 0 {
		return nil, watchUpdate{}, nil
	}
	return w, watchUpdate{events: answer.Events}, nil
}

// created returns what match returns for the answer to the oldest request for a watch. The caller
// holds mu.
func (m *watches) created(answer *etcdserverpb.WatchResponse) (*watch, watchUpdate, error) {
	if len(m.requested) == 0 {
		return nil, watchUpdate{}, errOutOfOrder
	}
	w := m.requested[0]
	m.requested = m.requested[1:]
	_, wanted := m.all[w]
	switch {
	case answer.Canceled && !wanted:
		return nil, watchUpdate{}, nil
	case answer.Canceled && w.refused && strings.Contains(answer.CancelReason, "permission denied"):
		delete(m.all, w)
		return w, watchUpdate{err: driver.Errorf(driver.CodeRefused, "etcd refuses the watch: %s", answer.CancelReason)}, nil
	case answer.Canceled:
		w.refused = true
		return nil, watchUpdate{}, errOldLogin
	case !wanted:
		w.id = answer.WatchId
		m.cancel(w)
		return nil, watchUpdate{}, nil
	}
	w.id, w.isSet, w.refused = answer.WatchId, true, false
	m.made[w.id] = w
	return w, watchUpdate{isSet: true}, nil
}
