package zookeeper

import (
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/driver"
	"github.com/holdfast-go/holdfast/zkstore"
)

// TestDeletedLeaseOfWaiterFreesMutex: a waiter for a permit has the mutex and a lease node. An
// operator deletes that lease node. The waiter's request ends, and its client releases the mutex.
func TestDeletedLeaseOfWaiterFreesMutex(t *testing.T) {
	z := single(t)
	o := []zkstore.Option{zkstore.Root("/lease"), zkstore.WithLayout(zkstore.Semaphore)}
	_, sa := locker(t, []string{z.Address()}, o...)
	_, sb := locker(t, []string{z.Address()}, o...)
	raw := connect(t, z.Address())
	name := newName()
	request := func() (driver.Request, *queuedRequest) {
		a := &queuedRequest{queued: make(chan struct{}), granted: make(chan driver.Grant, 1)}
		return driver.Request{ID: "lease-" + newName(), Name: name, Limit: 2, TTL: 2 * time.Minute, Wait: true, From: a}, a
	}
	var held []driver.Grant
	for range 2 {
		r, _ := request()
		g, err := sa.Acquire(t.Context(), r)
		must(t, err)
		held = append(held, g)
	}
	r, a := request()
	done := make(chan error, 1)
	go func() {
		_, err := sb.Acquire(t.Context(), r)
		done <- err
	}()
	<-a.queued
	leases := "/lease/" + name + "/leases"
	all := nodes(t, raw, leases, "there is a third lease", count(3))
	must(t, raw.Delete(leases+"/"+all[2], -1))
	must(t, sa.Release(t.Context(), held[0], 0))
	select {
	case err := <-done:
		if err != nil && driver.CodeOf(err) != driver.CodeUnavailable {
			t.Errorf("the waiter ended with %v", err)
		}
	case <-time.After(testTimeout):
		t.Fatal("the waiter does not end")
	}
	nodes(t, raw, "/lease/"+name+"/locks", "the mutex is free", count(0))
}
