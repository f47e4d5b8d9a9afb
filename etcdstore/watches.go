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
	serving bool // a goroutine keeps the stream
	wanted  chan struct{}

	// The state of the open stream.
	open      bool
	requested []*watch                     // watches that were requested, in that order
	made      map[int64]*watch             // by the server's number
	unsent    []*etcdserverpb.WatchRequest // for the sender
	sendNow   chan struct{}
	drop      context.CancelCauseFunc
	// reported is the newest revision that the member has reported. wantedRev is a revision that
	// the quorum had reached at wantedAt and that the member has not reported yet. It is 0 if there
	// is none.
	reported, wantedRev int64
	wantedAt            time.Time
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
	stands, interrupted bool
	events              []*mvccpb.Event
	err                 error
}

const (
	// progressEvery is the interval at which the member is requested to report its revision. A
	// member that sends nothing for silentTimeout is replaced by another one.
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

func (s *Store) watch(w *watch) {
	m := &s.watches
	m.mu.Lock()
	if m.all == nil {
		m.all, m.wanted, m.sendNow = map[*watch]struct{}{}, make(chan struct{}, 1), make(chan struct{}, 1)
	}
	m.all[w] = struct{}{}
	if m.open {
		m.request(w)
	}
	wakeup.Send(m.wanted)
	serving := m.serving
	m.serving = true
	m.mu.Unlock()
	if !serving && !s.background(s.serveWatches) {
		w.update(watchUpdate{err: errClosed})
	}
}

func (s *Store) unwatch(w *watch) {
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
func (s *Store) serveWatches() {
	m := &s.watches
	retry, silent := backoff.Backoff{First: waitRetry, Max: waitRetryMax}, silentTimeout
	for {
		for m.count() == 0 {
			select {
			case <-m.wanted:
			case <-s.ctx.Done():
				return
			}
		}
		began := time.Now()
		if s.client.Username != "" {
			_, _, _ = s.keepaliveStream(s.ctx) // log in for the keepalives first, since leases need them
		}
		err := s.watchStream(silent)
		if err == errIdle {
			continue
		}
		// Wait longer next time: many logins would not help an overloaded server.
		if silent = min(2*silent, openTimeout); !errors.Is(err, errSilent) {
			silent = silentTimeout
		}
		if time.Since(began) > 2*waitRetryMax {
			retry.Reset()
		}
		if retry.Sleep(s.ctx) != nil {
			return
		}
	}
}

func (m *watches) count() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.all)
}

// watchStream opens a stream, serves it until it ends, and returns the reason.
func (s *Store) watchStream(silentTimeout time.Duration) error {
	m := &s.watches
	ctx, end := context.WithCancelCause(clientv3.WithRequireLeader(s.ctx))
	defer end(nil)
	tooLong := time.AfterFunc(openTimeout, func() { end(errSilent) })
	stream, err := m.client.Watch(ctx)
	if !tooLong.Stop() && err == nil {
		err = errSilent
	}
	if err != nil {
		return err
	}
	m.begin(end)
	silent := time.AfterFunc(silentTimeout, func() { end(errSilent) })
	defer silent.Stop()
	var sending sync.WaitGroup
	sending.Go(func() { end(m.sendAll(ctx, stream)) })
	defer sending.Wait()
	defer end(nil)
	defer m.lost()
	for {
		answer, err := stream.Recv()
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil {
			return err
		}
		silent.Reset(silentTimeout)
		if err := m.take(answer); err != nil {
			return err
		}
	}
}

// begin requests every watch on a new stream.
func (m *watches) begin(drop context.CancelCauseFunc) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.open, m.drop = true, drop
	m.reported, m.wantedRev = 0, 0
	m.requested, m.unsent, m.made = nil, nil, map[int64]*watch{}
	for w := range m.all {
		m.request(w)
	}
}

// lost reports to every watch that it is interrupted.
func (m *watches) lost() {
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
	if m.wantedRev == 0 && m.reported < rev {
		m.wantedRev, m.wantedAt = rev, time.Now()
	}
}

// dropLagging ends a stream whose member has not reported the expected revision.
func (m *watches) dropLagging() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.open && m.wantedRev > 0 && time.Since(m.wantedAt) > lagTimeout {
		m.wantedRev = 0
		m.drop(errLags)
	}
}

// newest returns the newest revision that the member of the last stream has reported.
func (m *watches) newest() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.reported
}

// dropRestored ends a stream that has reported a revision which the server had not reached at a later
// write, of revision rev.
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

// take assigns one answer of the server to its watch. After an error another stream is needed.
func (m *watches) take(answer *etcdserverpb.WatchResponse) error {
	m.mu.Lock()
	if h := answer.GetHeader(); h != nil && h.Revision > m.reported {
		if m.reported = h.Revision; m.reported >= m.wantedRev {
			m.wantedRev = 0
		}
	}
	w := m.made[answer.WatchId]
	var u watchUpdate
	switch {
	case answer.Created:
		if len(m.requested) == 0 {
			m.mu.Unlock()
			return errOutOfOrder
		}
		w = m.requested[0]
		m.requested = m.requested[1:]
		_, wanted := m.all[w]
		switch {
		case answer.Canceled && !wanted:
			w = nil
		case answer.Canceled && w.refused && strings.Contains(answer.CancelReason, "permission denied"):
			delete(m.all, w)
			u.err = driver.Errorf(driver.CodeRefused, "etcd refuses the watch: %s", answer.CancelReason)
		case answer.Canceled:
			w.refused = true
			m.mu.Unlock()
			return errOldLogin
		case !wanted:
			w.id = answer.WatchId
			m.cancel(w)
			w = nil
		default:
			w.id, w.isSet, w.refused = answer.WatchId, true, false
			m.made[w.id] = w
			u.stands = true
		}
	case answer.Canceled:
		if w != nil { // the server has cancelled the watch
			delete(m.made, w.id)
			w.isSet = false
			m.request(w)
			u.interrupted = true
		}
	default:
		for _, ev := range answer.Events {
			// A proxy may set watches in another order than they were requested in.
			if w != nil && !w.covers(ev.Kv.Key) {
				m.mu.Unlock()
				return errOutOfOrder
			}
		}
		u.events = answer.Events
	}
	m.mu.Unlock()
	if w != nil && (u.err != nil || u.stands || u.interrupted || len(u.events) > 0) {
		w.update(u)
	}
	return nil
}
