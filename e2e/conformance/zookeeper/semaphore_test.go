package zookeeper

import (
	"strings"
	"testing"
	"time"

	zookeeper "github.com/go-zookeeper/zk"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/e2e/conformance/requests"
	"github.com/holdfast-go/holdfast/zkstore"
)

// semaphores returns two clients of semaphores under /lease, and a connection.
func semaphores(t *testing.T) (a, b *zkstore.Store, raw *zookeeper.Conn) {
	z := single(t)
	o := []zkstore.Option{zkstore.Root("/lease"), zkstore.WithLayout(zkstore.Semaphore)}
	_, a = locker(t, []string{z.Address()}, o...)
	_, b = locker(t, []string{z.Address()}, o...)
	return a, b, connect(t, z.Address())
}

// TestDeletedLeaseOfWaiterFreesMutex: a waiter for a permit has the mutex and a lease node. An
// operator deletes that lease node. The waiter's request ends, and its client releases the mutex.
func TestDeletedLeaseOfWaiterFreesMutex(t *testing.T) {
	sa, sb, raw := semaphores(t)
	name := newName()
	held := requests.Must(t, sa, requests.New(name, 2, 2*time.Minute))
	requests.Must(t, sa, requests.New(name, 2, 2*time.Minute))
	w := queued(t, sb, name, 2)
	leases := "/lease/" + name + "/leases"
	all := nodes(t, raw, leases, "there is a third lease", count(3))
	must(t, raw.Delete(leases+"/"+all[2], -1))
	must(t, sa.Release(t.Context(), held, 0))
	if err := w.Ended(); err != nil && driver.CodeOf(err) != driver.CodeUnavailable {
		t.Errorf("the waiter ended with %v", err)
	}
	nodes(t, raw, "/lease/"+name+"/locks", "the mutex is free", count(0))
}

// TestTryWaitsForHoldersThatPassTheMutex: permits are free, and the release of a holder's mutex has not reached the
// server. A try does not return that the name is busy: it is granted after that release, which here comes when the
// try has reached the queue of the mutex.
func TestTryWaitsForHoldersThatPassTheMutex(t *testing.T) {
	sa, sb, raw := semaphores(t)
	name := newName()
	held := requests.Must(t, sa, requests.New(name, 3, 2*time.Minute))
	locks, leases := "/lease/"+name+"/locks", "/lease/"+name+"/leases"
	nodes(t, raw, locks, "the mutex is free", count(0))
	lease := nodes(t, raw, leases, "there is a lease", count(1))[0]
	request, _, _ := strings.Cut(lease, "lease-")
	data, _, err := raw.Get(leases + "/" + lease)
	must(t, err)
	for range 20 { // on a busy machine the try may end before the release
		mutex := create(t, raw, locks+"/"+request+"lock-", data, zookeeper.FlagEphemeral|zookeeper.FlagSequence)
		_, _, changed, err := raw.ChildrenW(locks)
		must(t, err)
		var g driver.Grant
		ended := make(chan error, 1)
		go func() {
			var err error
			g, err = sb.Acquire(t.Context(), requests.New(name, 3, 2*time.Minute))
			ended <- err
		}()
		select {
		case <-changed:
			must(t, raw.Delete(mutex, -1))
			err = <-ended
		case err = <-ended:
			must(t, raw.Delete(mutex, -1))
		}
		if err == nil {
			must(t, sb.Release(t.Context(), g, 0))
			must(t, sa.Release(t.Context(), held, 0))
			return
		}
		if driver.CodeOf(err) != driver.CodeBusy {
			t.Fatal(err)
		}
	}
	t.Error("each try was busy, although permits were free")
}
