package etcd

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/e2e/conformance/requests"
	"github.com/holdfast-go/holdfast/etcdstore"
	"github.com/holdfast-go/holdfast/internal/servers"
)

// TestRestoreWhileWatchIsKept: a server is replaced by one that was restored from an older copy. The copy
// contains the holder's lock. On the replaced server an operator deletes that lock later, and a watch of
// another client reports the deletion. The waiter of that client is not granted the lock beside the
// holder. It is granted the lock after the holder's release.
//
// The subtests differ in when the next waiter creates its queue entry, and in whether its client notices
// the end of the watch. The package comment of etcdstore describes the two rules that they test.
func TestRestoreWhileWatchIsKept(t *testing.T) {
	// The entry exists on both servers. The watch is made again before the client receives the answer to
	// the entry. The waiter then drops the deletion, which the replaced server reported.
	t.Run("an entry of the copy, and the watch is made again", func(t *testing.T) {
		t.Parallel()
		r := newReplacement(t)
		r.acquireWithWatch(t)
		entry := r.calls.stopBeforeReturn()
		r.submitNext(t, entry)

		r.copyAndRestore(t)
		r.redirectHolder(t)
		r.deleteOnReplaced(t)
		r.redirectWaiterAndAwaitWatches(t)
		entry.resume()

		r.requireRenewal(t)
		r.requireNoGrantBesideHolder(t)
		r.requireGrantAfterRelease(t)
	})

	// The entry is created on the restored server. The client prepares it before the deletion, and sends
	// it when the watch is made again. The waiter then drops the deletion, as in the first subtest.
	t.Run("a new entry, and the watch is made again", func(t *testing.T) {
		t.Parallel()
		r := newReplacement(t)
		r.acquireWithWatch(t)

		r.copyAndRestore(t)
		r.redirectHolder(t)
		entry := r.calls.stopBeforeSend()
		r.submitNext(t, entry)
		r.deleteOnReplaced(t)
		r.redirectWaiterAndAwaitWatches(t)
		entry.resume()

		r.requireRenewal(t)
		r.requireNoGrantBesideHolder(t)
		r.requireGrantAfterRelease(t)
	})

	// The entry is created on the restored server, while the client has not noticed the end of the watch.
	// The revision of the entry is below the one that the stream reported before. Only this shows the
	// restore, so the waiter does not count the deletion.
	t.Run("a new entry, and the watch has ended unnoticed", func(t *testing.T) {
		t.Parallel()
		r := newReplacement(t)
		r.acquireWithWatch(t)

		r.copyAndRestore(t)
		r.redirectHolder(t)
		r.raiseReportedRevision(t)
		entry := r.calls.stopBeforeSend()
		r.submitNext(t, entry)
		r.deleteOnReplaced(t)
		reportEnd := r.calls.delayStreamEnd(t)
		r.redirectWaiter(t)
		entry.resume()

		r.requireRenewal(t)
		r.requireNoGrantBesideHolder(t)
		reportEnd()
		r.requireGrantAfterRelease(t)
	})
}

// replacement is a server, the server that replaces it, and their clients. Its methods are the steps of
// TestRestoreWhileWatchIsKept. All locks have the name "n".
type replacement struct {
	replaced *cluster
	restored *servers.Etcd    // restored from a copy of the replaced server
	operator *clientv3.Client // a client of the replaced server

	holder      *etcdstore.Store
	holderProxy *servers.Proxy // its upstream is the server that the holder's client reaches
	held        driver.Grant   // the holder's lock
	heldKey     string

	waiter       *etcdstore.Store
	waiterProxy  *servers.Proxy   // its upstream is the server that the waiter's client reaches
	waiterClient *clientv3.Client // the client of the waiter's store
	calls        *interceptor     // intercepts the calls of waiterClient

	first       *requests.Waiter
	cancelFirst context.CancelFunc // ends the first waiter
	next        *requests.Waiter   // the outcome of the next waiter, or of its last retry
	retries     int
}

// newReplacement starts the server that is replaced later, and connects the clients to it.
func newReplacement(t *testing.T) *replacement {
	t.Helper()
	c := start(t, servers.EtcdConfig{})
	holderProxy, err := servers.NewProxy(c.members[0].Client)
	check(t, err)
	t.Cleanup(holderProxy.Close)
	through := func(p *servers.Proxy) func(*clientv3.Config) {
		return func(cfg *clientv3.Config) { cfg.Endpoints = []string{p.Address()} }
	}
	r := &replacement{replaced: c, holderProxy: holderProxy, waiterProxy: c.proxies[0], calls: newInterceptor()}
	r.holder = over(t, c.direct(t, through(r.holderProxy)))
	r.waiterClient = c.direct(t, through(r.waiterProxy), r.calls.install)
	r.waiter = over(t, r.waiterClient)
	r.operator = c.direct(t)
	return r
}

