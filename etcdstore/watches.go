package etcdstore

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/holdfast-go/holdfast/driver"
)

// watches is the one stream on which a store watches keys. The client library's Watcher would
// make a new stream, and with authentication a login, whenever the last watch of a stream has
// ended, and it waits for one watch to be made before it asks for the next.
//
// The stream is opened when something is watched, and again when it has ended. Each time every
// watch is made anew, from now on.
type watches struct {
	client etcdserverpb.WatchClient

	mu      sync.Mutex
	all     map[*watch]struct{}
	serving bool // a goroutine keeps the stream
	wanted  chan struct{}

	// Of the stream that is open, if any.
	open    bool
	asked   []*watch                     // watches whose making was requested, in that order
	made    map[int64]*watch             // by the server's number
	unsent  []*etcdserverpb.WatchRequest // what the sender has to send
	sendNow chan struct{}
	drop    context.CancelCauseFunc
	// heard is the newest revision that the member has reported, and wantedRev one that the
	// quorum had reached at wantedAt and that the member has not reported yet.
	heard, wantedRev int64
	wantedAt         time.Time
}

// watch is a key, or a range of keys, whose changes are reported.
type watch struct {
	key, end []byte // as in etcd: end is nil for a single key
	puts     bool   // report writes, too, and not deletions alone
	// update is called by the stream's goroutine and must not block. It may be called once
	// more after unwatch.
	update func(watchUpdate)

	// Guarded by watches.mu.
	id      int64
	isSet   bool
	refused bool // once, by a stream whose login may have been too old
}

// setPrefix makes a watch of every key that begins so.
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

// watchUpdate is one of: the watch stands, and changes from now on are reported; the watch does
// not stand any more, and is being made again; changes; the watch cannot be made and is over.
type watchUpdate struct {
	stands, interrupted bool
	events              []*mvccpb.Event
	err                 error
}

const (
	// progressEvery is how often a member is asked for a sign of life on the stream, and silentMost
	// for how long it may send nothing: then the stream is opened at another member.
	progressEvery = 500 * time.Millisecond
	silentMost    = 1250 * time.Millisecond
	// lagMost is for how long a member may not report a revision that the quorum has reached.
	lagMost = 750 * time.Millisecond
	// idleMost is for how long a stream without watches stays open.
	idleMost = time.Minute
)

var (
	errIdle       = errors.New("nothing is watched")
	errLags       = errors.New("the member that serves the watches lags behind the quorum")
	errSilent     = errors.New("the stream of watches is silent")
	errOutOfOrder = errors.New("the stream of watches is out of order")
	errOldLogin   = errors.New("a watch is refused: the login of its stream may be too old")
)

// watch registers a watch.
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
	signal(m.wanted)
	serving := m.serving
	m.serving = true
	m.mu.Unlock()
	if !serving && !s.background(s.serveWatches) {
		w.update(watchUpdate{err: errClosed})
	}
}

// unwatch ends a watch.
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

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// request queues the making of a watch. The caller holds mu.
func (m *watches) request(w *watch) {
	create := &etcdserverpb.WatchCreateRequest{Key: w.key, RangeEnd: w.end}
	if !w.puts {
		create.Filters = []etcdserverpb.WatchCreateRequest_FilterType{etcdserverpb.WatchCreateRequest_NOPUT}
	}
	m.asked = append(m.asked, w)
	m.send(&etcdserverpb.WatchRequest{RequestUnion: &etcdserverpb.WatchRequest_CreateRequest{CreateRequest: create}})
}

// cancel queues the end of a watch that was made. The caller holds mu.
func (m *watches) cancel(w *watch) {
	delete(m.made, w.id)
	w.isSet = false
	m.send(&etcdserverpb.WatchRequest{RequestUnion: &etcdserverpb.WatchRequest_CancelRequest{
		CancelRequest: &etcdserverpb.WatchCancelRequest{WatchId: w.id}}})
}

func (m *watches) send(r *etcdserverpb.WatchRequest) {
	m.unsent = append(m.unsent, r)
	signal(m.sendNow)
}

// serveWatches keeps the stream until the store is closed.
func (s *Store) serveWatches() {
	m := &s.watches
	pause, silent := waitRetry, silentMost
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
			_, _, _ = s.keepaliveStream(s.ctx) // on which leases depend: its login comes first
		}
		err := s.watchStream(silent)
		if err == errIdle {
			continue
		}
		// A server that has too much to do is not helped by one login after another.
		if silent = min(2*silent, openMost); !errors.Is(err, errSilent) {
			silent = silentMost
		}
		if time.Since(began) > 2*waitRetryMost {
			pause = waitRetry
		}
		t := time.NewTimer(pause/2 + rand.N(pause/2+1))
		select {
		case <-t.C:
		case <-s.ctx.Done():
			t.Stop()
			return
		}
		pause = min(2*pause, waitRetryMost)
	}
}

func (m *watches) count() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.all)
}

// watchStream opens a stream and serves it until it ends, and returns why it has ended.
func (s *Store) watchStream(silentMost time.Duration) error {
	m := &s.watches
	ctx, end := context.WithCancelCause(clientv3.WithRequireLeader(s.ctx))
	defer end(nil)
	tooLong := time.AfterFunc(openMost, func() { end(errSilent) })
	stream, err := m.client.Watch(ctx)
	if !tooLong.Stop() && err == nil {
		err = errSilent
	}
	if err != nil {
		return err
	}
	m.begin(end)
	silent := time.AfterFunc(silentMost, func() { end(errSilent) })
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
		silent.Reset(silentMost)
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
	m.heard, m.wantedRev = 0, 0
	m.asked, m.unsent, m.made = nil, nil, map[int64]*watch{}
	for w := range m.all {
		m.request(w)
	}
}

// lost reports to every watch that it does not stand any more.
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

// expect takes in a revision that the quorum has reached. A member that does not report it soon is
// cut off, or has too much to do: its watches are made at another one.
func (m *watches) expect(rev int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.wantedRev == 0 && m.heard < rev {
		m.wantedRev, m.wantedAt = rev, time.Now()
	}
}

// dropLagging ends a stream whose member does not report what was expected of it.
func (m *watches) dropLagging() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.open && m.wantedRev > 0 && time.Since(m.wantedAt) > lagMost {
		m.wantedRev = 0
		m.drop(errLags)
	}
}

// sendAll sends what is queued, and asks for signs of life. It returns errIdle when nothing has
// been watched for a while.
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
			} else if time.Since(used) > idleMost {
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

// take hands one answer of the server to the watch that it is about. An error says that another
// stream is needed.
func (m *watches) take(answer *etcdserverpb.WatchResponse) error {
	m.mu.Lock()
	if h := answer.GetHeader(); h != nil && h.Revision > m.heard {
		if m.heard = h.Revision; m.heard >= m.wantedRev {
			m.wantedRev = 0
		}
	}
	w := m.made[answer.WatchId]
	var u watchUpdate
	switch {
	case answer.Created:
		if len(m.asked) == 0 {
			m.mu.Unlock()
			return errOutOfOrder
		}
		w = m.asked[0]
		m.asked = m.asked[1:]
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
		if w != nil { // not by us
			delete(m.made, w.id)
			w.isSet = false
			m.request(w)
			u.interrupted = true
		}
	default:
		for _, ev := range answer.Events {
			// A proxy may create watches in another order than they were requested in.
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