// acquireWithWatch acquires the holder's lock, and starts the first waiter, which creates the watch of the
// name. It returns when every watch is set.
func (r *replacement) acquireWithWatch(t *testing.T) {
	t.Helper()
	r.held = must(t, r.holder, request("n", 1, time.Hour))
	r.heldKey = keyOf(t, r.operator, "n")

	ctx, cancel := context.WithCancel(t.Context())
	r.first, r.cancelFirst = requests.QueueWith(t, ctx, r.waiter, request("n", 1, time.Hour)), cancel

	// Each client watches its sentinel and its entry, and the waiter's client also the name.
	r.replaced.watched(t, 5)
	eventually(t, "both clients have written their sentinels", func() bool {
		resp, err := r.operator.Get(t.Context(), sentinels, clientv3.WithPrefix())
		return err == nil && len(resp.Kvs) == 2
	})
}

// submitNext starts the next waiter, which shares the watch of the first one. It returns when the
// transaction that creates the waiter's entry has reached the stop.
func (r *replacement) submitNext(t *testing.T, entry *stop) {
	t.Helper()
	r.next = submit(t, r.waiter, request("n", 1, time.Hour))
	receive(t, "the next waiter", entry.reached)
}

// copyAndRestore copies the data of the server, and starts the restored server with the copy.
func (r *replacement) copyAndRestore(t *testing.T) {
	t.Helper()
	dir := t.TempDir()
	check(t, r.replaced.members[0].Backup(filepath.Join(dir, "m0", "data")))
	restored, err := servers.StartEtcd(t.Context(), servers.EtcdConfig{Program: need(t, "etcd"), Dir: dir, NoSync: true})
	check(t, err)
	t.Cleanup(restored[0].End)
	r.restored = restored[0]
}

// redirectHolder redirects the holder's client to the restored server.
func (r *replacement) redirectHolder(t *testing.T) {
	t.Helper()
	check(t, r.holderProxy.Redirect(r.restored.Client))
}

// raiseRevision makes the revision of the replaced server far larger than that of the copy, and returns
// it.
func (r *replacement) raiseRevision(t *testing.T) (rev int64) {
	t.Helper()
	for i := range 20 {
		resp, err := r.operator.Put(t.Context(), "raise", fmt.Sprint(i))
		check(t, err)
		rev = resp.Header.Revision
	}
	return rev
}

// raiseReportedRevision raises the revision of the replaced server, and waits until the stream of the
// waiter's client has reported it.
func (r *replacement) raiseReportedRevision(t *testing.T) {
	t.Helper()
	rev := r.raiseRevision(t)
	eventually(t, "the stream reports the revision", func() bool { return r.calls.newestRevision() >= rev })
}

// deleteOnReplaced deletes the holder's lock on the replaced server, and waits until the waiter's client
// has handled the report of that deletion. Before that it raises the revision, so that the deletion is
// newer than any entry of the restored server. It also ends the first waiter.
func (r *replacement) deleteOnReplaced(t *testing.T) {
	t.Helper()
	r.raiseRevision(t)
	r.cancelFirst()
	_ = r.first.Ended()
	remove(t, r.operator, r.heldKey)
	eventually(t, "the watch reports the deletion", func() bool { return r.calls.reportedDeletion(r.heldKey) })
}

// redirectWaiter redirects the waiter's client to the restored server, and waits until the client reaches
// it.
func (r *replacement) redirectWaiter(t *testing.T) {
	t.Helper()
	check(t, r.waiterProxy.Redirect(r.restored.Client))
	eventually(t, "the waiter's client reaches the restored server", func() bool {
		_, err := r.waiterClient.Get(t.Context(), "x")
		return err == nil
	})
}

// redirectWaiterAndAwaitWatches calls redirectWaiter, and waits until the client has made its watches
// again.
func (r *replacement) redirectWaiterAndAwaitWatches(t *testing.T) {
	t.Helper()
	before := r.calls.createdWatches()
	r.redirectWaiter(t)
	// One is the watch of the name, and the other watches are those of entries and of the sentinel.
	eventually(t, "the watches are made again", func() bool { return r.calls.createdWatches() >= before+2 })
}

// requireRenewal requires that the holder has its lock on the restored server, and renews it.
func (r *replacement) requireRenewal(t *testing.T) {
	t.Helper()
	if a := r.holder.Renew(t.Context(), []driver.Grant{r.held})[0]; a.Err != nil {
		t.Fatal(a.Err)
	}
}

// requireNoGrantBesideHolder requires that the waiter is not granted the lock for half a second.
func (r *replacement) requireNoGrantBesideHolder(t *testing.T) {
	t.Helper()
	for timeout := time.After(500 * time.Millisecond); ; {
		select {
		case <-r.next.Done:
			if r.next.Err == nil {
				t.Fatalf("granted beside the holder: %+v", r.next.Grant)
			}
			r.retryNext(t, r.next.Err)
		case <-timeout:
			return
		}
	}
}

// requireGrantAfterRelease releases the holder's lock, and requires that the waiter is granted the lock.
func (r *replacement) requireGrantAfterRelease(t *testing.T) {
	t.Helper()
	release(t, r.holder, r.held)
	for r.next.Ended() != nil {
		r.retryNext(t, r.next.Err)
	}
}

// retryNext submits another request after err ended the last one. The session of the waiter ends soon
// after the redirect, since the session has seen later revisions than that of the restored server.
func (r *replacement) retryNext(t *testing.T, err error) {
	t.Helper()
	if r.retries++; r.retries > 20 {
		t.Fatal(err)
	}
	r.next = submit(t, r.waiter, request("n", 1, time.Hour))
}

// interceptor intercepts the calls of one client. It stops a transaction that creates a queue entry, and
// delays the report that the stream of watches has ended. It records the responses of the stream that the
// store has handled.
type interceptor struct {
	mu sync.Mutex
	// The next transaction that creates an entry stops at these, unless they are nil.
	beforeSend, beforeReturn *stop
	// If streamEnd is not nil, the store is notified of the end of a stream when streamEnd is closed.
	streamEnd <-chan struct{}
	created   int             // the number of watches that the server has created
	revision  int64           // the newest revision of the responses
	deleted   map[string]bool // the keys whose deletion was reported
}

func newInterceptor() *interceptor { return &interceptor{deleted: map[string]bool{}} }

// install adds the interceptor to a client's calls.
func (i *interceptor) install(cfg *clientv3.Config) {
	onTxn(i.txn)(cfg)
	cfg.DialOptions = append(cfg.DialOptions, grpc.WithChainStreamInterceptor(i.stream))
}

// stop is a point at which one call waits. reached is closed when the call arrives there. The call
// continues when resumed is closed.
type stop struct{ reached, resumed chan struct{} }

func newStop() *stop { return &stop{make(chan struct{}), make(chan struct{})} }

// wait waits until resume is called. If the stop is nil, wait returns at once.
func (s *stop) wait() {
	if s != nil {
		close(s.reached)
		<-s.resumed
	}
}

func (s *stop) resume() { close(s.resumed) }

// stopBeforeSend stops the next transaction that creates an entry before the client sends it.
func (i *interceptor) stopBeforeSend() *stop {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.beforeSend = newStop()
	return i.beforeSend
}

// stopBeforeReturn stops the next transaction that creates an entry when its answer has arrived, before
// the call returns.
func (i *interceptor) stopBeforeReturn() *stop {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.beforeReturn = newStop()
	return i.beforeReturn
}

// take returns *at, and sets it to nil for the next call.
func (i *interceptor) take(at **stop) *stop {
	i.mu.Lock()
	defer i.mu.Unlock()
	s := *at
	*at = nil
	return s
}

func (i *interceptor) txn(txn *etcdserverpb.TxnRequest, send func() error) error {
	if !puts(txn) {
		return send()
	}
	i.take(&i.beforeSend).wait()
	err := send()
	i.take(&i.beforeReturn).wait()
	return err
}

func (i *interceptor) stream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	c, err := streamer(ctx, desc, cc, method, opts...)
	if err != nil || !strings.HasSuffix(method, "/Watch") {
		return c, err
	}
	return &watchStream{ClientStream: c, calls: i}, nil
}

// watchStream is a stream of watches whose responses the interceptor records.
type watchStream struct {
	grpc.ClientStream
	calls *interceptor
	last  *etcdserverpb.WatchResponse // the store has handled it when it calls RecvMsg again
}

func (w *watchStream) RecvMsg(msg any) error {
	w.calls.record(w.last)
	err := w.ClientStream.RecvMsg(msg)
	w.last, _ = msg.(*etcdserverpb.WatchResponse)
	if err != nil {
		w.calls.awaitStreamEnd()
	}
	return err
}

// record records a response that the store has handled. The response is nil before the first one.
func (i *interceptor) record(resp *etcdserverpb.WatchResponse) {
	if resp == nil {
		return
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, e := range resp.Events {
		if e.Type == mvccpb.DELETE {
			i.deleted[string(e.Kv.Key)] = true
		}
	}
	if resp.Created {
		i.created++
	}
	i.revision = max(i.revision, resp.GetHeader().GetRevision())
}

// delayStreamEnd delays the report to the store that a stream has ended. The store receives it when the
// test calls report.
func (i *interceptor) delayStreamEnd(t *testing.T) (report func()) {
	end := make(chan struct{})
	report = sync.OnceFunc(func() { close(end) })
	t.Cleanup(report)
	i.mu.Lock()
	defer i.mu.Unlock()
	i.streamEnd = end
	return report
}

// awaitStreamEnd waits until the store may be notified of the end of a stream.
func (i *interceptor) awaitStreamEnd() {
	i.mu.Lock()
	end := i.streamEnd
	i.mu.Unlock()
	if end != nil {
		<-end
	}
}

func (i *interceptor) createdWatches() int {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.created
}

func (i *interceptor) newestRevision() int64 {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.revision
}

func (i *interceptor) reportedDeletion(key string) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.deleted[key]
}
